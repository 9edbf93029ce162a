"""Reading JSON Schemas: references, combinations, types, bounds."""

from collections.abc import Mapping
from math import ceil, floor

Schema = Mapping[str, object]

_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_HINTS = {
    "object": ("properties", "required", "additionalProperties", "minProperties"),
    "array": ("items", "minItems", "prefixItems", "uniqueItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_HUGE = 1e300
DEEPEST = 24
_MOST = 4096
"""Levels that are followed, and schemas looked at in all: one that refers to itself has no end."""


class Resolver:
    """Makes flat schemas of one document."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _MOST

    def flat(self, schema: object, depth: int) -> dict[str, object]:
        """References followed, `allOf` merged, the first of `anyOf` and `oneOf` taken that is more than null."""
        self._left -= 1
        if not isinstance(schema, Mapping) or depth > DEEPEST or self._left < 0:
            return {}
        merged = {key: value for key, value in schema.items() if key not in {"$ref", "allOf", "anyOf", "oneOf"}}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            _merge(merged, self.flat(self._find(reference), depth + 1))
        for part in as_list(schema.get("allOf")):
            _merge(merged, self.flat(part, depth + 1))
        for key in ("anyOf", "oneOf"):
            parts = [self.flat(part, depth + 1) for part in as_list(schema.get(key))]
            if parts:
                _merge(merged, next((part for part in parts if part.get("type") != "null"), parts[0]))
        return merged

    def _find(self, reference: str) -> object:
        found: object = self._root
        for name in reference.removeprefix("#").split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        return found


def type_of(schema: Schema) -> str:
    """The type to make: of several the first that is not null, of none the one its other keys speak of."""
    kinds = [kind for kind in as_many(schema.get("type")) if kind in _TYPES]
    if kinds:
        return str(next((kind for kind in kinds if kind != "null"), kinds[0]))
    return next((kind for kind, keys in _HINTS.items() if any(key in schema for key in keys)), "string")


def bounds(schema: Schema, *, whole: bool) -> tuple[float, float]:
    """Lowest and highest number allowed."""
    low, high = as_number(schema.get("minimum")), as_number(schema.get("maximum"))
    over, under = as_number(schema.get("exclusiveMinimum")), as_number(schema.get("exclusiveMaximum"))
    if not whole and over is not None and under is not None:
        middle = (over + under) / 2
        return max(middle, low if low is not None else middle), min(middle, high if high is not None else middle)
    lows = [low, None if over is None else _beyond(over, 1, whole=whole)]
    highs = [high, None if under is None else _beyond(under, -1, whole=whole)]
    lowest = max((value for value in lows if value is not None), default=-_HUGE)
    highest = min((value for value in highs if value is not None), default=_HUGE)
    return (ceil(lowest), floor(highest)) if whole else (lowest, highest)


def as_list(value: object) -> list[object]:
    """A list, or an empty one for anything else."""
    return value if isinstance(value, list) else []


def as_many(value: object) -> list[object]:
    """A list, or a list of the one value."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def as_count(value: object, default: int) -> int:
    """An integer, or the default."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def as_number(value: object) -> float | None:
    """A number, or None."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not -_HUGE < value < _HUGE:
        return None
    return float(value)


def _beyond(bound: float, way: int, *, whole: bool) -> float:
    if whole:
        return floor(bound) + 1 if way > 0 else ceil(bound) - 1
    return bound + way * max(1.0, abs(bound) / 2**20)


def _merge(into: dict[str, object], other: Mapping[str, object]) -> None:
    for key, value in other.items():
        mine = into.get(key)
        if key == "properties" and isinstance(mine, Mapping) and isinstance(value, Mapping):
            into[key] = {**value, **mine}
        elif key == "required":
            into[key] = [*as_list(mine), *as_list(value)]
        else:
            into.setdefault(key, value)
