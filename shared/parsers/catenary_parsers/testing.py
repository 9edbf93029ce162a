"""Runs a case of model output: five ways through the text, and if asked a sixth, with markers as control tokens.

A case is a dict: `family` and `reasoning_family` name the format and the style of thinking, `think_start` what the
template left behind, `tools` the request's tools, `chunks` the pieces of text, `finish` the reason for the end, and
`expect` the `reasoning`, `content` and `tool_calls` that a client must end up with, in every run.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from catenary_parsers.engine import markers_of, open_parser
from catenary_parsers.events import (
    ArgumentsDelta,
    Malformed,
    ReasoningDelta,
    TextDelta,
    ToolCallBegun,
    ToolCallComplete,
    ToolCallCut,
)
from catenary_parsers.grammar import ToolSpec
from catenary_parsers.registry import format_named

if TYPE_CHECKING:
    from catenary_parsers.events import Event

_LONG = 6000
FAMILIES = {"dsml": "deepseek_v3_2", "nemotron": "nemotron_deci"}
STYLES = {"deepseek": "deepseek_r1"}


@dataclass
class Call:
    """A call as a client assembles it from deltas."""

    id: str
    name: str
    text: str = ""
    state: str = "open"
    value: Any = None


@dataclass
class Turn:
    """What a client has at the end of a turn."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)


def run_case(case: dict[str, Any], *, by_tokens: bool = False, step: int = 1) -> None:
    """Run one case every way.

    Args:
        case: the case.
        by_tokens: also the sixth way.
        step: cut the text in two at every position, or at every second, third, …

    Raises:
        AssertionError: a run deviates from what the case expects, or two runs from each other.
    """
    pieces = [expand(chunk) for chunk in case["chunks"]]
    text = "".join(pieces)
    ways = {"given chunks": pieces, "one character each": list(text), "one chunk": [text]}
    results = {}
    for way, chunks in ways.items():
        results[way] = checked(case, chunks, way)
    whole = comparable(results["one chunk"])
    for way, turn in results.items():
        _must(comparable(turn) == whole, f"{way}: {comparable(turn)} is not {whole}, the result in one chunk")
    for cut in _places(text, step):
        way = f"cut at {cut}"
        turn = checked(case, [text[:cut], text[cut:]], way)
        _must(comparable(turn) == whole, f"{way}: {comparable(turn)} is not {whole}, the result in one chunk")
    if by_tokens:
        run_by_tokens(case, text)


