"""An upgrade that is under way, service after service: peers of two versions talk, and every turn is as it would be."""

import asyncio

import pytest
from catenary_protocols.bus.messages import Placement, RunTurn, TurnRequest, WorkerLoad
from msgspec import structs

from tests.faults.skewed import Kind, older_fields
from tests.faults.stand import MODULES, PATIENCE_S, Stand
from tests.faults.turns import CALLS, LONG, RESUMABLE, Clients, Streaming, assembled


@pytest.mark.parametrize("kind", [TurnRequest, Placement, RunTurn, WorkerLoad])
def test_an_older_peer_lacks_fields_that_messages_have_today(kind: Kind) -> None:
    assert older_fields()[kind] < {field.encode_name for field in structs.fields(kind)} | {"type"}


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["older", "newer"])
async def test_services_of_two_versions_serve_turns_together(clients: Clients, stand: Stand, version: str) -> None:
    """The other version comes in service by service; after each step turns go through all of them."""
    for request in (LONG, CALLS):
        await clients.truth(request)
    seen = set(stand.watch.calls)
    try:
        for service in MODULES:
            await run_as(stand, version, service)
            for frontend in ("frontend-1", "frontend-2"):
                async with clients.turns(LONG, CALLS, frontend=frontend) as turns:
                    for turn, request in zip(turns, (LONG, CALLS), strict=True):
                        await clients.same(turn, request)
            await resumed(clients, stand, refused=version == "older" and service != "worker")
    finally:
        for service in MODULES:
            await run_as(stand, "", service)
    new = set(stand.watch.calls) - seen
    await stand.watch.until("every call has its result", lambda: new <= set(stand.watch.results))
    assert {stand.letters()[key] for key in new} == {1}


async def run_as(stand: Stand, version: str, service: str) -> None:
    """Both instances of a service in another version; "" is today's."""
    parts = [part for part in stand.parts.values() if part.service == service]
    for part in parts:
        await asyncio.to_thread(part.process.stop, PATIENCE_S)
        part.process.through = ("tests.faults.skewed", version) if version else ()
    await stand.start_again(*(part.name for part in parts))


async def resumed(clients: Clients, stand: Stand, *, refused: bool) -> None:
    """A stream goes on at the other frontend. An older tokenizer cannot tell it what the turn is, and that is said."""
    async with clients.turns(LONG, headers=RESUMABLE) as (turn,):
        await turn.begun()
    async with stand.client("frontend-2") as client:
        rest = Streaming(turn_id=turn.turn_id)
        await rest.resume(client, turn.last_id)
    if refused:
        assert (rest.status, rest.refused["error"]["code"]) == (404, "not_found")
        return
    turn.chunks += rest.chunks
    assert assembled(turn) == await clients.truth(LONG)
