"""The workspace as the contract tests see it: members, their packages, and the syntax trees of their files."""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVICES = "services"
LIBRARIES = ("catenary_protocols", "catenary_parsers", "catenary_tokenizers")


@dataclass(frozen=True)
class Member:
    """One distribution of the workspace."""

    path: Path

    @property
    def project(self) -> dict[str, object]:
        table = tomllib.loads((self.path / "pyproject.toml").read_text())["project"]
        assert isinstance(table, dict)
        return table

    @property
    def package(self) -> Path:
        """The import package's folder."""
        return next(path.parent for path in self.path.glob("catenary_*/__init__.py"))

    @property
    def sources(self) -> list[Path]:
        """Python files of the package."""
        return sorted(self.package.rglob("*.py"))

    @property
    def tests(self) -> list[Path]:
        """Python files of its tests."""
        return sorted((self.path / "tests").rglob("*.py"))


def members() -> list[Member]:
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["workspace"]
    return [Member(ROOT / name) for name in workspace["members"]]


def sources() -> list[Path]:
    return [path for member in members() for path in member.sources]


def own_tests() -> list[Path]:
    """All test files of the repository."""
    return sorted({path for member in members() for path in member.tests} | set((ROOT / "tests").rglob("*.py")))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, wherever in it, with the line."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno


def texts(path: Path) -> Iterator[tuple[str, int]]:
    """Every string of a file but docstrings; the holes of f-strings read as `{}`."""
    skip: set[int] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skip.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skip |= {id(value) for value in node.values}
            parts = [str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values]
            yield "".join(parts), node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skip:
            yield node.value, node.lineno


def where(path: Path, line: int, what: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {what}"
