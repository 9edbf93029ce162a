"""Turns as their clients see them, each judged against the same turn without a fault."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.faults.stand import LETTER, PATIENCE_S, Stand

MODEL = "catenary-sim"
LONG: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Count the ships in the harbour."}],
    "max_tokens": 150,
    "ignore_eos": True,
    "stream_options": {"include_usage": True},
}
CALLS: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Post a letter to `Oslo`."}],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": LETTER,
                "description": "Posts a letter.",
                "parameters": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
            },
        }
    ],
    "nvext": {"run_tools": True},
    "stream_options": {"include_usage": True},
}


RESUMABLE = {"x-catenary-resumable": "true"}


@dataclass(frozen=True, slots=True)
class Answer:
    """All that a client can tell of a turn but its ids and times."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: str = ""
    tokens: int = 0
    error: str = ""
    retry: bool = True


@dataclass(slots=True)
class Streaming:
    """A turn that streams. `chunks` are its events so far, `times` when they came, `last_id` the id of the newest that had one."""

    turn_id: str = ""
    last_id: str = ""
    chunks: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    done: int = 0
    status: int = 0
    refused: dict[str, Any] = field(default_factory=dict)
    broken: str = ""
    _id: str = ""
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _task: "asyncio.Task[None] | None" = None

    async def ask(self, client: httpx.AsyncClient, request: dict[str, Any], headers: dict[str, str]) -> None:
        """As a new turn."""
        body = {**request, "stream": True}
        await self._read(client.stream("POST", "/v1/chat/completions", json=body, headers=headers))

    async def resume(self, client: httpx.AsyncClient, last_id: str) -> None:
        """What of this turn came after an event, to the end."""
        headers = {"last-event-id": last_id}
        await self._read(client.stream("GET", f"/v1/turns/{self.turn_id}/events", headers=headers))

    async def _read(self, asking: AbstractAsyncContextManager[httpx.Response]) -> None:
        try:
            async with asking as answer:
                self.status = answer.status_code
                self.turn_id = answer.headers.get("x-catenary-turn-id", "")
                if self.status != 200:
                    self.refused = json.loads(await answer.aread())
                    return
                async for line in answer.aiter_lines():
                    await self._line(line)
        except httpx.HTTPError as error:
            self.broken = type(error).__name__
        finally:
            await self._tell()

    async def _line(self, line: str) -> None:
        if line.startswith("id: "):
            self._id = line[4:]
        elif line.startswith("data: "):
            self.last_id = self._id
            if line == "data: [DONE]":
                self.done += 1
            else:
                self.chunks.append(json.loads(line[6:]))
                self.times.append(time.monotonic())
            await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def begun(self, chunks: int = 20) -> None:
        """Until so many events have come."""
        assert self._task is not None
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: len(self.chunks) >= chunks or bool(self.status >= 400 or self.broken))
        assert len(self.chunks) >= chunks, self

    async def answer(self) -> Answer:
        """Once it is over."""
        assert self._task is not None
        async with asyncio.timeout(PATIENCE_S):
            await self._task
        return assembled(self)


def assembled(turn: Streaming) -> Answer:
    """The deltas put together."""
    text, reasoning, finish, tokens = "", "", "", 0
    calls: dict[int, list[str]] = {}
    error = turn.refused.get("error") or next((one["error"] for one in turn.chunks if "error" in one), None)
    for choice in (choice for one in turn.chunks for choice in one.get("choices", ())):
        delta = choice["delta"]
        text += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        finish = choice["finish_reason"] or finish
        for call in delta.get("tool_calls") or ():
            name, arguments = calls.setdefault(call["index"], ["", ""])
            function = call["function"]
            calls[call["index"]] = [function.get("name") or name, arguments + (function.get("arguments") or "")]
    for usage in (one["usage"] for one in turn.chunks if one.get("usage")):
        tokens = usage["completion_tokens"]
    return Answer(
        text=text,
        reasoning=reasoning,
        calls=tuple((name, arguments) for name, arguments in calls.values()),
        finish=finish,
        tokens=tokens,
        error=error["code"] if error else turn.broken,
        retry=bool(error.get("retry", True)) if error else True,
    )


class Clients:
    """Opens turns, keeps what they were, and counts."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.counts: Counter[str] = Counter()
        self._truths: dict[str, Answer] = {}

    async def truth(self, request: dict[str, Any]) -> Answer:
        """The answer without a fault; asked once."""
        name = json.dumps(request, sort_keys=True)
        if name not in self._truths:
            async with self.turns(request) as (turn,):
                self._truths[name] = await turn.answer()
            assert not self._truths[name].error
            assert self._truths[name].finish
        return self._truths[name]

    @asynccontextmanager
    async def turns(
        self, *requests: dict[str, Any], frontend: str = "frontend-1", headers: dict[str, str] | None = None
    ) -> AsyncIterator[tuple[Streaming, ...]]:
        """Turns that stream at once; those not over at the end of the block are left by their clients."""
        async with self.stand.client(frontend) as client:
            opened = tuple(Streaming() for _ in requests)
            for turn, request in zip(opened, requests, strict=True):
                turn._task = asyncio.create_task(turn.ask(client, request, headers or {}))
            try:
                yield opened
            finally:
                for turn in opened:
                    assert turn._task is not None
                    turn._task.cancel()
                await asyncio.gather(*(turn._task for turn in opened if turn._task), return_exceptions=True)

    async def same(self, turn: Streaming, request: dict[str, Any]) -> None:
        """It ended as if nothing had happened."""
        answer, truth = await turn.answer(), await self.truth(request)
        if not answer.finish and not answer.error:
            self.counts["lost silently"] += 1
        assert answer == truth
        assert turn.done == 1
        self.counts["as without the fault"] += 1

    async def failed(self, turn: Streaming, code: str, *, retry: bool = True) -> None:
        """It ended in this error, and what came before is what would have come."""
        answer = await turn.answer()
        if not answer.finish and not answer.error:
            self.counts["lost silently"] += 1
        assert (answer.error, answer.retry) == (code, retry), answer
        self.counts["ended in an error"] += 1
