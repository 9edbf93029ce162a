"""The README's service runs as it stands."""

import asyncio
import re
from pathlib import Path

from catenary_protocols.bus.messages import Beat
from catenary_runtime.bus import Bus
from catenary_runtime.presence import Listener, Presence
from catenary_runtime.testing import NatsServer, Process

README = Path(__file__).parents[1] / "README.md"


async def test_the_readmes_service_answers_and_leaves_with_0(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "echo.py"
    script.write_text("\n".join(code), encoding="utf-8")
    ready = asyncio.Event()
    presence = Presence(bus, "frontend", "f", lambda: Beat(service="frontend", instance="f", incarnation=1))
    presence.listen(Listener(on_beat=lambda peer: ready.set() if peer.takes_work else None))
    await presence.start(["router"])
    flags = ["--shout", "--nats", nats_server.url, "--namespace", bus.subjects.namespace]
    process = Process("echo", flags, tmp_path / "echo.log", {"PYTHONPATH": str(tmp_path)})
    process.start()
    try:
        async with asyncio.timeout(20):
            await ready.wait()
        assert await bus.request(f"{bus.subjects.namespace}.echo", b"hello", within=5) == b"HELLO"
    finally:
        assert await asyncio.to_thread(process.stop) == 0
