"""Every block that a page marks with `run` runs, against a mesh of real processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mesh.harness import PATIENCE_S, RunningMesh

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?P<language>bash|python) run\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = (
    "README.md",
    "docs/quickstart.md",
    "docs/how-to/use-agents.md",
    "docs/how-to/watch.md",
    "docs/how-to/keep-sessions-warm.md",
    "docs/how-to/exact-prompts.md",
)
BLOCKS = [
    pytest.param(match["language"], match["text"], id=f"{page}-{number}")
    for page in PAGES
    for number, match in enumerate(BLOCK.finditer((ROOT / page).read_text()))
]

SHOWN = re.compile(r"^```bash run\n(?P<text>.*?)^```\n\n```text\n(?P<said>.*?)^```", re.MULTILINE | re.DOTALL)


def run(mesh: RunningMesh, folder: Path, language: str, text: str) -> str:
    text = text.replace("http://127.0.0.1:8000", mesh.api).replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    command = [sys.executable, "-c", text] if language == "python" else ["bash", "-euo", "pipefail", "-c", text]
    environment = {**os.environ, "CATENARY_NATS": mesh.broker, "CATENARY_DATA_DIR": str(mesh.data_dir)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("language", "text"), BLOCKS)
def test_a_block_of_the_documents_runs(mesh: RunningMesh, tmp_path: Path, language: str, text: str) -> None:
    assert run(mesh, tmp_path, language, text).strip()


def test_what_is_shown_under_a_block_is_what_it_says(mesh: RunningMesh, tmp_path: Path) -> None:
    blocks = list(SHOWN.finditer((ROOT / "docs" / "how-to" / "exact-prompts.md").read_text()))
    assert blocks
    for block in blocks:
        text = block["text"].replace("exact-prompts", "exact-prompts-again")  # a session of its own
        assert run(mesh, tmp_path, "bash", text).strip() == block["said"].strip()


def test_the_readmes_curl_streams_reasoning_a_call_its_result_and_text(paced_mesh: RunningMesh, tmp_path: Path) -> None:
    language, text = BLOCKS[0].values
    said = run(paced_mesh, tmp_path, str(language), str(text))
    in_order = [
        '"reasoning_content":"',
        "event: tool_call_dispatch",
        "event: tool_result",
        '"finish_reason":"tool_calls"',
    ]
    places = [said.index(one) for one in in_order]
    assert places == sorted(places)
    assert re.search(r'"content":"[^"]', said[places[2] :])
