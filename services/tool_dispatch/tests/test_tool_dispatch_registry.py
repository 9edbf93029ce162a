import json
from pathlib import Path
from typing import Any

import pytest
from catenary_tool_dispatch.arguments import ArgumentCheck, SchemaRefusedError
from catenary_tool_dispatch.executors import build
from catenary_tool_dispatch.registry import RegistryError, load
from hypothesis import given
from hypothesis import strategies as st


def write(folder: Path, text: str) -> Path:
    path = folder / "tools.toml"
    path.write_text(text)
    return path


def test_the_demo_registry_offers_three_tools_that_can_be_built() -> None:
    tools = load()
    assert list(tools) == ["get_weather", "calculator", "current_time"]
    for tool in tools.values():
        build(tool.spec)


def test_a_schema_may_stand_in_a_file_beside(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps({"type": "object", "required": ["x"]}))
    tools = load(write(tmp_path, '[[tools]]\nname = "t"\ncommand = ["cat"]\nschema = "s.json"\n'))
    assert "x" in tools["t"].check(b"{}").problem


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ('[[tool]]\nname = "t"', "tool", "did you mean 'tools'"),
        ('tools = "t"', "tools", "[[tools]]"),
        ("tools = [1]", "tools[0]", "table"),
        ('[[tools]]\nname = "t"\ncomand = ["x"]', "tools[0].comand", "did you mean 'command'"),
        ('[[tools]]\ncommand = ["x"]', "tools[0]", "`name`"),
        ('[[tools]]\nname = ""\ncommand = ["x"]', "tools[0].name", "length"),
        ('[[tools]]\nname = "t"', "tools[0]", "`python`, `command` and `url`"),
        ('[[tools]]\nname = "t"\npython = "a:b"\ncommand = ["x"]', "tools[0]", "`python`, `command` and `url`"),
        ('[[tools]]\nname = "t"\ncommand = ["x"]\ntimeout_s = 0', "tools[0].timeout_s", "> 0"),
        ('[[tools]]\nname = "t"\ncommand = "x"', "tools[0].command", "array"),
        ('[[tools]]\nname = "t"\ncommand = ["x"]\nschema = { type = "objekt" }', "tools[0].schema", "objekt"),
        ('[[tools]]\nname = "t"\ncommand = ["x"]\nschema = "none.json"', "tools[0].schema", "none.json"),
        (
            '[[tools]]\nname = "t"\ncommand = ["x"]\n[[tools]]\nname = "t"\ncommand = ["x"]',
            "tools[1].name",
            "stands twice",
        ),
        ("tools = [", "registry", "tools.toml"),
        ('[[tools]]\nname = "t"\nurl = "ftp://x.org/"', "tools[0].url", "https://"),
        ('[[tools]]\nname = "t"\nurl = "https://"', "tools[0].url", "a host"),
        ('[[tools]]\nname = "t"\nurl = "https://[::1"', "tools[0].url", "IPv6"),
        ('[[tools]]\nname = "t"\nurl = "https://me:secret@x.org/"', "tools[0].url", "`headers`"),
        ('[[tools]]\nname = "t"\nurl = "https://x.org"\nprivate_host = "y.org"', "tools[0].private_host", "'x.org'"),
        ('[[tools]]\nname = "t"\ncommand = ["x"]\nheaders = { a = "PATH" }', "tools[0].headers", "goes with `url`"),
        ('[[tools]]\nname = "t"\nurl = "https://x.org"\nheaders = { Host = "PATH" }', "tools[0].headers", "'Host'"),
        ('[[tools]]\nname = "t"\nurl = "https://x.org"\nheaders = { "a b" = "PATH" }', "tools[0].headers", "'a b'"),
        (
            '[[tools]]\nname = "t"\nurl = "https://x.org"\nheaders = { A = "NOT_SET_HERE" }',
            "tools[0].headers",
            "no variable NOT_SET_HERE",
        ),
        ("mcp = 1", "mcp", "[[mcp]]"),
        ('[[mcp]]\nname = "s"', "mcp[0]", "`command` and `url`"),
        ('[[mcp]]\nname = "s"\ncommand = ["x"]\nprefx = "a"', "mcp[0].prefx", "did you mean 'prefix'"),
        ('[[mcp]]\nname = "s"\ncommand = ["x"]\nenv = ["NOT_SET_HERE"]', "mcp[0].env", "no variable NOT_SET_HERE"),
        ('[[mcp]]\nname = "s"\nurl = "https://x.org"\nlog = "a"', "mcp[0].log", "goes with `command`"),
        ('[[mcp]]\nname = "s"\ncommand = ["x"]\nconcurrency = 0', "mcp[0].concurrency", ">= 1"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_named(tmp_path: Path, text: str, field: str, said: str) -> None:
    with pytest.raises(RegistryError) as caught:
        load(write(tmp_path, text))
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{tmp_path / 'tools.toml'}: ")
    assert said in caught.value.message


@pytest.mark.parametrize("key", ["$ref", "$dynamicRef"])
def test_a_schema_that_refers_outside_itself_is_refused(key: str) -> None:
    with pytest.raises(SchemaRefusedError, match="inside the schema"):
        ArgumentCheck({"properties": {"a": [{key: "https://example.org/schema.json"}][0]}})


def test_a_schema_may_refer_to_itself() -> None:
    check = ArgumentCheck({"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}})
    assert check(b'{"a": 1}').values == {"a": 1}
    assert "arguments.a" in check(b'{"a": "x"}').problem


def test_a_parameter_may_be_called_ref() -> None:
    assert not ArgumentCheck({"properties": {"$ref": {"type": "string"}}})(b'{"$ref": "x"}').problem


@given(st.binary())
def test_no_bytes_make_the_check_raise(data: bytes) -> None:
    check = ArgumentCheck({"type": "object", "properties": {"a": {"type": "integer"}}})
    arguments = check(data)
    assert arguments.problem or isinstance(arguments.values, dict)


def test_a_problem_is_told_in_a_few_words() -> None:
    problem = ArgumentCheck({"properties": {"a": {"type": "integer"}}})(b'{"a": "%s"}' % (b"x" * 100_000)).problem
    assert problem.startswith("arguments.a: 'xxx")
    assert len(problem) < 2000


def _called_from(depth: int, schema: dict[str, Any], raw: bytes) -> str:
    return _called_from(depth - 1, schema, raw) if depth else ArgumentCheck(schema)(raw).problem


@pytest.mark.parametrize("key", ["if", "not", "allOf", "anyOf"])
def test_a_schema_that_leads_nowhere_is_a_problem_wherever_it_is_looked_at(key: str) -> None:
    here = {"$ref": "#/properties/n"}
    schema = {"properties": {"n": {key: [here, here] if key.endswith("Of") else here}}}
    for depth in range(40):  # each meets another limit first, where nothing else ends it
        assert "cannot be checked" in _called_from(depth, schema, b'{"n": 1}')


def test_numbers_that_cannot_be_divided_are_a_problem() -> None:
    assert (
        "cannot be checked"
        in ArgumentCheck({"properties": {"n": {"multipleOf": 0.01}}})(b'{"n": 1%s}' % (b"0" * 400)).problem
    )


def test_a_deep_schema_is_refused() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        schema = {"not": schema}
    with pytest.raises(SchemaRefusedError, match="64 levels"):
        ArgumentCheck(schema)


def test_deep_arguments_are_a_problem_not_a_crash() -> None:
    recursive = {"$defs": {"n": {"properties": {"a": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}
    for depth in (400, 100_000):
        assert ArgumentCheck(recursive)(b'{"a":' * depth + b"1" + b"}" * depth).problem
