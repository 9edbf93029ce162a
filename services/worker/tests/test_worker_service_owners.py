"""Whose turns they are: silence, death and new incarnations on either side, on the real bus and simulator."""

from collections.abc import AsyncIterator

import pytest
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.conversation import Sampling
from catenary_protocols.ids import TurnKey
from catenary_runtime.testing import NatsServer, provisioned
from catenary_worker.service import WorkerService
from catenary_worker.testing import TokenizerPeer, running_worker, tokenizer_peer, worker_settings

W = "w-1"
PROMPT = list(range(300, 340))
ENDLESS = Sampling(max_tokens=100_000, ignore_eos=True)


@pytest.fixture
async def worker(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[WorkerService]:
    """In real time, so that a long turn still runs when the next thing happens."""
    await provisioned(nats_server.url, subjects)
    settings = worker_settings(nats_server, subjects, W, engine_options='{"time_scale": 1}', drain_s=0.1)
    async with running_worker(settings) as service:
        yield service


@pytest.fixture
async def peer(worker: WorkerService, nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[TokenizerPeer]:
    """The owner of the test's turns."""
    async with tokenizer_peer(nats_server, subjects) as peer:
        await peer.until_ready(W)
        yield peer


@pytest.fixture
async def other(worker: WorkerService, nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[TokenizerPeer]:
    """A second tokenizer, which sees what becomes of the first one's turns."""
    async with tokenizer_peer(nats_server, subjects, "tok-2") as other:
        await other.until_ready(W)
        yield other


async def started(peer: TokenizerPeer, tokens: int = 3) -> TurnKey:
    key = await peer.run(W, PROMPT, sampling=ENDLESS)
    await peer.until(lambda: len(peer.got.get(key, {})) >= tokens)
    return key


async def test_an_ended_turn_stays_until_its_owner_speaks_of_it_no_more(
    worker: WorkerService, peer: TokenizerPeer
) -> None:
    key = await peer.run(W, PROMPT)
    await peer.until_end(key)
    beats = peer.loads[W].sent_at
    await peer.until(lambda: peer.loads[W].sent_at > beats + 0.3)
    assert key.turn_id in worker.turns.here
    peer.lists.clear()
    await peer.until(lambda: not peer.loads[W].turns)
    assert key.turn_id not in worker.turns.here


async def test_an_ended_turn_that_its_owner_has_got_whole_goes_in_time_though_it_is_still_listed(
    peer: TokenizerPeer,
) -> None:
    key = await peer.run(W, PROMPT)
    await peer.until_end(key)
    await peer.until(lambda: key in peer.ended and not peer.loads[W].turns)
    assert key in peer.lists


async def test_a_running_turn_that_its_owner_forgot_is_cancelled(peer: TokenizerPeer) -> None:
    key = await started(peer)
    del peer.lists[key]
    await peer.until(lambda: key in peer.ended and peer.loads[W].running == 0)
    assert key not in peer.ends


async def test_the_turns_of_a_dead_tokenizer_are_cancelled(peer: TokenizerPeer, other: TokenizerPeer) -> None:
    key, lives = await started(peer), await started(other)
    await peer.hush()
    await other.until(lambda: key in other.ended and other.loads[W].running == 1)
    load = other.loads[W]
    assert [turn.turn_id for turn in load.turns] == [lives.turn_id]
    assert [tail.to for tail in load.tails] == [other.name]


async def test_turns_of_a_tokenizer_that_was_never_heard_of_are_cancelled(
    peer: TokenizerPeer, other: TokenizerPeer
) -> None:
    stranger = await peer.run(W, PROMPT, sampling=ENDLESS, tokenizer="nobody")
    await other.until(lambda: stranger in other.ended and other.loads[W].running == 0)


async def test_turns_that_a_renewed_tokenizer_lists_go_on_and_others_do_not(peer: TokenizerPeer) -> None:
    kept, lost = await started(peer), await started(peer)
    del peer.lists[lost]
    peer.presence.incarnation += 1
    peer.presence.beat_soon()
    await peer.until(lambda: lost in peer.ended)
    more = len(peer.got[kept]) + 5
    await peer.until(lambda: len(peer.got[kept]) >= more)
    assert peer.ids(kept)


async def test_a_restarted_tokenizer_has_no_turns(
    worker: WorkerService, peer: TokenizerPeer, nats_server: NatsServer, subjects: Subjects
) -> None:
    key = await started(peer)
    await peer.hush()
    async with tokenizer_peer(nats_server, subjects, peer.name) as again:
        await again.until(lambda: key in again.ended)


async def test_a_renewed_worker_speaks_only_when_its_owners_said_so(worker: WorkerService, peer: TokenizerPeer) -> None:
    goes_on, cancelled, unanswered = [await started(peer) for _ in range(3)]
    old = peer.loads[W].incarnation
    worker.presence.tick()
    worker.presence._ticked_at -= 10.0
    worker.presence.tick()  # as after ten seconds in which the process stood still
    await peer.until(lambda: peer.renewed == [W])
    new = peer.loads[W].incarnation
    assert new > old
    assert {turn.turn_id for turn in peer.loads[W].turns} == {key.turn_id for key in (goes_on, cancelled, unanswered)}
    peer.frames.clear()
    peer.resend(W, goes_on, offset=len(peer.got[goes_on]))
    peer.cancel(W, cancelled)
    await peer.until(lambda: unanswered in peer.ended)
    more = len(peer.got[goes_on]) + 5
    await peer.until(lambda: len(peer.got[goes_on]) >= more)
    heard = [frame for frame in peer.frames if frame.incarnation == new]
    assert {item.turn_id for frame in heard for item in frame.items} == {goes_on.turn_id}
    assert [frame.number for frame in heard] == list(range(1, len(heard) + 1))
    assert peer.ids(goes_on)


async def test_what_a_held_turn_generated_meanwhile_comes_with_the_owners_word(
    worker: WorkerService, peer: TokenizerPeer
) -> None:
    key = await peer.run(W, PROMPT, sampling=Sampling(max_tokens=60, ignore_eos=True))
    await peer.until(lambda: len(peer.got.get(key, {})) > 2)
    worker.presence._ticked_at -= 10.0
    worker.presence.tick()
    await peer.until(lambda: any(turn.offset == 60 for turn in peer.loads[W].turns))
    assert key not in peer.ends
    peer.resend(W, key, offset=len(peer.got[key]))
    assert (await peer.until_end(key)).finish == "length"
    assert len(peer.ids(key)) == 60
