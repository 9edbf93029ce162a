"""Every service is restarted under load, one instance after the other, as an upgrade does: no turn fails."""

import asyncio

import pytest

from tests.faults.stand import MODULES, PATIENCE_S, Stand
from tests.faults.turns import CALLS, LONG, Clients

STREAMS = 3


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(300)
async def test_a_rolling_restart_of_every_service_fails_no_turn(clients: Clients, stand: Stand) -> None:
    for request in (LONG, CALLS):
        await clients.truth(request)
    seen = set(stand.watch.calls)
    leaving: set[str] = set()
    over = asyncio.Event()

    async def keep_asking(number: int) -> int:
        turns = 0
        while not over.is_set():
            request = (LONG, CALLS)[(turns + number) % 2]
            frontend = next(name for name in ("frontend-1", "frontend-2") if name not in leaving)
            async with clients.turns(request, frontend=frontend) as (turn,):
                answer = await turn.answer()
                if (
                    answer.error == "draining"
                ):  # it met a frontend that had just begun to leave: a balancer asks another
                    continue
                await clients.same(turn, request)
            turns += 1
        return turns

    async with asyncio.TaskGroup() as tasks:
        askers = [tasks.create_task(keep_asking(number)) for number in range(STREAMS)]
        for service in MODULES:
            for name in (f"{service}-1", f"{service}-2"):
                leaving.add(name)
                assert await asyncio.to_thread(stand.parts[name].process.stop, PATIENCE_S) == 0
                await stand.start_again(name)
                leaving.remove(name)
        over.set()
    new = set(stand.watch.calls) - seen
    await stand.watch.until("every call has its result", lambda: new <= set(stand.watch.results))
    assert {stand.letters()[key] for key in new} == {1}
    assert all(asker.result() > len(MODULES) for asker in askers)
