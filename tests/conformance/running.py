"""One client through one tool loop: what it was asked, what it answered, and what the mesh says of its turns."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.conformance import install, loops
from tests.conformance.agents import Desk, Start, claude_code, codex, opencode, qwen_code
from tests.mesh.harness import MODEL, RunningMesh

BOUND_S = 180.0
STOP_S = 5.0
ROOT = Path(__file__).parents[2]
PROMPT = "Run the shell command `{}` and reply with exactly the text it prints, nothing else."
READ = "cat marker.txt"


@dataclass(frozen=True)
class Client:
    """A name, the API it speaks and how (`stream`, `whole`, …), and how it is started."""

    name: str
    api: str
    mode: str
    start: Callable[[Desk], Start]
    command: str = READ

    def __str__(self) -> str:
        return f"{self.name} {self.api} {self.mode}"


def _agent(name: str, api: str, start: Callable[[Desk, str], Start], command: str = READ) -> Client:
    return Client(name, api, "stream", lambda desk: start(desk, api), command)


def _loop(kit: str, api: str, mode: str) -> Client:
    def start(desk: Desk) -> Start:
        command = [sys.executable, "-m", "tests.conformance.loops", kit, api, mode, desk.url, MODEL]
        return Start(command, {"PYTHONPATH": str(ROOT)}, str)

    return Client(kit, api, mode, start)


# qwen-code at times reports nothing of a command that ends at once.
QWEN_READ = f"{READ}; sleep 1"
CLIENTS = (
    _agent("claude-code", "messages", claude_code),
    _agent("codex", "responses", codex),
    *(_agent("opencode", api, opencode) for api in ("chat", "messages", "responses")),
    *(_agent("qwen-code", api, qwen_code, QWEN_READ) for api in ("chat", "messages", "responses")),
    *(_loop(kit, api, mode) for kit, api in loops.LOOPS for mode in ("stream", "whole")),
    *(_loop("openai", "responses", f"{mode}-stored") for mode in ("stream", "whole")),
)


@dataclass(frozen=True)
class Outcome:
    """How a run went: `why` is empty if all was well, else `folder` holds what the client wrote."""

    client: Client
    why: str
    turns: int
    seconds: float
    folder: Path


def tool_loop(client: Client, mesh: RunningMesh) -> Outcome:
    """A word that is in a file alone has to come back as the answer. Raises `NotRunError`."""
    name = "-".join(str(client).split())
    desk = Desk(install.CACHE / "runs" / f"{name}-{secrets.token_hex(3)}", mesh.url("frontend"))
    for folder in (desk.home, desk.work):
        folder.mkdir(parents=True)
    word = f"word-{secrets.token_hex(6)}"
    (desk.work / "marker.txt").write_text(f"{word}\n")
    start, before, began = client.start(desk), len(told(mesh)), time.monotonic()
    why, answer = run(desk, start, PROMPT.format(client.command))
    turns = told(mesh)[before:]
    if not why and word not in answer:
        why = f"its answer lacks the word: {answer[-200:]!r}"
    return Outcome(client, why or wrong_turns(client, turns), len(turns), time.monotonic() - began, desk.folder)


def run(desk: Desk, start: Start, prompt: str) -> tuple[str, str]:
    """What went wrong, and the answer. The client, and what it started, is gone afterwards."""
    path = (
        f"{install.node()}:/usr/local/bin:/usr/bin:/bin" if start.command[0] != sys.executable else os.environ["PATH"]
    )
    environment = {"HOME": str(desk.home), "LANG": "C.UTF-8", "SHELL": "/bin/bash", "PATH": path, **start.environment}
    out, err = desk.folder / "stdout", desk.folder / "stderr"
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(
            [*start.command, prompt],
            cwd=desk.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            code = process.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            return f"not done in {BOUND_S:g} s", ""
        finally:
            _end(process)
    if code:
        return f"exit code {code}: {err.read_text(errors='replace').strip()[-200:]}", ""
    try:
        return "", start.answer(out.read_text(errors="replace"))
    except (ValueError, LookupError, OSError) as error:
        return f"no answer in its output: {error!r}", ""


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Its session is its own, so that what it left running goes with it."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(STOP_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue


def told(mesh: RunningMesh) -> list[dict[str, object]]:
    """The frontend's line of each turn so far."""
    lines = [json.loads(line) for line in mesh.log("frontend").splitlines()]
    return [line for line in lines if line.get("event") == "turn.done"]


def wrong_turns(client: Client, turns: list[dict[str, object]]) -> str:
    """An answer alone could come from another API or a second try: the mesh has to have seen one call and one answer."""
    ended = [(turn["api"], turn["reason"], turn["stream"]) for turn in turns if turn["code"] == "ok"]
    form = client.mode.startswith("stream")
    if any(api != client.api or stream is not form for api, _, stream in ended):
        return f"it spoke otherwise: {ended}"
    if failed := [turn["code"] for turn in turns if turn["code"] not in {"ok", "cancelled"}]:
        return f"turns ended in {failed}"
    if not {"tool_calls", "stop"} <= {reason for _, reason, _ in ended}:
        return f"turns ended in {[reason for _, reason, _ in ended]}"
    return ""
