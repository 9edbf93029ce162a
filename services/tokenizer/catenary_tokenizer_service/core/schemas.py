"""Arguments against the schema of a strict tool, where no engine could be held to it.

The rule: both come from strangers, so the work is bounded: `STEPS` steps, and no regular expressions. What was not
looked at is not found fault with. References stay inside the schema.
"""

import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

STEPS = 5_000
"""Keywords looked at in one check."""
LEVELS = 100
"""Keywords inside one another. Where Python's own limit is met, the validator's map of references goes down with it."""
_LONGEST_SCHEMA = 1 << 16
_DEEPEST_SCHEMA = 64
_LONGEST_MESSAGE = 300
_SCHEMAS = 256
_EXPRESSIONS = frozenset({"pattern", "patternProperties", "unevaluatedItems", "unevaluatedProperties"})
_TURNING = frozenset({"contains", "if", "not", "oneOf"})
"""With these, a fault that is not found inside can be one outside."""
_STEP_CHARS = 8
"""Of a value that is compared."""
_PAIRS = 100
"""Items beyond which nobody looks whether two are the same."""
Keyword = Callable[[Any, Any, Any, dict[str, Any]], Iterator[ValidationError] | None]


@dataclass(slots=True)
class _Work:
    """Steps that are left, and how many keywords the check is inside of: all, and turning ones."""

    steps: int = STEPS
    levels: int = 0
    turned: int = 0


_work: ContextVar[_Work] = ContextVar("work")


class _UndecidedError(Exception):
    """Nobody can say, in that many steps and levels."""


def misfit(schema: str, arguments: str) -> str:
    """What is wrong with the arguments (JSON text of an object); "" for nothing that was found."""
    validator = _compiled(schema) if len(schema) <= _LONGEST_SCHEMA else None
    if validator is None:
        return ""
    _work.set(_Work())
    try:
        worst = next(validator.iter_errors(json.loads(arguments)), None)
    except (ArithmeticError, RecursionError, Unresolvable, ValueError, _UndecidedError):
        return ""
    if worst is None:
        return ""
    said = f"arguments{worst.json_path.removeprefix('$')}: {worst.message}"
    return said if len(said) <= _LONGEST_MESSAGE else f"{said[:_LONGEST_MESSAGE]}…"


@lru_cache(_SCHEMAS)
def _compiled(schema: str) -> Any:
    """None for what is no schema."""
    if max(accumulate((one in "[{") - (one in "]}") for one in schema), default=0) > _DEEPEST_SCHEMA:
        return None
    try:
        read = json.loads(schema)
        Draft202012Validator.check_schema(read)
    except (RecursionError, SchemaError, ValueError):
        return None
    return _Bounded(read, registry=Registry())


def _bounded(name: str, check: Keyword) -> Keyword:
    def counted(validator: Any, wanted: Any, value: Any, schema: dict[str, Any]) -> Iterator[ValidationError]:
        work = _work.get()
        work.steps -= len(repr(wanted)) // _STEP_CHARS if name in {"const", "enum"} else 1
        skipped = _skipped(name, value, schema)
        if work.steps < 0 or work.levels >= LEVELS or (skipped and work.turned):
            raise _UndecidedError
        if not skipped:
            turns = name in _TURNING
            work.turned += turns
            work.levels += 1
            try:
                yield from check(validator, wanted, value, schema) or ()
            finally:
                work.turned -= turns
                work.levels -= 1

    return counted


def _skipped(name: str, value: object, schema: dict[str, Any]) -> bool:
    if name == "additionalProperties":
        return "patternProperties" in schema
    return name in _EXPRESSIONS or (name == "uniqueItems" and isinstance(value, list) and len(value) > _PAIRS)


_Bounded = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {name: _bounded(name, check) for name, check in Draft202012Validator.VALIDATORS.items()}
)
