"""Body bytes → a typed request, or a `RequestError` that names the field. The one place where foreign JSON comes in.

A lone surrogate escape (half an emoji, from a client that cuts strings by UTF-16 units) becomes U+FFFD: a history
that holds one would otherwise be refused for ever.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from catenary_protocols.errors import RequestError
from catenary_protocols.wire import Wire

T = TypeVar("T")

CONTINUED = "an answer that was begun is not gone on with here; end with what the user or a tool said"
"""Why a request is refused whose last message the model is to complete."""

_SURROGATE = re.compile(rb"\\u[dD]")
"""Tells sooner than `in` that a long body holds no such escape."""
_ESCAPES = re.compile(
    rb"\\\\"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_PATH = re.compile(r" - at (?:`(?:key|value)` in )?`\$\.?([^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `([^`]+)`")


def read(decoder: "msgspec.json.Decoder[T]", body: bytes, *, within: str = "") -> T:
    """The typed request in `body`; raises `RequestError`. `within` is the path of `body` in the whole request."""
    try:
        body.decode()
        return decoder.decode(mended(body))
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the body is not valid UTF-8 (byte {error.start})", code="invalid_json", field=within
        ) from error
    except RecursionError as error:
        raise RequestError("the JSON is nested too deeply", code="invalid_json", field=within) from error
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), within) from error
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json", field=within) from error


def mended(body: bytes) -> bytes:
    """JSON text without lone surrogate escapes."""
    if not _SURROGATE.search(body):
        return body
    return _ESCAPES.sub(lambda m: rb"\ufffd" if m[1] else m[0], body)


def _wrong_field(text: str, within: str) -> RequestError:
    found = _PATH.search(text)
    field = joined(within, found[1]) if found else within
    told = _PATH.sub("", text)
    missing = _MISSING.match(told)
    if missing:
        field = joined(field, missing[1])
        return lacking(field)
    told = told[:1].lower() + told[1:]
    return RequestError(f"`{field}`: {told}" if field else told, code="invalid_value", field=field)


def told(request: Wire, wishes: Iterable[str]) -> Iterator[str]:
    """Those fields of a request that are there: wishes that nobody here fulfils and that no answer is wrong without."""
    return (wish for wish in wishes if getattr(request, wish) is not None)


def joined(path: str, rest: str) -> str:
    """Two pieces of a field path as one."""
    return f"{path}.{rest}" if path and rest and not rest.startswith("[") else path + rest


def lacking(field: str) -> RequestError:
    """A field that has to be there."""
    return RequestError(f"`{field}` is missing", code="missing_field", field=field)


def wrong(field: str, message: str, *, code: str = "invalid_value") -> RequestError:
    """A value that has the right type and is still no good."""
    return RequestError(f"`{field}`: {message}", code=code, field=field)