def _places(text: str, step: int) -> range | list[int]:
    """Where to cut: everywhere; in a long text near both ends and at 2,000 places between."""
    if len(text) <= _LONG:
        return range(1, len(text), step)
    middle = range(_LONG // 4, len(text) - _LONG // 4, max(1, len(text) // 2000))
    return [*range(1, _LONG // 4), *middle, *range(len(text) - _LONG // 4, len(text))]


def run_by_tokens(case: dict[str, Any], text: str) -> None:
    """The sixth way: every marker that is a control token in the format's models comes as one."""
    tokens = markers_of(family(case), style(case))
    if not tokens or any(text.endswith(token[:n]) for token in tokens for n in range(2, len(token))):
        return  # a token is never cut in two
    pattern = "(" + "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)) + ")"
    pieces = [piece for piece in re.split(pattern, text) if piece]
    turn = checked(case, pieces, "control tokens", tokens)
    single = [part for piece in pieces for part in ([piece] if piece in tokens else piece)]
    _must(
        comparable(checked(case, single, "control tokens, one character each", tokens)) == comparable(turn),
        "the control tokens in smaller pieces give another result",
    )


def family(case: dict[str, Any]) -> str:
    """The case's format."""
    name = str(case["family"])
    return FAMILIES.get(name, name)


def style(case: dict[str, Any]) -> str:
    """The case's style of thinking."""
    name = case.get("reasoning_family") or format_named(family(case)).reasoning
    return STYLES.get(str(name), str(name))


def checked(case: dict[str, Any], chunks: list[str], way: str, special: frozenset[str] = frozenset()) -> Turn:
    """One run, checked against what the case expects."""
    tools = [
        ToolSpec(tool["function"]["name"], tool["function"].get("parameters") or {}) for tool in case.get("tools") or ()
    ]
    parser = open_parser(
        family(case), tools=tools, reasoning=style(case), thinking=case.get("think_start", "none"), special=special
    )
    events: list[Event] = []
    for chunk in chunks:
        events += parser.special(0, chunk) if chunk in special else parser.feed(chunk)
    events += parser.close(case.get("finish", "stop"))
    try:
        turn = assemble(events)
        compare(case, turn)
    except AssertionError as deviation:
        raise AssertionError(f"{way}: {deviation}\n  events: {events}") from None
    return turn


def assemble(events: list[Event]) -> Turn:
    """What a client makes of the events, with the rules S1 to S3 and S6 checked on the way."""
    turn = Turn()
    for event in events:
        match event:
            case TextDelta(text):
                _must(text, "an empty delta")
                turn.content += text
            case ReasoningDelta(text):
                _must(text, "an empty delta")
                turn.reasoning += text
            case ToolCallBegun(index, call_id, name):
                _must(index == len(turn.calls), f"S2: index {index} where {len(turn.calls)} is next")
                _must(name, "S1: a call without a name")
                turn.calls.append(Call(call_id, name))
            case ArgumentsDelta(index, text):
                _must(index == len(turn.calls) - 1, f"S2: a delta of call {index} while {len(turn.calls) - 1} is open")
                _must(turn.calls[index].state == "open", "S3: a delta of an ended call")
                turn.calls[index].text += text
            case ToolCallComplete(index, call_id, name, arguments, value):
                call = turn.calls[index]
                _must((call.id, call.name, call.text) == (call_id, name, arguments), f"S3: {event} is not {call}")
                _must(json.loads(arguments) == value or "NaN" in arguments, f"S3: {arguments} is not {value}")
                call.state, call.value = "complete", value
            case ToolCallCut(index, arguments):
                _must(turn.calls[index].text == arguments, f"S3: {event} is not {turn.calls[index]}")
                turn.calls[index].state = "cut"
            case Malformed(raw, reason):
                _must(reason, "Malformed without a reason")
                turn.content += raw
    _must(all(call.state != "open" for call in turn.calls), "a call neither completed nor cut")
    ids = [call.id for call in turn.calls if call.id]
    _must(len(set(ids)) == len(ids), f"S2: ids repeat: {ids}")
    for text in (turn.content, turn.reasoning, *(call.text for call in turn.calls)):
        text.encode()  # S6: raises on a surrogate
    return turn


def compare(case: dict[str, Any], turn: Turn) -> None:
    """Hold the turn against the case's expectation, or one of those that are accepted too."""
    expect = {key: value for key, value in case["expect"].items() if key not in {"notes", "also_ok"}}
    deviations = []
    for other in ({}, *case["expect"].get("also_ok", ())):
        deviation = deviates({**expect, **other}, turn, case.get("finish", "stop"))
        if not deviation:
            return
        deviations.append(deviation)
    raise AssertionError("; or ".join(deviations))


def deviates(expect: dict[str, Any], turn: Turn, finish: str) -> str:  # noqa: C901 - a line per way to differ
    """How the turn differs from `expect`, or an empty string."""
    for key, got in (("content", turn.content), ("reasoning", turn.reasoning)):
        wanted = expand(expect.get(key))
        if blank(got) != blank(wanted):
            return f"{key} is {got!r}, not {wanted!r}"
    # A call that broke in the middle is no call; one that the token limit cut may be shown (P2).
    calls = [call for call in turn.calls if call.state == "complete" or finish != "stop"]
    wanted_calls = expect.get("tool_calls") or []
    if len(calls) != len(wanted_calls):
        return f"{len(calls)} calls, not {len(wanted_calls)}: {calls}"
    for number, (call, wanted) in enumerate(zip(calls, wanted_calls, strict=True)):
        if call.name != wanted["name"]:
            return f"call {number} is {call.name!r}, not {wanted['name']!r}"
        if "id" in wanted and call.id != wanted["id"]:
            return f"call {number} has id {call.id!r}, not {wanted['id']!r}"
        if "arguments_partial" in wanted:
            if not re.sub(r"\s", "", wanted["arguments_partial"]).startswith(re.sub(r"\s", "", call.text)):
                return f"call {number} has {call.text!r}, no beginning of {wanted['arguments_partial']!r}"
        elif call.state != "complete" or not same(expand(wanted["arguments"]), call.value):
            return f"call {number} has {call.text!r}, not {wanted['arguments']!r}"
    reason = "tool_calls" if finish == "stop" and calls else finish
    if expect.get("finish_reason", reason) != reason:
        return f"finish reason is {reason}, not {expect['finish_reason']}"
    return ""


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are the same: true is not 1, and halves of surrogate pairs are U+FFFD."""
    if isinstance(left, str) and isinstance(right, str):
        return whole_characters(left) == whole_characters(right)
    if isinstance(left, bool) or isinstance(right, bool) or left is None or right is None:
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right) and isinstance(left, str) == isinstance(right, str)


def whole_characters(text: str) -> str:
    """`text` with halves of surrogate pairs as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def blank(text: str | None) -> str:
    """`text` with white space collapsed and trimmed; nothing is empty."""
    return " ".join((text or "").split())


def comparable(turn: Turn) -> tuple[str, str, list[tuple[str, str, str, str]]]:
    """What must not depend on how the text was cut."""
    return turn.reasoning, turn.content, [(call.id, call.name, call.text, call.state) for call in turn.calls]


def _must(holds: object, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def expand(value: Any) -> Any:
    """Write out the repeat notation."""
    if isinstance(value, dict):
        if "$repeat" in value:
            return str(value["$repeat"]) * int(value["$times"])
        if "repeat" in value and "times" in value:
            return str(value["repeat"]) * int(value["times"])
        return {key: expand(item) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item) for item in value]
    return value
