"""A service of another version: `python -m tests.faults.skewed older|newer MODULE FLAG…` runs it.

The older one knows the fields that the golden files of the messages hold, and no others: it neither sends nor reads what
came later. The newer one sends, in every value that has a name, fields that nobody knows yet.
"""

import runpy
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from catenary_protocols.bus import codec
from catenary_protocols.bus.examples import TOOL_PLANE, message_types

GOLDEN = Path(__file__).parents[2] / "shared" / "protocols" / "tests" / "golden"
UNKNOWN = {"mood": "good", "since": [{"deep": None}]}
Kind = type[msgspec.Struct]


def older_fields() -> dict[Kind, set[str]]:
    """The fields of each type that messages had when they came to be."""
    known: defaultdict[Kind, set[str]] = defaultdict(set)
    for kind in message_types():
        written = (GOLDEN / f"{kind.__name__}.msgpack").read_bytes()
        _note(codec.Decoder(kind)(written), msgspec.msgpack.decode(written), known)
    for plain in TOOL_PLANE:
        written = (GOLDEN / f"{plain.__name__}.json").read_bytes()
        _note(codec.Decoder(plain, json=True)(written), msgspec.json.decode(written), known)
    return dict(known)


def _note(value: Any, written: Any, known: dict[Kind, set[str]]) -> None:
    if isinstance(value, msgspec.Struct) and isinstance(written, dict):
        known[type(value)] |= written.keys()
        for field in msgspec.structs.fields(value):
            if field.encode_name in written:
                _note(getattr(value, field.name), written[field.encode_name], known)
    elif isinstance(value, list | tuple) and isinstance(written, list):
        for one, other in zip(value, written, strict=True):
            _note(one, other, known)


def narrowed(value: Any, known: dict[Kind, set[str]]) -> Any:
    """Without what an older peer does not know."""
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(narrowed(one, known) for one in value)
    if not isinstance(value, msgspec.Struct):
        return value
    kept = known.get(type(value))
    given = {
        field.name: narrowed(getattr(value, field.name), known)
        for field in msgspec.structs.fields(value)
        if kept is None or field.encode_name in kept or field.required
    }
    return type(value)(**given)


def widened(value: Any) -> Any:
    """As plain values, with fields that nobody knows yet."""
    if isinstance(value, msgspec.Struct):
        plain = msgspec.to_builtins(value, builtin_types=(bytes, msgspec.Raw))
        if not isinstance(plain, dict):
            return plain
        fields = {field.encode_name: getattr(value, field.name) for field in msgspec.structs.fields(value)}
        return {name: widened(fields[name]) if name in fields else plain[name] for name in plain} | UNKNOWN
    if isinstance(value, tuple | list):
        return [widened(one) for one in value]
    return value


def older() -> None:
    """Make this process an older peer."""
    known = older_fields()
    decode, pack, write = codec.Decoder.__call__, codec.encode, codec.encode_json
    _replace("encode", lambda message: pack(narrowed(message, known)))
    _replace("encode_json", lambda value: write(narrowed(value, known)))
    _replace_decoder(lambda self, data: narrowed(decode(self, data), known))


def newer() -> None:
    """Make this process a newer peer."""
    _replace("encode", lambda message: msgspec.msgpack.encode(widened(message)))
    _replace("encode_json", lambda value: msgspec.json.encode(widened(value)))


def _replace(name: str, way: Callable[[Any], bytes]) -> None:
    setattr(codec, name, way)


def _replace_decoder(way: Callable[[Any, bytes], Any]) -> None:
    codec.Decoder.__call__ = way  # type: ignore[assignment,method-assign]  # what services import is this class


def main(version: str, module: str, *flags: str) -> None:
    """Run it as it would be run; what it imports from now on is the other version's."""
    {"older": older, "newer": newer}[version]()
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
