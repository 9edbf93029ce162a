"""`python -m tests.conformance.cut_calls`: which clients run a call that the token limit cut.

Each is given one that breaks off behind a whole command, as often as it asks for it, and then an answer. A line for
each: `left` or `RAN`, or `NOT RUN` with what is missing. `docs/adr/0009` says what follows from it.
"""

import asyncio
import secrets
import sys
import tempfile
from pathlib import Path

from tests.conformance import install
from tests.conformance.agents import Desk
from tests.conformance.running import CLIENTS, Client, run, told
from tests.mesh.harness import RunningMesh, Script, running_mesh

FLAGS = ("--time-scale", "0", "--sim-script")
PROMPT = "Make a file, as cut-calls say."
TRACE = "made.txt"
TOOLS = {
    "claude-code": ("Bash", "command"),
    "codex": ("exec_command", "cmd"),
    "qwen-code": ("run_shell_command", "command"),
}
TRIES = 3


def runs_it(client: Client, mesh: RunningMesh) -> bool:
    """Whether the command was run. Raises `NotRunError`."""
    asyncio.run(_say(client, mesh))
    name = "-".join(str(client).split())
    desk = Desk(install.CACHE / "runs" / f"cut-{name}-{secrets.token_hex(3)}", mesh.url("frontend"))
    for folder in (desk.home, desk.work):
        folder.mkdir(parents=True)
    before = len(told(mesh))
    run(desk, client.start(desk), PROMPT)
    assert any(turn["reason"] == "length" for turn in told(mesh)[before:]), f"{client} was given no such call"
    return (desk.work / TRACE).exists()


async def _say(client: Client, mesh: RunningMesh) -> None:
    tool, argument = TOOLS.get(client.name, ("bash", "command"))
    call = f'<tool_call>\n{{"name": "{tool}", "arguments": {{"{argument}": "touch {TRACE}", "description": "Make a'
    async with mesh.bus() as bus:
        cut, answer = (Script(bus, mesh.workers, name) for name in ("cut", "answer"))
        await cut.forget()
        await answer.forget()
        await cut.say(call, match=PROMPT, finish="length", times=TRIES)
        await answer.say("It is done.", match=PROMPT)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, running_mesh(Path(folder), *FLAGS) as mesh:
        for client in CLIENTS:
            try:
                print("RAN " if runs_it(client, mesh) else "left", client, flush=True)
            except install.NotRunError as missing:
                print(f"NOT RUN {client}: {missing}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
