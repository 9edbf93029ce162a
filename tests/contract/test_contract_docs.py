"""What the documents say is so: stations resolve, links lead somewhere, settings in examples exist."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from catenary_cli.options import Flags, resolve

from tests.contract.workspace import ROOT, tree

PAGES = sorted(
    path for path in ROOT.rglob("*.md") if not {".venv", ".cache", "node_modules"} & set(path.relative_to(ROOT).parts)
)
STATION = re.compile(r"`(?P<file>[\w/.-]+\.py)` · `(?P<name>[\w.]+)`")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)?(#[^)\s]*)?\)")
BLOCK = re.compile(r"^```(?P<language>\w+)(?P<run> run)?\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
A_TURN = ROOT / "docs" / "concepts" / "a-turn.md"


def defined(path: Path) -> set[str]:
    """Functions and classes of a file, methods with their class."""
    names: set[str] = set()
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{one.name}" for one in node.body if hasattr(one, "name")}
    return names


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_a_turn_has_at_most_fifteen_stations_and_all_of_them_exist() -> None:
    stations = [match.groupdict() for match in STATION.finditer(A_TURN.read_text())]
    assert 10 <= len(stations) <= 15
    assert len(re.findall(r"^\d+\. ", A_TURN.read_text(), re.MULTILINE)) == len(stations)
    missing = [one for one in stations if one["name"] not in defined(ROOT / one["file"])]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for file, anchor in LINK.findall(re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)):
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(f"{file}{anchor}")
    assert not broken


@pytest.mark.parametrize(
    "page",
    [ROOT / "docs" / name for name in ("quickstart.md", "how-to/exact-prompts.md", "how-to/secure-the-broker.md")],
    ids=lambda page: page.name,
)
def test_configuration_in_the_pages_is_valid(page: Path, tmp_path: Path) -> None:
    blocks = [match["text"] for match in BLOCK.finditer(page.read_text()) if match["language"] == "toml"]
    assert blocks
    for number, text in enumerate(blocks):
        assert tomllib.loads(text)
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        resolve(Flags(config=str(path)), {})


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:`|\$ )make ([a-z-]+)", page.read_text())}
    assert named <= targets


def test_python_blocks_compile() -> None:
    for page in PAGES:
        for match in BLOCK.finditer(page.read_text()):
            if match["language"] == "python" and match["run"]:
                compile(match["text"], str(page), "exec")


@pytest.mark.parametrize(("name", "limit"), [("executor.py", 20), ("observer.py", 10)])
def test_the_examples_are_short_and_need_no_part_of_ours(name: str, limit: int) -> None:
    module = tree(ROOT / "docs" / "examples" / name)
    body = next(node for node in module.body if isinstance(node, ast.AsyncFunctionDef))
    assert body.end_lineno is not None
    assert body.end_lineno - body.lineno + 1 <= limit
    imported = {alias.name for node in module.body if isinstance(node, ast.Import) for alias in node.names}
    assert not [name for name in imported if name.startswith("catenary")]
