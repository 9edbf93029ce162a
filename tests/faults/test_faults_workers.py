"""A worker that dies or sleeps: its turns go on at another one, token for token."""

import pytest

from tests.faults.stand import Stand
from tests.faults.turns import CALLS, LONG, Clients

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(150)]


async def test_the_turns_of_a_killed_worker_go_on_at_the_other(clients: Clients, stand: Stand) -> None:
    await clients.truth(LONG)
    async with clients.turns(*([LONG] * 4)) as turns:
        for turn in turns:
            await turn.begun()
        stand.parts[await stand.watch.holding("worker", turns[0].turn_id)].kill()
        for turn in turns:
            await clients.same(turn, LONG)


async def test_a_worker_that_wakes_up_again_says_nothing_of_turns_that_went_on(clients: Clients, stand: Stand) -> None:
    await clients.truth(LONG)
    async with clients.turns(LONG, CALLS) as (turn, calling):
        await turn.begun()
        asleep = await stand.watch.holding("worker", turn.turn_id)
        stand.parts[asleep].freeze()
        before = stand.watch.incarnations[asleep]
        await clients.same(turn, LONG)
        await clients.same(calling, CALLS)
        stand.parts[asleep].wake()
        await stand.watch.until("it is back as another", lambda: stand.watch.incarnations[asleep] > before)
        assert turn.done == 1
        await stand.watch.until("it was told to drop them", lambda: not stand.watch.beats[asleep].turns)
