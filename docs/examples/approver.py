"""Asks about each call of a tool, on the terminal: `python approver.py nats://user:password@host:4222 deploy`."""

import asyncio
import json
import sys

import nats


async def main(url: str, tool: str = "deploy", mesh: str = "catenary.v1") -> None:
    nc = await nats.connect(url)
    calls = await nc.subscribe(f"{mesh}.tool.call.{tool}.mesh")
    # twice: nats-py's first PING may overtake the subscription, its second does not
    print(f"waiting for calls of {tool}, {1e3 * min([await nc.rtt(), await nc.rtt()]):.1f} ms away", flush=True)
    async for msg in calls.messages:
        call = json.loads(msg.data)
        said = await asyncio.to_thread(input, f"run {tool} with {call['arguments']}? [y/n] ")
        answer = {"key": call["key"], "tool": tool, "approved": said == "y", "reason": "said no", "by": "the terminal"}
        await nc.jetstream().publish(f"{mesh}.tool.approve.{tool}.{call['key']}", json.dumps(answer).encode())


sys.exit(asyncio.run(main(*sys.argv[1:])) if sys.argv[1:] else __doc__)
