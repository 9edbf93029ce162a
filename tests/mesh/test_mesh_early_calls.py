"""A client has a call whole while its answer has no end in sight."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.bench.calls import CALL, WAYS
from tests.mesh.harness import MODEL, RunningMesh, Script


@pytest.mark.parametrize("name", WAYS)
async def test_a_call_is_whole_long_before_the_stream_ends(paced_mesh: RunningMesh, name: str) -> None:
    """The answer would take minutes; the client leaves when it has the call, and finds the engine at work on the rest."""
    way = WAYS[name]
    async with paced_mesh.bus() as bus, paced_mesh.client() as client:
        script = Script(bus, paced_mesh.workers, name)
        await script.say(f"<tool_call>\n{CALL}\n</tool_call>\n" + "And the sea went on. " * 5000, match=f"early {name}")
        request = {"model": MODEL, "stream": True, **way.body(f"early {name}")}
        events: list[dict[str, Any]] = []
        async with client.stream("POST", way.path, json=request) as answer:
            async for event in events_of(answer):
                events.append(event)
                if way.whole(events):
                    break
        reports = await script.reports()
        await script.forget()
    assert way.whole(events)
    assert not {"response.completed", "message_stop"} & {event.get("type") for event in events}
    assert not any(choice["finish_reason"] for event in events for choice in event.get("choices", ()))
    (turn,) = (turn for report in reports for turn in report["turns"] if f"early {name}<" in turn["prompt"])
    assert 0 < turn["tokens"] < 1000


async def events_of(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
