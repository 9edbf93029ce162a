"""What a guide lets the simulated model say."""

import json
from typing import Any

import pytest
from catenary_protocols.errors import RequestError
from catenary_worker.engines.sim.constraints import Constraint, read_constraint


def tag(name: str) -> dict[str, Any]:
    begin = f'<tool_call>\n{{"name": "{name}", "arguments": '
    return {"begin": begin, "content": {"type": "json_schema", "json_schema": {"begin": "x"}}, "end": "}\n</tool_call>"}


def triggered(*names: str, **more: object) -> dict[str, Any]:
    form = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [tag(name) for name in names], **more}
    return {"type": "structural_tag", "format": form}


def test_nothing_said_is_nothing_constrained() -> None:
    assert read_constraint({}) == Constraint()
    assert read_constraint({"tool_choice": "auto", "parallel_calls": True, "structural_tag": ""}) == Constraint()


def test_triggered_tags_allow_their_tools_only() -> None:
    constraint = read_constraint({"structural_tag": json.dumps(triggered("tide", "get_weather"))})
    assert [constraint.allows(name) for name in ("tide", "get_weather", "weather", "lamp")] == [
        True,
        True,
        False,
        False,
    ]
    assert (constraint.must_call, constraint.one_call) == (False, False)


def test_at_least_one_and_stop_after_first_are_obeyed() -> None:
    constraint = read_constraint({"structural_tag": triggered("tide", at_least_one=True, stop_after_first=True)})
    assert (constraint.must_call, constraint.one_call) == (True, True)


def test_a_tag_alone_must_be_said() -> None:
    assert read_constraint(
        {"structural_tag": {"type": "structural_tag", "format": {"type": "tag", **tag("t")}}}
    ).must_call


def test_a_schema_alone_is_all_that_is_said() -> None:
    form = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"type": "integer"}}}
    assert read_constraint({"structural_tag": form}) == Constraint(schema={"type": "integer"}, may_call=False)
    assert read_constraint({"json_schema": {"type": "integer"}}).schema == {"type": "integer"}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("none", Constraint(may_call=False)),
        ("required", Constraint(must_call=True)),
        ("tide", Constraint(must_call=True, named="tide")),
    ],
)
def test_a_tool_choice_says_it_shorter(choice: str, expected: Constraint) -> None:
    assert read_constraint({"tool_choice": choice}) == expected


@pytest.mark.parametrize("guide", ["{", "[1]", "3", 3, {"format": []}])
def test_a_guide_that_is_none_is_refused(guide: object) -> None:
    with pytest.raises(RequestError) as refused:
        read_constraint({"structural_tag": guide})
    assert refused.value.field == "guide"
