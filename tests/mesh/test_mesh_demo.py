"""`catenary demo` shows what it says it shows, its exit code tells, and its trace spans the mesh."""

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

from tests.mesh.harness import PATIENCE_S, READY_S, RunningMesh
from tests.mesh.otlp import Receiver
from tests.mesh.test_mesh_trace import SERVICES, STAGES


async def demo(folder: Path, *flags: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "catenary_cli", "demo", *flags), cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(READY_S):
        said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    return said


async def test_the_demo_overlaps_its_tool_and_comes_back_to_its_blocks(tmp_path: Path) -> None:
    said = await demo(tmp_path)
    talked = re.search(r"went on talking for (\d+) ms \((\d+) deltas\)", said)
    waited = re.search(r"the result was there (\d+\.\d) ms after it, (\d+) ms before the end", said)
    assert talked
    assert waited
    assert int(talked[2]) >= 20
    assert float(waited[1]) < int(talked[1])
    assert len(re.findall(r" (?:100|9[5-9])%$", said, re.MULTILINE)) == 8
    assert said.rstrip().endswith("cached: yes")


@pytest.mark.slow
async def test_the_demos_trace_spans_all_services_and_its_tool(
    paced_mesh: RunningMesh, spans: Receiver, tmp_path: Path
) -> None:
    before = len(paced_mesh.log("frontend"))
    await demo(tmp_path, "--api", paced_mesh.api, "--nats", paced_mesh.broker, "--sessions", "1")
    lines = [json.loads(line) for line in paced_mesh.log("frontend")[before:].splitlines()]
    turn = next(str(line["turn"]) for line in lines if line["event"] == "turn.done" and line["calls"])
    trace = await asyncio.to_thread(spans.trace_of, turn, STAGES, PATIENCE_S)
    assert {span.service for span in trace} == SERVICES
    assert {span.name for span in trace} >= STAGES
