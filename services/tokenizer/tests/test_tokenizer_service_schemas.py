"""Calls of strict tools where no engine is held to a schema: what is told of them, and how long that may take."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from catenary_protocols.bus.messages import CancelTurn
from catenary_protocols.conversation import Tool
from catenary_protocols.ids import TurnKey
from catenary_protocols.turn_events import ArgumentsDelta, CallComplete, Failed, Finished
from catenary_runtime.bus import Bus
from catenary_runtime.testing import NatsServer
from catenary_tokenizer_service.core.schemas import misfit
from catenary_tokenizer_service.testing import Peers, asking, owner_among, turn_request
from catenary_tokenizers import embedded_path, load
from nats.aio.msg import Msg

TOKENIZER = load(embedded_path())
PORT = {
    "type": "object",
    "properties": {"port": {"enum": ["Oslo", "Bergen"]}, "boats": {"type": "integer", "minimum": 0}},
    "required": ["port"],
    "additionalProperties": False,
}
SLOW_S = 2.0
"""Hundreds of times what a check takes at most, on a busy machine."""


def wrong(schema: object, arguments: object) -> str:
    return misfit(json.dumps(schema), json.dumps(arguments))


def test_what_does_not_fit_is_named() -> None:
    assert wrong(PORT, {"port": "Oslo", "boats": 3}) == ""
    assert wrong(PORT, {"port": "Rome"}) == "arguments.port: 'Rome' is not one of ['Oslo', 'Bergen']"
    assert wrong(PORT, {"boats": 1}) == "arguments: 'port' is a required property"
    assert wrong(PORT, {"port": "Oslo", "boats": -1}).startswith("arguments.boats: -1 is less than")
    assert "'sails' was unexpected" in wrong(PORT, {"port": "Oslo", "sails": 1})
    assert len(wrong({"properties": {"a": {"type": "null"}}}, {"a": "x" * 9000})) < 400


def test_a_schema_may_refer_to_itself_and_to_nothing_else() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    assert wrong(tree, {"next": {"next": {}}}) == ""
    assert wrong(tree, {"next": {"next": {"x": 1}}}).startswith("arguments.next.next:")
    assert wrong({"$ref": "http://127.0.0.1:9/schema"}, {}) == ""


@pytest.mark.parametrize("schema", [{"type": "nothing"}, [1], 7, {"$ref": "#"}, {"properties": {"a": {"$ref": "#/b"}}}])
def test_what_is_no_schema_finds_no_fault(schema: object) -> None:
    assert wrong(schema, {"a": 1}) == ""


def misfit_of(depth: int, schema: object) -> str:
    return misfit_of(depth - 1, schema) if depth else misfit(json.dumps(schema), '{"n": 1}')


@pytest.mark.parametrize("key", ["if", "not", "allOf", "anyOf"])
def test_a_schema_that_leads_nowhere_finds_no_fault_wherever_it_is_looked_at(key: str) -> None:
    here = {"$ref": "#/properties/n"}
    schema = {"properties": {"n": {key: [here, here] if key.endswith("Of") else here}}}
    for depth in range(40):  # each meets another limit first, where nothing else ends it
        assert misfit_of(depth, schema) == ""


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e400"])
def test_a_number_that_cannot_be_divided_is_no_fault(number: str) -> None:
    assert misfit(json.dumps({"properties": {"n": {"multipleOf": 0.5}}}), f'{{"n": {number}}}') == ""


def test_a_deep_schema_finds_no_fault() -> None:
    schema: object = {"type": "string"}
    for _ in range(200):
        schema = {"not": schema}
    assert misfit(json.dumps(schema), '{"n": 1}') == ""


@pytest.mark.parametrize("turn", ["not", "oneOf", "if", "contains"])
def test_what_is_not_looked_at_makes_no_fault_elsewhere(turn: str) -> None:
    """Regular expressions are not looked at; whether one fits decides here."""
    inner: dict[str, Any] = {
        "not": {"properties": {"a": {"not": {"pattern": "^y"}}}},
        "oneOf": {"properties": {"a": {"oneOf": [{"pattern": "^y"}, {"pattern": "^x"}]}}},
        "if": {"if": {"properties": {"a": {"pattern": "^y"}}}, "then": {"required": ["b"]}},
        "contains": {"properties": {"a": {"contains": {"pattern": "^y"}, "maxContains": 0}}},
    }
    assert wrong(inner[turn], {"a": ["x"] if turn == "contains" else "x"}) == ""
    assert wrong({"not": {"not": {"required": ["b"]}}}, {"a": "x"}) != ""


DOUBLING: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
LONG = list(range(100_000))


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"$ref": "#/$defs/d0", "$defs": {**DOUBLING, "d40": {}}}, {}),
        ({"properties": {"a": {"pattern": "(a+)+$"}}}, {"a": "a" * 50 + "b"}),
        ({"patternProperties": {"(a+)+$": {}}, "additionalProperties": False}, {"a" * 50 + "b": 1}),
        ({"propertyNames": {"pattern": "(a+)+$"}}, {"a" * 50 + "b": 1}),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [[one] for one in LONG]}),
        ({"properties": {"a": {"items": {"type": "integer"}}}}, {"a": LONG}),
        ({"properties": {"a": {"items": {"enum": LONG[:9000]}}}}, {"a": LONG}),
        ({"properties": {"a": {"items": {"const": LONG[:9000]}}}}, {"a": [LONG[:9000]] * 100}),
        ({"properties": {f"p{n}": {"type": "string"} for n in range(200_000)}}, {}),
        ({"allOf": [{"properties": {"a": {}}}] * 3000}, {"a": LONG}),
    ],
)
def test_it_takes_no_time_whatever_comes(schema: object, arguments: object) -> None:
    given = json.dumps(schema), json.dumps(arguments)
    began = time.process_time()
    assert misfit(*given) == ""
    assert time.process_time() - began < SLOW_S


# --- in a turn ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def on_the_bus(bus: Bus, peers: Peers) -> list[Msg]:
    """Calls that were published."""
    seen: list[Msg] = []

    def keep(msg: Msg) -> None:
        seen.append(msg)
        peers.changed.set()

    await bus.subscribe(bus.subjects.to("tool_call"), keep)
    return seen


@pytest.fixture
async def peers(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[Peers]:
    async with owner_among(nats_server, bus, embedded_path(), tmp_path, guides=False) as (_, peers):
        yield peers


async def called(peers: Peers, arguments: dict[str, Any], *, strict: bool = True) -> tuple[TurnKey, list[Any]]:
    """A turn whose model calls the tool so, to its end."""
    tool = Tool(name="count", schema=json.dumps(PORT), strict=strict)
    request = turn_request(asking("x", tools=(tool,)))
    turn = request.turn
    await peers.submit(request)
    await peers.run_of(turn.turn_id)
    call = json.dumps({"name": "count", "arguments": arguments})
    text = f"<tool_call>\n{call}\n</tool_call>"
    peers.tokens("w1", turn.turn_id, TOKENIZER.encode(text, special=True), cached=0)
    at = len(TOKENIZER.encode(text, special=True)) // 4
    peers.tokens("w1", turn.turn_id, TOKENIZER.encode("<|im_end|>", special=True), offset=at, finish="stop")
    log = peers.events.setdefault(turn.turn_id, [])
    await peers.until(lambda: bool(log) and isinstance(log[-1], Finished | Failed))
    return turn, log


async def test_a_strict_tools_call_that_does_not_fit_ends_the_turn_and_is_nobodys(
    peers: Peers, on_the_bus: list[Msg]
) -> None:
    turn, log = await called(peers, {"port": "Rome"})
    end = log[-1]
    assert isinstance(end, Failed)
    assert (end.error.code, end.error.field) == ("strict_schema_unmet", "tools")
    assert "'count'" in end.error.message
    assert "arguments.port" in end.error.message
    assert any(isinstance(event, ArgumentsDelta) for event in log)
    assert not any(isinstance(event, CallComplete) for event in log)
    await peers.until(lambda: CancelTurn(turn=turn, reason="strict_schema_unmet") in peers.of(CancelTurn))
    await called(peers, {"port": "Oslo"})
    await peers.until(lambda: bool(on_the_bus))
    assert [msg.data.count(b"Rome") for msg in on_the_bus] == [0]


@pytest.mark.parametrize(("arguments", "strict"), [({"port": "Oslo"}, True), ({"port": "Rome"}, False)])
async def test_one_that_fits_or_is_not_strict_is_a_call(peers: Peers, arguments: dict[str, Any], strict: bool) -> None:
    _, log = await called(peers, arguments, strict=strict)
    (call,) = [event for event in log if isinstance(event, CallComplete)]
    assert json.loads(call.arguments) == arguments
    assert isinstance(log[-1], Finished)
