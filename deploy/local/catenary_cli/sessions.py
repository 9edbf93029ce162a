"""The second half of the demo: sessions whose second turn must find the KV blocks of the first."""

import asyncio
from typing import Any

import msgspec

from catenary_cli.ask import post, told
from catenary_cli.target import Target
from catenary_cli.timeline import PATH, TOOLS
from catenary_cli.welcome import columns

SESSIONS = 8
ENOUGH = 0.95
NOTES = 120
BLOCK_SIZE = 16


async def run_sessions(mesh: Target, count: int) -> bool:
    """Two turns of each session at once; True when every second one found its blocks."""
    first = await asyncio.gather(*(_turn(mesh, number, _question(number)) for number in range(count)))
    second = await asyncio.gather(
        *(_turn(mesh, number, _follow_up(number, answer)) for number, (answer, _) in enumerate(first))
    )
    block = int(mesh.options.models[0].options.get("block_size", BLOCK_SIZE))
    rows, fine = [("session", "first turn on", "second turn on", "blocks of turn 1", "cached", "share")], True
    for number, ((before, worker), (after, again)) in enumerate(zip(first, second, strict=True)):
        blocks = before["usage"]["prompt_tokens"] // block
        cached = after["usage"]["prompt_tokens_details"]["cached_tokens"] // block
        share = min(1.0, cached / blocks)
        fine = fine and worker == again and share >= ENOUGH
        rows.append((str(number + 1), worker, again, str(blocks), str(cached), f"{share:.0%}"))
    print(f"{count} sessions of two turns")
    print("\n".join(columns(rows)))
    verdict = "yes" if fine else "NO"
    print(f"  every second turn on the worker that has its blocks, >= {ENOUGH:.0%} of them cached: {verdict}")
    return fine


def _question(number: int) -> list[dict[str, Any]]:
    notes = " ".join(
        f"Note {line} of traveller {number}: the ferry leaves pier {line * 7 % 31}." for line in range(NOTES)
    )
    return [{"role": "user", "content": f"{notes} What is the weather in `City {number}`?"}]


def _follow_up(number: int, answer: dict[str, Any]) -> list[dict[str, Any]]:
    message = answer["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": '{"sky": "clear"}'} for call in message["tool_calls"]
    ]
    return [*_question(number), message, *results]


async def _turn(mesh: Target, number: int, messages: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """The JSON answer, and the worker that ran the turn."""
    request = {
        "model": await mesh.model(),
        "messages": messages,
        "tools": TOOLS,
        "prompt_cache_key": f"demo-session-{number}",
    }
    async with post(mesh.api, PATH, request, mesh.key) as answer:
        body = await answer.body()
        if answer.status != 200:  # HTTP
            raise SystemExit(f"the mesh answered {answer.status}: {told(body)}")
        return msgspec.json.decode(body), answer.headers["x-catenary-worker"]
