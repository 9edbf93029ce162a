"""The operators of case files' assertions. An assertion that does not hold raises `AssertionError` with its `say`."""

import json
import re
from collections.abc import Callable
from typing import Any

from tests.cases import responses
from tests.cases.paths import find

TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "object": dict,
    "array": list,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
Check = Callable[[Any, Any], bool]


def unfold(value: Any) -> Any:
    """Repeat notation written out: `{"$repeat": "ab", "$times": 3}` is `ababab`."""
    if isinstance(value, dict):
        if "$repeat" in value:
            return value["$repeat"] * value["$times"]
        return {key: unfold(one) for key, one in value.items()}
    return [unfold(one) for one in value] if isinstance(value, list) else value


def _eq(value: Any, wanted: Any) -> bool:
    return bool(value == wanted) or (isinstance(value, list) and value == [wanted])


def _subset(value: Any, wanted: Any) -> bool:
    if isinstance(value, list) and isinstance(wanted, dict):
        return bool(value) and all(_subset(one, wanted) for one in value)
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(key in value and _subset(value[key], wanted[key]) for key in wanted)
    return bool(value == wanted)


def _order(value: Any, wanted: Any) -> bool:
    """The wanted items occur in this order, others may lie between."""
    at = 0
    for one in wanted:
        try:
            if isinstance(value, list):
                at = next(place for place, item in enumerate(value) if place >= at and one in (item, *_names(item))) + 1
            else:
                at = value.index(one, at) + len(one)
        except (StopIteration, ValueError, AttributeError):
            return False
    return True


def _names(event: Any) -> tuple[Any, ...]:
    """The names an event goes by."""
    if not isinstance(event, dict):
        return ()
    return event.get("event"), find(event, "$.data.type"), find(event, "$.data.delta.type")


def _json_eq(value: Any, wanted: Any) -> bool:
    return bool((json.loads(value) if isinstance(value, str) else value) == wanted)


def _texts(value: Any) -> list[str]:
    return [str(one) for one in (value if isinstance(value, list) else [value]) if one is not None]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _finish_last(events: Any, _: Any) -> bool:
    chunks = [event["data"] for event in events if isinstance(event["data"], dict)]
    ends = [at for at, chunk in enumerate(chunks) if find(chunk, "$.choices[0].finish_reason")]
    said = [at for at, chunk in enumerate(chunks) if any(map(_says, find(chunk, "$.choices") or []))]
    return len(ends) == 1 and (not said or max(said) <= ends[0])


def _says(choice: Any) -> bool:
    return bool(choice["delta"].get("content") or choice["delta"].get("tool_calls"))


def _call_deltas(events: Any) -> list[dict[str, Any]]:
    return [
        call
        for event in events
        if isinstance(event["data"], dict)
        for choice in event["data"].get("choices", ())
        for call in choice["delta"].get("tool_calls") or ()
    ]


def _first_complete(events: Any, _: Any) -> bool:
    firsts = {call["index"]: call for call in reversed(_call_deltas(events))}
    return bool(firsts) and all(
        call.get("id") and call.get("type") == "function" and isinstance(call["function"].get("name"), str)
        for call in firsts.values()
    )


def _not_repeated(events: Any, _: Any) -> bool:
    seen: set[int] = set()
    for call in _call_deltas(events):
        if call["index"] in seen and (call.get("id") or call["function"].get("name")):
            return False
        seen.add(call["index"])
    return True


def _blocks_sequential(events: Any, _: Any) -> bool:
    """Blocks 0, 1, 2, …; deltas only of the one that is open; one at a time."""
    begun, open_block = 0, None
    for data in (event["data"] for event in events if str(event["event"]).startswith("content_block")):
        if data["type"] == "content_block_start":
            if open_block is not None or data["index"] != begun:
                return False
            open_block, begun = begun, begun + 1
        elif data["index"] != open_block:
            return False
        elif data["type"] == "content_block_stop":
            open_block = None
    return begun > 0 and open_block is None


def _message_stop_last(events: Any, _: Any) -> bool:
    names = [event["event"] for event in events]
    return names.count("message_stop") == 1 and names[-1] == "message_stop"


