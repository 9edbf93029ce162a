"""The broker goes away, or the way to it is blocked, while turns run: no token is lost, none comes twice."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.conversation import Sampling
from catenary_protocols.ids import TurnKey
from catenary_runtime.presence import Listener, Peer
from catenary_runtime.testing import NatsServer, Proxy, provisioned, temporary_nats
from catenary_worker.testing import (
    BEAT_S,
    DEATH_LIMIT_S,
    TokenizerPeer,
    running_worker,
    tokenizer_peer,
    worker_settings,
)

W = "w-1"
PROMPT = list(range(300, 340))
LONG = Sampling(max_tokens=700, ignore_eos=True)
PACED = '{"time_scale": 0.5}'


@pytest.fixture
async def broker() -> AsyncIterator[NatsServer]:
    """A broker of the test's own, to be killed."""
    async with temporary_nats() as server:
        yield server


def answers(peer: TokenizerPeer) -> None:
    """Let the peer do what a tokenizer does when a worker or it itself is renewed: ask for what it still wants."""

    def ask(worker: Peer) -> None:
        for turn in worker.beat.turns:
            key = TurnKey(turn_id=turn.turn_id, attempt=turn.attempt)
            if key in peer.lists:
                peer.resend(worker.instance, key, offset=len(peer.got.get(key, {})))
            else:
                peer.cancel(worker.instance, key)

    def on_renewed(_: Peer, new: Peer) -> None:
        if new.service == "worker":
            ask(new)

    def renewed(_: int) -> None:
        for worker in peer.presence.live("worker"):
            ask(worker)

    peer.presence.listen(Listener(on_renewed=on_renewed))
    peer.presence.on_renewed = renewed


async def whole(peer: TokenizerPeer) -> list[int]:
    """The ids of an undisturbed run."""
    key = await peer.run(W, PROMPT, sampling=LONG)
    await peer.until_end(key)
    return peer.ids(key)


async def test_a_broker_that_restarts_at_once_costs_a_resend_at_most(broker: NatsServer, subjects: Subjects) -> None:
    await provisioned(broker.url, subjects)
    async with (
        running_worker(worker_settings(broker, subjects, W, engine_options=PACED, death_limit_s=10.0)) as worker,
        tokenizer_peer(broker, subjects) as peer,
    ):
        peer.presence.death_limit = 10.0
        await peer.until_ready(W)
        truth = await whole(peer)
        key = await peer.run(W, PROMPT, sampling=LONG)
        await peer.until(lambda: len(peer.got.get(key, {})) > 5)
        first = worker.incarnation
        await asyncio.to_thread(broker.restart)
        await peer.until_end(key)
        peer.resend(W, key)  # for the frames that were on their way and died with the broker
        await peer.until(lambda: len(peer.got[key]) == len(truth))
        assert peer.ids(key) == truth
        assert (worker.incarnation, peer.down) == (first, [])


async def test_a_broker_that_is_away_for_long_kills_no_turn(broker: NatsServer, subjects: Subjects) -> None:
    await provisioned(broker.url, subjects)
    async with (
        running_worker(worker_settings(broker, subjects, W, engine_options=PACED)) as worker,
        tokenizer_peer(broker, subjects) as peer,
    ):
        answers(peer)
        await peer.until_ready(W)
        truth = await whole(peer)
        key = await peer.run(W, PROMPT, sampling=LONG)
        await peer.until(lambda: len(peer.got.get(key, {})) > 5)
        first = worker.incarnation
        await asyncio.to_thread(broker.kill)
        await peer.beats(round(2 * DEATH_LIMIT_S / BEAT_S))
        await asyncio.to_thread(broker.start)
        await peer.until_end(key)
        assert peer.ids(key) == truth
        assert worker.incarnation > first
        assert peer.down == []


async def test_a_worker_behind_a_blocked_way_holds_its_tongue_and_gives_up_what_was_moved(
    nats_server: NatsServer, subjects: Subjects
) -> None:
    await provisioned(nats_server.url, subjects)
    proxy = Proxy(nats_server)
    await proxy.start()
    settings = worker_settings(nats_server, subjects, W, engine_options=PACED, nats=proxy.url, drain_s=0.1)
    async with running_worker(settings) as worker, tokenizer_peer(nats_server, subjects) as peer:
        answers(peer)
        await peer.until_ready(W)
        moved = await peer.run(W, PROMPT, sampling=Sampling(max_tokens=100_000, ignore_eos=True))
        await peer.until(lambda: len(peer.got.get(moved, {})) > 5)
        first = worker.incarnation
        proxy.block()
        await peer.until(lambda: peer.down == [W])
        del peer.lists[moved]  # it goes on elsewhere
        await peer.beats(round(DEATH_LIMIT_S / BEAT_S))
        proxy.unblock()
        await peer.until(lambda: moved in peer.ended)
        assert worker.incarnation > first
        assert worker.turns.here == {}
        assert {frame.incarnation for frame in peer.frames} == {first}
        assert peer.ids(moved)
        await peer.until_end(await peer.run(W, PROMPT))
    await proxy.close()
