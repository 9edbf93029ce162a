"""Shows the services' logs on the terminal as they grow. The files stay the one place where logs are written."""

import asyncio
import sys
from collections.abc import Iterable

from catenary_cli.processes import Child

POLL_S = 0.2


async def follow(children: Iterable[Child]) -> None:
    """Print new lines, each after its process's name, until cancelled."""
    read = {child.plan.instance: (child, 0) for child in children}
    width = max(len(name) for name in read)
    while True:
        for name, (child, offset) in read.items():
            with child.log.open("rb") as log:
                log.seek(offset)
                *lines, rest = log.read().split(b"\n")
                read[name] = (child, log.tell() - len(rest))
            for line in lines:
                print(f"{name:<{width}} {line.decode(errors='replace')}", file=sys.stderr)
        await asyncio.sleep(POLL_S)
