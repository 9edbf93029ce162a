"""Routers, indexers, executors, tokenizers and frontends that die: what DESIGN's table of services promises."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from catenary_protocols.apis.chat import CHAT
from catenary_protocols.apis.session import session_of
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import Overlap, OverlapQuery
from catenary_runtime.rendezvous import ranked

from tests.faults.stand import PATIENCE_S, Stand
from tests.faults.turns import CALLS, LONG, MODEL, RESUMABLE, Clients, Streaming, assembled

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(150)]
_overlap = Decoder(Overlap)


def owner_of(request: dict[str, Any]) -> str:
    """The tokenizer that the frontend asks first."""
    draft = CHAT.read(json.dumps(request).encode())
    return ranked(session_of(draft, "", {}), ["tokenizer-1", "tokenizer-2"])[0]


async def test_turns_wait_for_the_next_router_when_theirs_dies(clients: Clients, stand: Stand) -> None:
    await clients.truth(LONG)
    router = stand.parts[ranked(MODEL, ["router-1", "router-2"])[0]]
    router.freeze()
    before = stand.watch.named("tokenizer")
    async with clients.turns(LONG, LONG) as turns:
        await stand.watch.until("a tokenizer has both", lambda: len(stand.watch.named("tokenizer") - before) == 2)
        router.kill()
        for turn in turns:
            await clients.same(turn, LONG)


async def test_without_any_kv_indexer_turns_are_placed_all_the_same(clients: Clients, stand: Stand) -> None:
    await clients.truth(LONG)
    async with clients.turns(LONG) as (before,):
        await before.begun()
        for name in ("kv-indexer-1", "kv-indexer-2"):
            stand.parts[name].kill()
        async with clients.turns(LONG) as (after,):
            await clients.same(before, LONG)
            await clients.same(after, LONG)
    await stand.start_again("kv-indexer-1", "kv-indexer-2")
    query = encode(OverlapQuery(model=MODEL, block_size=16, hashes=b""))
    said = _overlap(await stand.bus.request(stand.subjects.to("overlap", model=MODEL), query, within=PATIENCE_S))
    assert set(said.known) == {"worker-1", "worker-2"}, "a new one asks the workers for what they hold"


async def test_calls_wait_while_no_executor_lives_and_are_run_once(clients: Clients, stand: Stand) -> None:
    await clients.truth(CALLS)
    for name in ("tool-dispatch-1", "tool-dispatch-2"):
        stand.parts[name].kill()
    seen = set(stand.watch.calls)
    async with clients.turns(CALLS, CALLS) as turns:
        for turn in turns:
            await clients.same(turn, CALLS)
    new = set(stand.watch.calls) - seen
    assert len(new) == 2
    await stand.start_again("tool-dispatch-1", "tool-dispatch-2")
    await stand.watch.until("both have a result", lambda: new <= set(stand.watch.results))
    assert all(result.error is None for key in new for result in stand.watch.results[key])
    assert [stand.letters()[key] for key in new] == [1, 1]


async def test_a_turn_is_given_to_another_owner_when_the_first_dies_before_its_first_word(
    clients: Clients, stand: Stand
) -> None:
    await clients.truth(LONG)
    owner = stand.parts[owner_of(LONG)]
    owner.freeze()
    before = stand.watch.named("frontend-1")
    async with clients.turns(LONG) as (turn,):
        await stand.watch.until("the frontend has it", lambda: bool(stand.watch.named("frontend-1") - before))
        owner.kill()
        await clients.same(turn, LONG)


async def test_a_turn_whose_owner_dies_in_the_middle_ends_in_a_clear_error(clients: Clients, stand: Stand) -> None:
    truth = await clients.truth(LONG)
    async with clients.turns(LONG) as (turn,):
        await turn.begun()
        stand.parts[owner_of(LONG)].kill()
        await clients.failed(turn, "owner_lost")
        answer = await turn.answer()
        assert truth.text.startswith(answer.text)
        await stand.watch.until("the worker dropped it", lambda: not stand.watch.holder("worker", turn.turn_id))


async def test_after_a_published_call_the_error_says_not_to_try_again(clients: Clients, stand: Stand) -> None:
    await clients.truth(CALLS)
    async with clients.turns(CALLS) as (turn,):
        await stand.watch.until("the call is out", lambda: stand.watch.called(turn.turn_id))
        stand.parts[owner_of(CALLS)].kill()
        await clients.failed(turn, "owner_lost", retry=False)


async def test_the_turns_of_a_dead_frontend_are_cancelled_everywhere(clients: Clients, stand: Stand) -> None:
    async with clients.turns({**LONG, "max_tokens": 20_000}) as (turn,):
        await turn.begun()
        stand.parts["frontend-1"].kill()
        assert (await turn.answer()).error, "the connection broke"
        await stand.watch.until("nobody has it", lambda: not stand.watch.holder("worker", turn.turn_id))
    async with clients.turns(LONG, frontend="frontend-2") as (again,):
        await clients.same(again, LONG)


@pytest.mark.parametrize("fault", ["killed", "cut off"])
async def test_a_resumable_stream_goes_on_at_the_other_frontend(clients: Clients, stand: Stand, fault: str) -> None:
    truth = await clients.truth(LONG)
    first = stand.parts["frontend-1"]
    async with clients.turns(LONG, headers=RESUMABLE) as (turn,):
        await turn.begun()
        if fault == "killed":
            first.kill()
        else:
            first.proxy.block()
    async with stand.client("frontend-2") as client:
        rest = Streaming(turn_id=turn.turn_id)
        await rest.resume(client, turn.last_id)
    turn.chunks += rest.chunks
    assert turn.last_id != rest.last_id
    assert assembled(turn) == truth
    assert rest.done == 1
    clients.counts["went on at another frontend"] += 1


async def events_of(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def test_a_response_goes_on_at_the_other_frontend_from_the_event_that_came_last(
    clients: Clients, stand: Stand
) -> None:
    asked = {"model": MODEL, "input": "Count the ships in the harbour.", "max_output_tokens": 150, "stream": True}
    async with stand.client() as client, client.stream("POST", "/v1/responses", json=asked) as answer:
        had: list[dict[str, Any]] = []
        async for event in events_of(answer):
            had.append(event)
            if len(had) == 20:
                break
        stand.parts["frontend-1"].kill()
    name = had[0]["response"]["id"]
    query = {"stream": "true", "starting_after": had[-1]["sequence_number"]}
    async with (
        stand.client("frontend-2") as client,
        client.stream("GET", f"/v1/responses/{name}", params=query) as answer,
    ):
        rest = [event async for event in events_of(answer)]
    assert [event["sequence_number"] for event in had + rest] == list(range(len(had) + len(rest)))
    deltas = "".join(event["delta"] for event in had + rest if event["type"] == "response.output_text.delta")
    whole = next(item for item in rest[-1]["response"]["output"] if item["type"] == "message")["content"][0]["text"]
    assert deltas == whole
    clients.counts["went on at another frontend"] += 1
