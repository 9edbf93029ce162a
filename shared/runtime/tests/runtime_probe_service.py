"""A service that does nothing but live: for tests that start, stop, freeze and break real processes.

`--breaks start|task|drain` says where it fails; `--drain-takes` how long its drain would like to take.
"""

import asyncio
import sys
from dataclasses import dataclass

from catenary_protocols.errors import EngineError
from catenary_runtime.config import Settings, option
from catenary_runtime.service import Service, run
from nats.aio.msg import Msg


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings(Settings):
    """Settings of the probe."""

    breaks: str = option("", "Where it fails: start, task or drain.")
    drain_takes: float = option(0.0, "Seconds.")


class ProbeService(Service[ProbeSettings]):
    """Lives."""

    name = "tokenizer"
    section = "tokenizer"
    package = "catenary-runtime"

    async def start(self) -> None:
        """Echo on a subject, so that the test can see it work."""
        self.health.checks["probe"] = lambda: (True, "fine")
        await self.bus.subscribe(f"{self.subjects.namespace}.probe.{self.instance}", self._on_probe)
        if self.settings.breaks == "start":
            raise EngineError("broke at start")
        if self.settings.breaks == "task":
            self.spawn(self._fail(), "fails")

    async def drain(self) -> None:
        """As long as it was told to."""
        if self.settings.breaks == "drain":
            raise ZeroDivisionError
        await asyncio.sleep(self.settings.drain_takes)

    def _on_probe(self, msg: Msg) -> None:
        self.bus.publish(msg.reply, str(self.incarnation).encode())

    async def _fail(self) -> None:
        raise EngineError("broke in a task")


if __name__ == "__main__":
    sys.exit(run(ProbeService, ProbeSettings))