def _usage_sum(usage: Any, _: Any) -> bool:
    return bool(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"])


def _all(of: Callable[[Any, Any], bool]) -> Check:
    return lambda value, wanted: isinstance(value, list) and all(of(one, wanted) for one in value)


CHECKS: dict[str, Check] = {
    **responses.CHECKS,
    "eq": _eq,
    "ne": lambda value, wanted: bool(value != wanted),
    "in": lambda value, wanted: value in wanted,
    "ge": lambda value, wanted: bool(value >= wanted),
    "len": lambda value, wanted: len(value or ()) == wanted,
    "count": lambda value, wanted: len(value or ()) == wanted,
    "type": lambda value, wanted: isinstance(value, TYPES[wanted]),
    "present": lambda value, _: value is not None,
    "absent": lambda value, _: value is None,
    "absent_or_empty": lambda value, _: not value,
    "blank": lambda value, _: not (value or "").strip(),
    "contains": lambda value, wanted: value is not None and wanted in value,
    "not_contains": lambda value, wanted: wanted not in (value or ""),
    "none_contains": lambda value, wanted: not any(wanted in one for one in _texts(value)),
    "regex": lambda value, wanted: re.search(wanted, _plain(value)) is not None,
    "not_regex": lambda value, wanted: re.search(wanted, _plain(value)) is None,
    "subset": _subset,
    "unique": lambda value, _: len({_plain(one) for one in value}) == len(value),
    "all_eq": _all(lambda one, wanted: bool(one == wanted)),
    "all_in": _all(lambda one, wanted: one in wanted),
    "all_null": _all(lambda one, _: one is None),
    "all_same": lambda value, _: len({_plain(one) for one in value if one is not None}) == 1,
    "all_json": _all(lambda one, _: isinstance(json.loads(one), dict)),
    "order": _order,
    "consecutive": lambda value, start: value == list(range(start, start + len(value))),
    "json_eq": _json_eq,
    "event_eq_type": lambda events, _: bool(events) and all(one["event"] == one["data"]["type"] for one in events),
    "blocks_sequential": _blocks_sequential,
    "message_stop_last": _message_stop_last,
    "finish_last": _finish_last,
    "usage_sum": _usage_sum,
    "first_tool_delta_complete": _first_complete,
    "no_repeated_name_or_id": _not_repeated,
    "note": lambda _, __: True,
}
_OF_ONE_ANSWER = frozenset({"id", "signature", "created", "created_at", "completed_at", "encrypted_content", "usage"})


def _same(value: Any, other: Any) -> bool:
    """The same answer, given twice: what belongs to one giving of it aside."""
    return bool(_lasting(value) == _lasting(other))


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(one) for key, one in value.items() if key not in _OF_ONE_ANSWER}
    return [_lasting(one) for one in value] if isinstance(value, list) else value


COMPARED: dict[str, Check] = {
    "same_as_nonstream": _same,
    "eq_path": _eq,
    "lt_path": lambda value, other: bool(value < other),
    "ge_path": lambda value, other: bool(value >= other),
    "startswith_path": lambda value, other: bool(value.startswith(other)),
}


def check(document: dict[str, Any], assertion: dict[str, Any]) -> None:
    """One assertion against the document that paths look into; raises `AssertionError`."""
    name, path = str(assertion["op"]), str(assertion["path"])
    if condition := re.fullmatch(r"(\w+)_if_(\d{3})", name):
        if document["status"] != int(condition[2]):
            return
        name = condition[1]
    value = find(document, path)
    if name in COMPARED:
        parts = [find(document, part) for part in assertion["other"].split("+")]
        other = parts[0] if len(parts) == 1 else "".join(parts)
        held = COMPARED[name](value, other)
        wanted = other
    elif name in CHECKS:
        wanted = unfold(assertion.get("value"))
        held = CHECKS[name](value, wanted)
    else:
        raise AssertionError(f"{assertion['say']}: the operator {name} is not supported yet")
    assert held, f"{assertion['say']}: {path} is {_short(value)}, wanted {name} {_short(wanted)}"


def _short(value: Any) -> str:
    text = _plain(value)
    return text if len(text) < 200 else f"{text[:120]} … {text[-60:]}"  # an ellipsis for the reader
