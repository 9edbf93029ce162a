"""Prints every tool call as it is decoded: `python observer.py nats://user:password@host:4222`."""

import asyncio
import sys

import nats


async def main(url: str, mesh: str = "catenary.v1") -> None:
    nc = await nats.connect(url)
    calls = await nc.subscribe(f"{mesh}.tool.call.>")
    # twice: nats-py's first PING may overtake the subscription, its second does not
    print(f"watching {calls.subject}, {1e3 * min([await nc.rtt(), await nc.rtt()]):.1f} ms away", flush=True)
    async for msg in calls.messages:
        print(msg.subject, msg.data.decode(), flush=True)


sys.exit(asyncio.run(main(*sys.argv[1:])) if sys.argv[1:] else __doc__)
