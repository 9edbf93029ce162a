"""The demo tools: no side effects, bounded work. They raise `ToolError` with a message made for the model."""

import ast
import operator
from collections.abc import Callable
from datetime import datetime
from hashlib import blake2b
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from catenary_protocols.errors import ToolError

_SKIES = ("clear", "partly cloudy", "overcast", "light rain", "showers", "fog", "snow", "windy")
_MAX_BITS = 4096
_MAX_NODES = 200
Number = int | float
_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> dict[str, object]:
    """Weather made from the city's name, so that it never changes."""
    seed = blake2b(city.strip().casefold().encode(), digest_size=3).digest()
    celsius = seed[0] % 40 - 8
    return {
        "city": city,
        "temperature": celsius if unit == "celsius" else round(celsius * 9 / 5 + 32),
        "unit": unit,
        "sky": _SKIES[seed[1] % len(_SKIES)],
        "humidity_percent": 30 + seed[2] % 65,
    }


def current_time(timezone: str = "UTC") -> dict[str, object]:
    """The time in an IANA zone."""
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ToolError(f"no time zone is called {timezone!r}; use an IANA name such as Europe/Oslo") from None
    now = datetime.now(zone)
    return {"timezone": timezone, "time": now.isoformat(timespec="seconds"), "weekday": now.strftime("%A")}


def calculator(expression: str) -> dict[str, object]:
    """Exact arithmetic on a bounded expression with bounded numbers."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolError(f"{expression!r} is not an arithmetic expression") from None
    if sum(1 for _ in ast.walk(tree)) > _MAX_NODES:
        raise ToolError(f"the expression has more than {_MAX_NODES} parts")
    try:
        return {"expression": expression, "result": _value(tree.body)}
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except OverflowError:
        raise ToolError("the result is too large") from None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(number)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _BINARY:
            return _binary(type(op), _value(left), _value(right))
        case _:
            raise ToolError("only numbers, + - * / // % ** and parentheses are understood")


def _binary(kind: type[ast.operator], left: Number, right: Number) -> Number:
    if kind is ast.Pow:
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > _MAX_BITS:
            raise ToolError("the power is too large")
        if left < 0 and not float(right).is_integer():
            raise ToolError("a fractional power of a negative number is not real")
    return _bounded(_BINARY[kind](left, right))


def _bounded(number: Number) -> Number:
    if isinstance(number, int) and number.bit_length() > _MAX_BITS:
        raise ToolError("the number is too large")
    if isinstance(number, float) and (number != number or number in {float("inf"), float("-inf")}):  # noqa: PLR0124
        raise ToolError("the result is not a finite number")
    return number
