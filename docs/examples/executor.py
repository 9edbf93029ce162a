"""Runs the calls of one tool: `python executor.py nats://user:password@host:4222 lookup`. Needs only nats-py."""

import asyncio
import json
import sys
import time

import nats


async def main(url: str, tool: str = "lookup", mesh: str = "catenary.v1") -> None:
    js = (await nats.connect(url)).jetstream()
    calls = await js.pull_subscribe_bind(f"exec-{tool}", f"{mesh.replace('.', '-')}-TOOLS")
    while True:
        try:
            (msg,) = await calls.fetch(1, timeout=30)
        except TimeoutError:
            continue
        call = json.loads(msg.data)
        if call["deadline"] > time.time():
            result = {"key": call["key"], "tool": tool, "output": f"looked up {call['arguments']}"}
            subject, once = f"{mesh}.tool.result.{tool}.{call['key']}", {"Nats-Msg-Id": f"result:{call['key']}"}
            await js.publish(subject, json.dumps(result).encode(), headers=once)
        await msg.ack()


sys.exit(asyncio.run(main(*sys.argv[1:])) if sys.argv[1:] else __doc__)
