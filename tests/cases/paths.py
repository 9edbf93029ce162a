"""The little path language of case files: `$.events[?choices[0].finish_reason].data[-1]`, over plain JSON values.

`[*]`, a slice or a filter turns what follows into a map over elements. `[?x]` keeps elements that have `x` (not null), or
whose event name or `type` contains it; `[?x=='y']` those where it equals `y`. What is not there is None.
"""

import re
from dataclasses import dataclass
from typing import Any

_STEP = re.compile(
    r"\.(?P<key>\w+)"
    r"|\[(?P<index>-?\d+)\]"
    r"|\[(?P<low>-?\d*):(?P<high>-?\d*)\]"
    r"|\[(?P<every>\*)\]"
    r"|\[\?(?P<wanted>(?:'[^']*'|[^\[\]']|\[\d+\])+)\]"
)
_EQUALS = re.compile(r"^(?P<path>.+?)==?'(?P<text>.*)'$")


class PathError(ValueError):
    """The path is not in the language."""


@dataclass
class _Many:
    items: list[Any]


def find(document: Any, path: str) -> Any:
    """The value at a path; a list for a path that maps."""
    if not path.startswith("$"):
        raise PathError(f"{path!r} does not begin with $")
    at, value = 1, document
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise PathError(f"{path!r} at {at}")
        value = _take(value, step)
        at = step.end()
    return value.items if isinstance(value, _Many) else value


def _take(value: Any, step: re.Match[str]) -> Any:
    part = step.groupdict()
    if part["key"] is not None:
        return _each(value, lambda one: one.get(part["key"]) if isinstance(one, dict) else None)
    if part["index"] is not None:
        return _each(value, lambda one: _at(one, int(part["index"])))
    if part["wanted"] is not None:
        return _Many([one for one in _list(value) if _has(one, part["wanted"])])
    if part["every"] is not None:
        return _Many(_list(value))
    low, high = (int(part[side]) if part[side] else None for side in ("low", "high"))
    return _Many(_list(value)[low:high])


def _each(value: Any, take: Any) -> Any:
    return _Many([take(one) for one in value.items]) if isinstance(value, _Many) else take(value)


def _list(value: Any) -> list[Any]:
    inner = value.items if isinstance(value, _Many) else value
    return inner if isinstance(inner, list) else []


def _at(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, list) and -len(value) <= index < len(value) else None


def _has(one: Any, wanted: str) -> bool:
    inner = one.get("data") if isinstance(one, dict) and "event" in one else one
    if equals := _EQUALS.match(wanted):
        path = equals["path"]
        return bool(find(one if path == "data" else inner, f"$.{path}") == equals["text"])
    if re.fullmatch(r"\w+(?:\[\d+\]|\.\w+)*", wanted) and find(inner, f"$.{wanted}") is not None:
        return True
    names = [one.get("event"), find(inner, "$.type"), find(inner, "$.delta.type")] if isinstance(one, dict) else []
    return any(isinstance(name, str) and wanted in name for name in names)
