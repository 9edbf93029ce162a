"""Rules about the source itself: where subjects and encoders live, what cores may import, how long files are."""

import ast
import importlib
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from catenary_protocols.bus.subjects import CHANNELS, DEFAULT_NAMESPACE
from catenary_tool_dispatch.registry import load as load_tools

from tests.contract.workspace import LIBRARIES, ROOT, imports, own_tests, sources, texts, tree, where

IMPURE = {"asyncio", "time", "nats", "os", "datetime", "socket", "threading", "secrets", "subprocess"}
HOLE = r"(?:\{\w*\}|\*|>)"
SENDING = {"publish", "publish_now", "ask", "respond", "request"}
ENCODING = {"encode", "Encoder", "dumps"}
CLIENTS = ("claude", "codex", "opencode", "openai", "anthropic", "cursor", "aider", "langchain", "pytest", "hypothesis")


def a_subject() -> re.Pattern[str]:
    """Texts that are subjects: in the namespace, or a channel's pattern with holes or wildcards in its fields."""
    patterns = [re.sub(r"\\\{\w+\\\}", lambda _: HOLE, re.escape(channel.pattern)) for channel in CHANNELS.values()]
    return re.compile(rf"(?:.*{re.escape(DEFAULT_NAMESPACE)}\.\S+|(?:{HOLE}\.)?(?:{'|'.join(patterns)}))")


def subjects_in(path: Path) -> Iterator[str]:
    wanted = a_subject()
    for text, line in texts(path):
        if wanted.fullmatch(text):
            yield where(path, line, f"the subject {text!r}")


def test_subjects_are_built_in_one_module() -> None:
    home = {"subjects.py", "permissions.py"}
    files = [path for path in sources() if path.name not in home]
    assert not [found for path in files for found in subjects_in(path)]


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ('x = f"tokens.{name}"', 1),
        ('x = "catenary.v1.beat.router.r1"', 1),
        ('x = f"{ns}.tool.call.{tool}.{who}"', 1),
        ('x = "tool.result.*.*"', 1),
        ('log.info("turn.done")', 0),
        ('"""On tokens.{tokenizer} come frames."""', 0),
    ],
)
def test_the_subject_rule_sees_subjects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, count: int) -> None:
    monkeypatch.setattr("tests.contract.workspace.ROOT", tmp_path)
    path = tmp_path / "one.py"
    path.write_text(code)
    assert len(list(subjects_in(path))) == count


def is_encoding(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ENCODING):
        return False
    return ast.unparse(node.func).startswith(("msgspec.json.", "json.", "pickle."))


def encoders_in(path: Path) -> Iterator[str]:
    """MessagePack anywhere; and bytes that some other encoder made, where they are sent."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("msgspec.msgpack."):
            yield where(path, node.lineno, "MessagePack is encoded and decoded in codec.py")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _sent_by(path, node)


def _sent_by(path: Path, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and is_encoding(node.value)]
    names = {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in SENDING:
            inside = [part for argument in [*call.args, *call.keywords] for part in ast.walk(argument)]
            if any(is_encoding(part) or (isinstance(part, ast.Name) and part.id in names) for part in inside):
                yield where(path, call.lineno, f"{call.func.attr} of bytes that codec.py did not make")


def test_messages_are_encoded_in_one_module() -> None:
    assert not [found for path in sources() if path.name != "codec.py" for found in encoders_in(path)]


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("def f(): bus.publish(s, json.dumps(x).encode())", 1),
        ("def f():\n    data = msgspec.json.encode(x)\n    nc.request(s, data)", 1),
        ("e = msgspec.msgpack.Encoder()", 1),
        ("def f(): bus.publish(s, encode(x)); print(json.dumps(x))", 0),
    ],
)
def test_the_encoder_rule_sees_encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, count: int) -> None:
    monkeypatch.setattr("tests.contract.workspace.ROOT", tmp_path)
    path = tmp_path / f"{abs(hash(code))}.py"
    path.write_text(code)
    assert len(list(encoders_in(path))) == count


def test_cores_are_pure() -> None:
    cores = [path for path in sources() if "core" in path.relative_to(ROOT).parts[:-1]]
    assert cores
    found = [
        where(path, line, f"imports {module}")
        for path in cores
        for module, line in imports(path)
        if module.partition(".")[0] in IMPURE
    ]
    assert not found


def test_cores_draw_only_from_a_generator_they_are_given() -> None:
    cores = [path for path in sources() if "core" in path.relative_to(ROOT).parts[:-1]]
    drawn = [
        where(path, node.lineno, ast.unparse(node))
        for path in cores
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
        if node.attr != "Random"
    ]
    assert not drawn


def test_each_core_file_states_its_rule() -> None:
    cores = [path for path in sources() if "core" in path.relative_to(ROOT).parts[:-1] and path.name != "__init__.py"]
    assert not [str(path.relative_to(ROOT)) for path in cores if not ast.get_docstring(tree(path))]


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in [*sources(), *own_tests()]}
    assert not {str(path.relative_to(ROOT)): lines for path, lines in lengths.items() if lines > 600}
    assert statistics.median(lines for path, lines in lengths.items() if path.name != "__init__.py") < 150


def test_services_are_wired_in_one_short_file() -> None:
    wiring = [path for path in sources() if path.name == "service.py" and "services" in path.relative_to(ROOT).parts]
    assert len(wiring) == 6
    assert not [str(path) for path in wiring if len(path.read_text().splitlines()) > 150]


def test_test_modules_have_names_of_their_own() -> None:
    names = Counter(path.name for path in own_tests() if path.name.startswith("test_"))
    assert not [name for name, count in names.items() if count > 1]


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_public_surface_is_said(library: str) -> None:
    """`__all__` is sorted, complete and true; `catenary_protocols` is used by its modules."""
    package = importlib.import_module(library)
    names = getattr(package, "__all__", [])
    assert all(hasattr(package, name) for name in names)
    if library != "catenary_protocols":
        assert names
        assert not [
            name
            for name, value in vars(package).items()
            if not name.startswith("_") and name not in names and getattr(value, "__module__", "").startswith(library)
        ]


def test_the_simulator_knows_nobody_by_name() -> None:
    """What it says follows from the prompt: no client, tool or test is named in it."""
    engine = [path for path in sources() if {"sim", "paged"} & set(path.relative_to(ROOT).parts)]
    assert engine
    tests = {path.stem for path in own_tests() if path.stem.startswith("test_")}
    names = [*CLIENTS, *load_tools(), *tests]
    assert not [
        f"{path.relative_to(ROOT)} names {name}"
        for path in engine
        for name in names
        if re.search(rf"\b{re.escape(name)}\b", path.read_text(), re.IGNORECASE)
    ]
