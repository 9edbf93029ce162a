"""JSON of calls, compared by value: clients send it back spelled anew (`{"a":1}`, `9000.0` as `9000`)."""

from __future__ import annotations

import json
from collections.abc import Sequence

__all__ = ["common_length", "same_but_spelling", "same_json"]

_decode = json.JSONDecoder().raw_decode


def same_but_spelling(rendered: str, generated: str, calls: Sequence[object]) -> bool:
    """Whether two texts differ only in how JSON objects of these calls are spelled.

    Args:
        rendered: from the template.
        generated: from the model.
        calls: arguments of the calls, as JSON text or parsed.
    """
    while rendered != generated:
        ends = _call_at_difference(rendered, generated, calls)
        if ends is None:
            return False
        rendered, generated = rendered[ends[0] :], generated[ends[1] :]
    return True


def common_length(left: str, right: str) -> int:
    """How many characters two texts begin with in common."""
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def same_json(left: object, right: object) -> bool:
    """Equality of JSON values: true is not 1, 1.0 is 1, members have no order."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_json, left, right))
    return left == right and (type(left) is type(right) or isinstance(left, int | float))


def _call_at_difference(rendered: str, generated: str, calls: Sequence[object]) -> tuple[int, int] | None:
    """The ends of the first call's object in which the texts differ while its value is one."""
    common = common_length(rendered, generated)
    start = rendered.find("{", 0, common)
    while start >= 0:
        try:
            left, left_end = _decode(rendered, start)
            right, right_end = _decode(generated, start)
        except (ValueError, RecursionError):
            pass
        else:
            if left_end > common and same_json(left, right) and _is_call(left, calls):
                return left_end, right_end
        start = rendered.find("{", start + 1, common)
    return None


def _is_call(value: object, calls: Sequence[object]) -> bool:
    candidates = [value]
    if isinstance(value, dict):
        candidates += [value[key] for key in ("arguments", "parameters", "args") if key in value]
    return any(same_json(candidate, _parsed(call)) for candidate in candidates for call in calls)


def _parsed(arguments: object) -> object:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
