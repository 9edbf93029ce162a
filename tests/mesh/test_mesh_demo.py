"""`catenary demo` shows what it says it shows, and its exit code tells."""

import asyncio
import re
import sys
from pathlib import Path

from tests.mesh.harness import READY_S


async def test_the_demo_overlaps_its_tool_and_comes_back_to_its_blocks(tmp_path: Path) -> None:
    demo = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "catenary_cli", "demo"), cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(READY_S):
        said = (await demo.communicate())[0].decode()
    assert demo.returncode == 0, said
    talked = re.search(r"went on talking for (\d+) ms \((\d+) deltas\)", said)
    waited = re.search(r"the result was there (\d+\.\d) ms after it, (\d+) ms before the end", said)
    assert talked
    assert waited
    assert int(talked[2]) >= 20
    assert float(waited[1]) < int(talked[1])
    assert len(re.findall(r" (?:100|9[5-9])%$", said, re.MULTILINE)) == 8
    assert said.rstrip().endswith("cached: yes")
