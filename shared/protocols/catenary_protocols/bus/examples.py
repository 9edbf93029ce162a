"""One example of every message, each field set; and the golden files made of them.

    python -m catenary_protocols.bus.examples shared/protocols/tests/golden

writes the files that are missing and touches no other: what an older peer sent must keep decoding, so a golden file is
never made anew.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from catenary_protocols.bus import messages, tool_plane
from catenary_protocols.bus.codec import encode, encode_json
from catenary_protocols.wire import Wire

TOOL_PLANE: tuple[type[Wire], ...] = (
    tool_plane.ToolCall,
    tool_plane.ToolResult,
    tool_plane.ToolCancel,
    tool_plane.Approval,
    tool_plane.TurnFact,
)


def message_types() -> list[type[messages.Message]]:
    """Every message of the mesh's own plane, by name; what a service keeps in a file of its own is none."""
    ours = (kind for kind in messages.Message.__subclasses__() if kind.__module__.startswith(messages.__name__))
    return sorted(ours, key=lambda kind: kind.__name__)


def example(kind: type[Wire]) -> Wire:
    """A value with no field at its default; a tuple of several kinds holds one of each."""
    made: Wire = msgspec.convert(_struct(inspect.type_info(kind)), kind)
    return made


def golden_files() -> Iterator[tuple[str, bytes]]:
    """File name and content of each message's golden file, as this version would write it."""
    for kind in message_types():
        made = example(kind)
        assert isinstance(made, messages.Message)  # noqa: S101  # a message's example is one
        yield f"{kind.__name__}.msgpack", encode(made)
    for other in TOOL_PLANE:
        yield f"{other.__name__}.json", encode_json(example(other))


_PLAIN: dict[type[inspect.Type], Any] = {
    inspect.BoolType: True,
    inspect.IntType: 7,
    inspect.FloatType: 1.5,
    inspect.BytesType: bytes(range(16)),
    inspect.RawType: msgspec.Raw(b'{"city":"Lund"}'),
}


def _struct(info: inspect.Type) -> dict[str, Any]:
    assert isinstance(info, inspect.StructType)  # noqa: S101  # all of ours are
    made = {field.encode_name: _value(field.encode_name, field.type, field.default) for field in info.fields}
    if info.tag_field is not None:
        made[info.tag_field] = info.tag
    return made


def _value(name: str, kind: inspect.Type, default: object = None) -> Any:
    """A value of this kind that is not the default."""
    match kind:
        case inspect.StrType():
            return name
        case inspect.BoolType() if default is True:
            return False
        case inspect.LiteralType(values=values):
            return next(value for value in values if value != default)
        case inspect.UnionType(types=types):
            return _value(name, next(one for one in types if not isinstance(one, inspect.NoneType)))
        case inspect.VarTupleType(item_type=item):
            kinds = item.types if isinstance(item, inspect.UnionType) else (item,)
            return [_value(name, one) for one in kinds if not isinstance(one, inspect.NoneType)]
        case inspect.DictType(key_type=key, value_type=value):
            return {_value(name, key): _value(name, value)}
        case inspect.StructType():
            return _struct(kind)
    return _PLAIN[type(kind)]


def main(directory: Path) -> int:
    """Write what is missing; returns the exit code."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in golden_files():
        path = directory / name
        if not path.exists():
            path.write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
