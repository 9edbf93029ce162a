"""Responses that are kept: one write at a turn's end, in the bucket that every frontend reads. They expire by its TTL.

A key begins with the tenant, so that nobody finds another's. Values are compressed: a conversation repeats itself.
"""

import re
from collections.abc import Sequence

import msgspec
import structlog
import zstandard
from catenary_protocols.bus.subjects import token
from catenary_protocols.errors import RequestError, TransportError
from catenary_protocols.wire import Wire
from catenary_runtime.bus import Bus
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError
from nats.js.kv import KeyValue

log = structlog.get_logger()
_GOOD_ID = re.compile(r"resp_[0-9a-z]{26}")
_NOBODY = "_"
_LEVEL = 3
_BROKEN = (NatsError, TimeoutError)


class Record(Wire, frozen=True):
    """A response as it is kept.

    Attributes:
        items: the conversation up to it, from its first response on, each item with an id.
        output: what it added.
        response: the body of its answer.
    """

    items: tuple[msgspec.Raw, ...]
    output: tuple[msgspec.Raw, ...]
    response: msgspec.Raw


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class StoredResponses:
    """The bucket."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._opened: KeyValue | None = None

    async def get(self, tenant: str, id_: str, *, field: str = "") -> Record:
        """A tenant's response; raises `RequestError` (none, with `field`) or `TransportError`."""
        key = _key(tenant, id_, field)
        try:
            entry = await (await self._bucket()).get(key)
        except NotFoundError as error:
            raise _none(id_, field) from error
        except _BROKEN as error:
            raise _away(error) from error
        return _decode(zstandard.decompress(entry.value or b""))

    async def put(self, tenant: str, id_: str, items: Sequence[msgspec.Raw], response: bytes) -> None:
        """Keep a response; when that is not possible, the log says so, and the answer goes out all the same."""
        output = _output(response).output
        data = _encode(Record(items=tuple(items), output=output, response=msgspec.Raw(response)))
        try:
            await (await self._bucket()).put(_key(tenant, id_, ""), zstandard.compress(data, _LEVEL))
        except _BROKEN as error:
            log.warning("response.not_stored", response=id_, bytes=len(data), error=str(error) or type(error).__name__)

    async def delete(self, tenant: str, id_: str) -> None:
        """Forget a response; raises as `get` does."""
        await self.get(tenant, id_)
        try:
            await (await self._bucket()).purge(_key(tenant, id_, ""))
        except _BROKEN as error:
            raise _away(error) from error

    async def _bucket(self) -> KeyValue:
        if self._opened is None:
            self._opened = await self._bus.js.key_value(self._bus.subjects.responses_bucket)
        return self._opened


class _Output(msgspec.Struct):
    output: tuple[msgspec.Raw, ...]


_output = msgspec.json.Decoder(_Output).decode


def _key(tenant: str, id_: str, field: str) -> str:
    if not _GOOD_ID.fullmatch(id_):
        raise _none(id_, field)
    return f"{token(tenant or _NOBODY)}.{id_}"


def _none(id_: str, field: str) -> RequestError:
    return RequestError(f"no response {id_!r} is kept here", code="not_found", field=field)


def _away(error: Exception) -> TransportError:
    return TransportError(f"the store of responses does not answer: {error or type(error).__name__}", retry_after=1)
