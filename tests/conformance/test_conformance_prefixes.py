"""Agents over four tool turns: each prompt is the one before it and more, and sessions share their head in the KV cache."""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from tests.conformance.agents import Desk, Start, claude_code, codex
from tests.conformance.install import NotRunError
from tests.conformance.running import run
from tests.mesh.harness import MODEL, RunningMesh, Script, running_mesh

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Json = dict[str, Any]

BLOCK = 16
TURNS = 4
LAST_STEP = 2
"""Tokens that a script's last step gives: the end of the call and the end of the message."""
CALL = '<think>\nNow part {part}.\n</think>\n\n<tool_call>\n{{"name": "{tool}", "arguments": {{"{argument}":  "cat part-{part}.txt"}}}}\n</tool_call>'
AGENTS: dict[str, tuple[Callable[[Desk, str], Start], str, str]] = {
    "claude-code": (claude_code, "Bash", "command"),
    "codex": (codex, "exec_command", "cmd"),
}


@dataclass(frozen=True)
class Sessions:
    """Two sessions of one user: what the engine was asked, turn by turn, and the mesh that is still there."""

    turns: tuple[list[Json], list[Json]]
    mesh: RunningMesh


@pytest.fixture(scope="module", params=AGENTS)
def sessions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    folder = tmp_path_factory.mktemp(request.param)
    with running_mesh(folder / "mesh", "--time-scale", "0", "--sim-script", "--workers", "1") as mesh:
        desk = Desk(folder / "desk", mesh.url("frontend"))
        for one in (desk.home, desk.work):
            one.mkdir(parents=True)

        async def both() -> tuple[list[Json], list[Json]]:
            return await session(mesh, desk, request.param), await session(mesh, desk, request.param)

        try:
            yield Sessions(asyncio.run(both()), mesh)
        except NotRunError as missing:
            pytest.skip(str(missing))


async def session(mesh: RunningMesh, desk: Desk, agent: str) -> list[Json]:
    """Four parts are read one after the other; the last comes back as the answer."""
    start, tool, argument = AGENTS[agent]
    topic = f"topic-{secrets.token_hex(4)}"
    calls = [CALL.format(tool=tool, argument=argument, part=part) for part in range(TURNS)]
    words = [secrets.token_hex(6) for _ in calls]
    for part, word in enumerate(words):
        (desk.work / f"part-{part}.txt").write_text(f"{word}\n")
    async with mesh.bus() as bus:
        script = Script(bus, mesh.workers, topic)
        await script.say(*calls, match=topic, times=TURNS)
        why, answer = await asyncio.to_thread(
            run, desk, start(desk, ""), f"Read the four parts about {topic}, one by one."
        )
        assert not why
        assert words[-1] in answer
        turns = [turn for report in await script.reports() for turn in report["turns"] if topic in turn["prompt"]]
    assert [word in turns[-1]["prompt"] for word in words] == [True] * TURNS
    return turns


def test_each_prompt_is_the_one_before_it_and_more(sessions: Sessions) -> None:
    for turns in sessions.turns:
        prompts = [turn["prompt"] for turn in turns]
        assert len(prompts) == TURNS + 1
        assert [later.startswith(earlier) for earlier, later in pairwise(prompts)] == [True] * TURNS


def test_what_was_there_and_what_was_said_is_in_the_cache(sessions: Sessions) -> None:
    """All whole blocks of a turn's prompt and of what the model then wrote, but for its last step, which nothing read."""
    for turns in sessions.turns:
        for earlier, later in pairwise(turns):
            read = earlier["prompt_tokens"] + earlier["tokens"] - LAST_STEP
            assert later["cached_tokens"] == read // BLOCK * BLOCK


async def test_a_second_session_has_its_head_in_the_cache(sessions: Sessions) -> None:
    """Whatever a client writes of itself above it, all whole blocks of what stands before the user's words are shared."""
    first, second = (turns[0] for turns in sessions.turns)
    head, user, _ = first["prompt"].partition("<|im_start|>user")
    assert user
    assert second["prompt"].startswith(head + user)
    async with sessions.mesh.client() as client:
        asked = {"model": MODEL, "prompt": head, "add_special_tokens": False}
        count = (await client.post("/tokenize", json=asked)).json()["count"]
    assert count > 1000
    assert second["cached_tokens"] >= count // BLOCK * BLOCK
