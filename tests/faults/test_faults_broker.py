"""The broker dies, or one process loses its way to it: no turn is lost, nothing is said twice."""

import asyncio

import pytest
from catenary_runtime.rendezvous import ranked

from tests.faults.stand import MODULES, Stand
from tests.faults.turns import CALLS, LONG, MODEL, Clients

AWAY_S = 3.0
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(150)]


async def test_every_turn_completes_when_the_broker_is_killed_and_comes_back(clients: Clients, stand: Stand) -> None:
    """It is away for longer than the death limit; streams are open, and one is asked for meanwhile."""
    await clients.truth(LONG)
    await clients.truth(CALLS)
    requests = [*([LONG] * 15), *([CALLS] * 5)]
    async with clients.turns(*requests) as turns:
        for turn in turns:
            await turn.begun(5)
        await asyncio.to_thread(stand.server.kill)
        back = asyncio.Event()
        asyncio.get_running_loop().call_later(AWAY_S, back.set)
        await back.wait()
        async with clients.turns(LONG) as (new,):
            await asyncio.to_thread(stand.server.start)
            for turn, request in zip((*turns, new), (*requests, LONG), strict=True):
                await clients.same(turn, request)
    await stand.watch.until("everything is ready", lambda: all(map(stand.watch.ready, stand.parts)))


@pytest.mark.parametrize("service", MODULES)
async def test_a_delay_shorter_than_the_death_limit_changes_nothing(
    clients: Clients, stand: Stand, service: str
) -> None:
    await clients.truth(LONG)
    async with clients.turns(LONG) as (turn,):
        await turn.begun()
        holds_it = service in {"worker", "tokenizer"}
        name = await stand.watch.holding(service, turn.turn_id) if holds_it else f"{service}-1"
        part, before = stand.parts[name], stand.watch.incarnations[name]
        part.proxy.block()
        await stand.watch.later(0.7, f"{service}-{'2' if name.endswith('1') else '1'}")
        part.proxy.unblock()
        await clients.same(turn, LONG)
        assert stand.watch.incarnations[name] == before


async def test_the_turns_of_a_worker_that_is_cut_off_go_on_at_the_other(clients: Clients, stand: Stand) -> None:
    await clients.truth(LONG)
    async with clients.turns(LONG) as (turn,):
        await turn.begun()
        name = await stand.watch.holding("worker", turn.turn_id)
        before = stand.watch.incarnations[name]
        stand.parts[name].proxy.block()
        await clients.same(turn, LONG)
        stand.parts[name].proxy.unblock()
        await stand.watch.until("it is back as another", lambda: stand.watch.incarnations[name] > before)


@pytest.mark.parametrize("service", ["router", "kv-indexer", "tool-dispatch"])
async def test_turns_begun_while_one_of_a_service_is_cut_off_are_served_by_the_other(
    clients: Clients, stand: Stand, service: str
) -> None:
    """Neither a turn nor a call is taken twice, though the one that was cut off had been asked, too."""
    for request in (LONG, CALLS):
        await clients.truth(request)
    name = ranked(MODEL, ["router-1", "router-2"])[0] if service == "router" else f"{service}-1"
    before, seen = stand.watch.incarnations[name], set(stand.watch.calls)
    stand.parts[name].proxy.block()
    async with clients.turns(LONG, CALLS, CALLS) as turns:
        for turn, request in zip(turns, (LONG, CALLS, CALLS), strict=True):
            await clients.same(turn, request)
    new = set(stand.watch.calls) - seen
    await stand.watch.until("every call has its result", lambda: new <= set(stand.watch.results))
    await stand.watch.later(AWAY_S, "frontend-1")
    stand.parts[name].proxy.unblock()
    await stand.watch.until("it is back as another", lambda: stand.watch.incarnations[name] > before)
    assert [stand.letters()[key] for key in new] == [1, 1]
    assert [len(stand.watch.results[key]) for key in new] == [1, 1]


async def test_a_turn_whose_owner_is_cut_off_ends_in_a_clear_error_and_is_not_run_on(
    clients: Clients, stand: Stand
) -> None:
    async with clients.turns(LONG) as (turn,):
        await turn.begun()
        name = await stand.watch.holding("tokenizer", turn.turn_id)
        before = stand.watch.incarnations[name]
        stand.parts[name].proxy.block()
        await clients.failed(turn, "owner_lost")
        stand.parts[name].proxy.unblock()
        await stand.watch.until("it is back as another", lambda: stand.watch.incarnations[name] > before)
        await stand.watch.until("nobody has the turn", lambda: not stand.watch.holder("", turn.turn_id))


async def test_the_turns_of_a_frontend_that_was_cut_off_too_long_end_in_an_error(
    clients: Clients, stand: Stand
) -> None:
    async with clients.turns({**LONG, "max_tokens": 2000}) as (turn,):
        await turn.begun()
        await stand.watch.holding("worker", turn.turn_id)
        proxy = stand.parts["frontend-1"].proxy
        proxy.block()
        await stand.watch.until("its turn was dropped", lambda: not stand.watch.holder("worker", turn.turn_id))
        proxy.unblock()
        await clients.failed(turn, "disconnected")
