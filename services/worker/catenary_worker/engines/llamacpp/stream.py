"""One request to llama.cpp, and what it streams back."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import h11
import msgspec
from catenary_protocols.errors import EngineError, ErrorInfo

from catenary_worker.engines.llamacpp.server import Address

_READ = 1 << 16
_OK = 200
_BLAME_REQUEST = range(400, 500)


class Progress(msgspec.Struct, frozen=True):
    """How far the prompt is: tokens that were there, and tokens that are there now."""

    cache: int
    processed: int


class Likely(msgspec.Struct, frozen=True):
    """A token and the logarithm of its probability, and the likeliest at its place."""

    id: int
    logprob: float
    top_logprobs: "tuple[Likely, ...]" = ()


class Fault(msgspec.Struct, frozen=True):
    """Why llama.cpp did not do it."""

    code: int = 500
    message: str = ""


class Message(msgspec.Struct, frozen=True):
    """One event of the stream.

    Attributes:
        tokens: what was generated; says nothing beside `prompt_progress`.
        content: their text, and that of tokens that are not shown.
        tokens_predicted: generated in all.
        completion_probabilities: of the last of `tokens`, when they were asked for.
        stop: the last event.
        stop_type: why: "eos", "limit", …
    """

    tokens: tuple[int, ...] = ()
    content: str = ""
    tokens_predicted: int = 0
    completion_probabilities: tuple[Likely, ...] = ()
    stop: bool = False
    stop_type: str = ""
    prompt_progress: Progress | None = None
    error: Fault | None = None


class TurnError(Exception):
    """One turn failed; the engine lives."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        code = "invalid_value" if fault.code in _BLAME_REQUEST else "engine_failed"
        self.info = ErrorInfo(code=code, message=f"llama.cpp: {fault.message}")


_decode = msgspec.json.Decoder(Message).decode


async def complete(address: Address, request: Mapping[str, object]) -> AsyncGenerator[Message, None]:
    """Every event until the last. Raises `TurnError` or `EngineError`. Leaving it early cancels the request."""
    try:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            client = h11.Connection(h11.CLIENT)
            writer.write(_written(client, address, msgspec.json.encode(request)))
            async with aclosing(_events(client, reader)) as events:
                async for event in events:
                    message = _decode(event)
                    if message.error is not None:
                        raise TurnError(message.error)
                    yield message
                    if message.stop:
                        return
        finally:
            writer.transport.abort()
    except (OSError, h11.ProtocolError, msgspec.MsgspecError) as error:
        raise EngineError(f"llama.cpp broke off: {error}") from error
    raise EngineError("llama.cpp broke off: an answer ended before its end")


def _written(client: h11.Connection, address: Address, body: bytes) -> bytes:
    headers = [
        ("host", f"{address.host}:{address.port}"),
        ("authorization", f"Bearer {address.key}"),
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
        ("connection", "close"),
    ]
    parts = (h11.Request(method="POST", target="/completion", headers=headers), h11.Data(body), h11.EndOfMessage())
    return b"".join(filter(None, map(client.send, parts)))


async def _events(client: h11.Connection, reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    """The JSON of each event; an answer that is no stream is one event."""
    streams, rest = True, b""
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA:
            client.receive_data(await reader.read(_READ))
        elif isinstance(event, h11.Response):
            streams = event.status_code == _OK
        elif isinstance(event, h11.Data):
            *whole, rest = (rest + bytes(event.data)).split(b"\n\n") if streams else (rest + bytes(event.data),)
            for one in whole:
                yield one.removeprefix(b"data: ").removeprefix(b"error: ")
        else:
            if not streams:
                yield rest
            return
