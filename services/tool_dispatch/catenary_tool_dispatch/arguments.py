"""Arguments of a call against the tool's JSON Schema (draft 2020-12), before anything runs.

A schema is compiled once. References stay inside the document: nothing is ever fetched.
"""

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import msgspec
from catenary_protocols.errors import CatenaryError
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

_REFERENCES = ("$ref", "$dynamicRef")
_LONGEST = 1000
_DEEPEST = 100
"""Levels of arrays and objects: parsers of tools give up, or go down, at some hundreds."""
_DEEPEST_SCHEMA = 64
_LEVELS = 100
"""Keywords inside one another. Where Python's own limit is met, the validator's map of references goes down with it."""
Keyword = Callable[[Any, Any, Any, dict[str, Any]], Iterator[ValidationError] | None]


class SchemaRefusedError(CatenaryError):
    """This is no schema that can be used; the message says why."""

    default_code = "invalid_value"


@dataclass(frozen=True, slots=True)
class Arguments:
    """Checked arguments.

    Attributes:
        values: by parameter name; empty when there is a problem.
        problem: for the model: what is wrong, or "".
    """

    values: dict[str, Any]
    problem: str = ""


class ArgumentCheck:
    """A compiled schema; raises `SchemaRefusedError` when made from a bad one."""

    def __init__(self, schema: dict[str, Any]) -> None:
        if _deeper(schema, _DEEPEST_SCHEMA):
            raise SchemaRefusedError(f"the schema is nested more than {_DEEPEST_SCHEMA} levels deep")
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise SchemaRefusedError(f"not a JSON Schema: {error.message} at {error.json_path}") from error
        for reference in _references(schema):
            if not reference.startswith("#"):
                raise SchemaRefusedError(f"references must stay inside the schema: {reference!r} does not")
        self._validator = _Bounded(schema, registry=Registry())

    def __call__(self, raw: bytes) -> Arguments:
        """Decode and check; bad arguments are a value, never an exception."""
        try:
            values = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return Arguments({}, f"the arguments are not JSON: {error}")
        if not isinstance(values, dict):
            return Arguments({}, f"the arguments must be a JSON object, not {type(values).__name__}")
        if _deeper(values, _DEEPEST):
            return Arguments({}, f"the arguments are nested more than {_DEEPEST} levels deep")
        _work.set(_Work())
        try:
            worst = best_match(self._validator.iter_errors(values))
        except (Unresolvable, RecursionError, ArithmeticError) as error:  # some numbers cannot be divided
            return Arguments({}, f"the arguments cannot be checked: {type(error).__name__}")
        if worst is not None:
            problem = f"arguments{worst.json_path.removeprefix('$')}: {worst.message}"
            return Arguments({}, problem if len(problem) <= _LONGEST else f"{problem[:_LONGEST]}…")
        return Arguments(values)


@dataclass(slots=True)
class _Work:
    """How many keywords a check is inside of."""

    levels: int = 0


_work: ContextVar[_Work] = ContextVar("work")


def _bounded(check: Keyword) -> Keyword:
    def counted(validator: Any, wanted: Any, value: Any, schema: dict[str, Any]) -> Iterator[ValidationError]:
        work = _work.get()
        if work.levels >= _LEVELS:
            raise RecursionError
        work.levels += 1
        try:
            yield from check(validator, wanted, value, schema) or ()
        finally:
            work.levels -= 1

    return counted


_Bounded = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {name: _bounded(check) for name, check in Draft202012Validator.VALIDATORS.items()}
)


def _deeper(value: dict[str, Any], levels: int) -> bool:
    level: list[dict[str, Any] | list[Any]] = [value]
    for _ in range(levels):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _references(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in _REFERENCES and isinstance(value, str):
                yield value
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)
