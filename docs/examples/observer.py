"""Prints every tool call as it is decoded: `python observer.py nats://user:password@host:4222`."""

import asyncio
import sys

import nats


async def main(url: str, mesh: str = "catenary.v1") -> None:
    nc = await nats.connect(url)
    calls = await nc.subscribe(f"{mesh}.tool.call.>")
    await nc.flush()  # the first PING of nats-py may overtake the subscription, the second is behind it
    print(f"watching {calls.subject}, {1000 * await nc.rtt():.1f} ms from the broker", flush=True)
    async for msg in calls.messages:
        print(msg.subject, msg.data.decode(), flush=True)


sys.exit(asyncio.run(main(*sys.argv[1:])) if sys.argv[1:] else __doc__)
