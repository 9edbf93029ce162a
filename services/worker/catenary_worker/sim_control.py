"""`sim.<worker>.…`: tests tell a scripted engine what to say, and ask what it did. Only with `--sim-script`."""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from catenary_protocols.bus.codec import Decoder, UndecodableError, encode_json
from catenary_protocols.errors import RequestError
from catenary_runtime.bus import Bus
from nats.aio.msg import Msg

_decode = Decoder(dict[str, object], json=True)


@runtime_checkable
class Scripted(Protocol):
    """An engine that takes scripts."""

    def script(self, spec: Mapping[str, object]) -> str:
        """Take one; its id. Raises `RequestError`."""

    def unscript(self, name: str) -> bool:
        """Forget one; False if there is none of this id."""

    def report(self) -> dict[str, object]:
        """What it got and did."""


class SimControl:
    """JSON request and reply; what is wrong with a request is answered as `{"error": ...}`."""

    def __init__(self, bus: Bus, engine: Scripted, worker: str) -> None:
        self._bus = bus
        self._engine = engine
        self._worker = worker

    async def start(self) -> None:
        """Subscribe."""
        for channel, act in (("sim_script", self._script), ("sim_delete", self._delete), ("sim_report", self._report)):
            await self._bus.subscribe(self._bus.subjects.to(channel, worker=self._worker), self._answering(act))

    def _answering(self, act: Callable[[bytes], Mapping[str, object]]) -> Callable[[Msg], None]:
        def handler(msg: Msg) -> None:
            try:
                answer = act(msg.data)
            except RequestError as error:
                answer = {"error": error.message, "field": error.field}
            if msg.reply:
                self._bus.publish(msg.reply, encode_json(answer))

        return handler

    def _script(self, data: bytes) -> Mapping[str, object]:
        return {"id": self._engine.script(_object(data))}

    def _delete(self, data: bytes) -> Mapping[str, object]:
        return {"deleted": self._engine.unscript(str(_object(data).get("id", "")))}

    def _report(self, _: bytes) -> Mapping[str, object]:
        return self._engine.report()


def _object(data: bytes) -> dict[str, object]:
    try:
        return _decode(data)
    except UndecodableError as error:
        raise RequestError(f"not a JSON object: {error.message}", code="invalid_json") from error
