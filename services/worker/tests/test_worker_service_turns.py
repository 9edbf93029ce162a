"""A worker on the real bus, with the real simulator: turns come, run, are repeated, fenced, cancelled, refused."""

from array import array
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from catenary_protocols.bus.messages import Drain, Refused, TurnAdmitted
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.conversation import Sampling
from catenary_protocols.ids import TurnKey
from catenary_runtime.testing import NatsServer, provisioned
from catenary_worker.testing import TokenizerPeer, new_key, running_worker, tokenizer_peer, worker_settings

W = "w-1"
PROMPT = list(range(300, 340))
ENDLESS = Sampling(max_tokens=100_000, ignore_eos=True)


@pytest.fixture
async def peer(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[TokenizerPeer]:
    """A tokenizer beside a worker that is ready; the simulator runs as fast as it can."""
    await provisioned(nats_server.url, subjects)
    async with (
        running_worker(worker_settings(nats_server, subjects, W)),
        tokenizer_peer(nats_server, subjects) as peer,
    ):
        await peer.until_ready(W)
        yield peer


@pytest.fixture
async def slow(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[TokenizerPeer]:
    """The same with a simulator in real time, so that a long turn is still running when the next thing happens."""
    await provisioned(nats_server.url, subjects)
    settings = worker_settings(nats_server, subjects, W, engine_options='{"time_scale": 1}', drain_s=0.3)
    async with running_worker(settings), tokenizer_peer(nats_server, subjects) as peer:
        await peer.until_ready(W)
        yield peer


async def test_a_turn_streams_its_tokens_in_order_and_ends(peer: TokenizerPeer) -> None:
    key = await peer.run(W, PROMPT, sampling=Sampling(max_tokens=40, ignore_eos=True))
    end = await peer.until_end(key)
    assert end.finish == "length"
    assert len(peer.ids(key)) == 40
    assert peer.firsts[key].cached == 0
    assert [item.cached for frame in peer.frames for item in frame.items].count(0) == 1


async def test_frames_of_a_link_are_numbered_and_the_beat_tells_the_tail(peer: TokenizerPeer) -> None:
    for _ in range(3):
        await peer.until_end(await peer.run(W, PROMPT))
    numbers = [frame.number for frame in peer.frames]
    assert numbers == list(range(1, len(numbers) + 1))
    assert {frame.incarnation for frame in peer.frames} == {peer.loads[W].incarnation}
    await peer.until(lambda: any(tail.to == peer.name and tail.number == numbers[-1] for tail in peer.loads[W].tails))


async def test_turns_of_one_step_share_a_frame(slow: TokenizerPeer) -> None:
    keys = [await slow.run(W, [*PROMPT, n], sampling=ENDLESS) for n in range(4)]
    await slow.until(lambda: any(len(frame.items) == 4 for frame in slow.frames))
    for key in keys:
        slow.cancel(W, key)


async def test_a_repeat_is_answered_the_same_and_runs_once(peer: TokenizerPeer) -> None:
    run = peer.run_turn(W, new_key(), PROMPT)
    answers = [await peer.ask(W, run) for _ in range(3)]
    assert answers == [answers[0]] * 3
    assert answers[0] == TurnAdmitted(turn=run.turn, worker=W, incarnation=peer.loads[W].incarnation)
    await peer.until_end(run.turn)
    assert len(peer.ids(run.turn)) == 16


async def test_a_cancelled_attempt_never_runs_again(slow: TokenizerPeer) -> None:
    key = await slow.run(W, PROMPT, sampling=ENDLESS)
    await slow.until(lambda: len(slow.got.get(key, {})) > 2)
    slow.cancel(W, key)
    answer = await slow.ask(W, slow.run_turn(W, key, PROMPT))
    assert isinstance(answer, Refused)
    assert answer.error.code == "cancelled"
    await slow.until(lambda: slow.loads[W].running == 0 and not slow.loads[W].turns)


async def test_a_cancel_that_overtakes_its_turn_still_counts(peer: TokenizerPeer) -> None:
    key = new_key()
    peer.cancel(W, key)
    answer = await peer.ask(W, peer.run_turn(W, key, PROMPT))
    assert isinstance(answer, Refused)
    assert answer.error.code == "cancelled"


async def test_a_newer_attempt_takes_the_place_of_the_older_one(slow: TokenizerPeer) -> None:
    old = await slow.run(W, PROMPT, sampling=ENDLESS)
    await slow.until(lambda: len(slow.got.get(old, {})) > 2)
    done = slow.ids(old)[:2]
    new = TurnKey(turn_id=old.turn_id, attempt=1)
    await slow.run(W, PROMPT, key=new, generated=array("I", done).tobytes(), sampling=ENDLESS)
    await slow.until(lambda: len(slow.got.get(new, {})) > 5)
    await slow.until(lambda: slow.loads[W].running == 1 and old in slow.ended)
    assert [(turn.turn_id, turn.attempt) for turn in slow.loads[W].turns] == [(new.turn_id, 1)]
    refused = await slow.ask(W, slow.run_turn(W, old, PROMPT))
    assert isinstance(refused, Refused)
    both = slow.got[old].keys() & slow.got[new].keys()
    assert min(slow.got[new]) == 2
    assert {at: slow.got[old][at] for at in both} == {at: slow.got[new][at] for at in both}
    slow.cancel(W, new)


async def test_tokens_are_sent_again_from_any_offset_with_their_end(peer: TokenizerPeer) -> None:
    key = await peer.run(W, PROMPT)
    await peer.until_end(key)
    before = len(peer.frames)
    peer.resend(W, key, offset=10)
    await peer.until(lambda: len(peer.frames) > before)
    again = peer.frames[-1].items[0]
    assert (again.offset, again.finish, again.cached) == (10, "length", 0)
    assert array("I", again.tokens).tolist() == peer.ids(key)[10:]


async def test_tokens_of_a_running_turn_are_sent_again_and_it_goes_on(slow: TokenizerPeer) -> None:
    key = await slow.run(W, PROMPT, sampling=ENDLESS)
    await slow.until(lambda: len(slow.got.get(key, {})) > 4)
    slow.resend(W, key, offset=0)
    await slow.until(lambda: any(len(item.tokens) > 4 for frame in slow.frames for item in frame.items))
    more = len(slow.got[key]) + 3
    await slow.until(lambda: len(slow.got[key]) > more)
    assert slow.ids(key)
    slow.cancel(W, key)


async def test_who_asks_for_tokens_that_are_not_there_is_told(peer: TokenizerPeer) -> None:
    key = new_key()
    peer.resend(W, key, offset=3)
    end = await peer.until_end(key)
    assert end.error is not None
    assert (end.finish, end.error.code, end.error.retry) == ("error", "worker_lost", True)


async def test_what_the_engine_cannot_take_is_refused_with_the_field(peer: TokenizerPeer) -> None:
    for run, code, field in (
        (peer.run_turn(W, new_key(), []), "invalid_value", "prompt"),
        (peer.run_turn(W, new_key(), b"\0\0\0"), "invalid_value", "prompt"),
        (peer.run_turn(W, new_key(), PROMPT, generated=b"\0"), "invalid_value", "generated"),
        (peer.run_turn(W, new_key(), [5] * 140_000), "context_length_exceeded", "prompt"),
        (peer.run_turn(W, new_key(), PROMPT, model="other"), "model_not_found", "model"),
        (peer.run_turn(W, new_key(), PROMPT, card="0" * 16), "no_worker", ""),
    ):
        answer = await peer.ask(W, run)
        assert isinstance(answer, Refused)
        assert (answer.error.code, answer.error.field, answer.turn) == (code, field, run.turn)
    await peer.until_end(await peer.run(W, PROMPT))


async def test_a_request_of_an_older_incarnation_of_its_tokenizer_is_fenced(peer: TokenizerPeer) -> None:
    answer = await peer.ask(W, peer.run_turn(W, new_key(), PROMPT, tokenizer_incarnation=1))
    assert isinstance(answer, Refused)
    assert answer.error.code == "worker_lost"


async def test_a_moved_turn_goes_on_exactly(peer: TokenizerPeer) -> None:
    whole = await peer.run(W, PROMPT, sampling=Sampling(max_tokens=30, ignore_eos=True))
    await peer.until_end(whole)
    ids = peer.ids(whole)
    moved = new_key(attempt=1)
    done = array("I", ids[:11]).tobytes()
    await peer.run(W, PROMPT, key=moved, generated=done, sampling=Sampling(max_tokens=30, ignore_eos=True))
    await peer.until_end(moved)
    assert sorted(peer.got[moved]) == list(range(11, 30))
    assert peer.ids(moved) == ids[11:]


async def test_a_second_turn_reuses_the_blocks_of_the_first(peer: TokenizerPeer) -> None:
    prompt = list(range(1000, 1064))
    await peer.until_end(await peer.run(W, prompt))
    second = await peer.run(W, [*prompt, 7])
    await peer.until_end(second)
    assert peer.firsts[second].cached == 64


async def test_a_draining_worker_takes_no_more_and_hands_back_at_the_deadline(slow: TokenizerPeer) -> None:
    key = await slow.run(W, PROMPT, sampling=ENDLESS)
    await slow.until(lambda: len(slow.got.get(key, {})) > 2)
    slow.do(W, Drain(deadline=1.0))
    end = await slow.until_end(key)
    assert end.error is not None
    assert (end.finish, end.error.code) == ("error", "draining")
    assert end.offset == len(slow.ids(key))
    refused = await slow.ask(W, slow.run_turn(W, new_key(), PROMPT))
    assert isinstance(refused, Refused)
    assert refused.error.code == "draining"
    await slow.until(lambda: slow.loads[W].draining and slow.loads[W].running == 0)


async def test_the_end_of_the_service_hands_back_what_runs(nats_server: NatsServer, subjects: Subjects) -> None:
    await provisioned(nats_server.url, subjects)
    settings = worker_settings(nats_server, subjects, W, engine_options='{"time_scale": 1}', drain_s=0.1)
    async with tokenizer_peer(nats_server, subjects) as peer:
        async with running_worker(settings):
            await peer.until_ready(W)
            key = await peer.run(W, PROMPT, sampling=ENDLESS)
            await peer.until(lambda: len(peer.got.get(key, {})) > 2)
        end = await peer.until_end(key)
        assert end.error is not None
        assert (end.finish, end.error.code) == ("error", "draining")


async def test_the_end_of_the_service_waits_for_what_ends_in_time(nats_server: NatsServer, subjects: Subjects) -> None:
    await provisioned(nats_server.url, subjects)
    settings = worker_settings(nats_server, subjects, W, engine_options='{"time_scale": 1}')
    async with tokenizer_peer(nats_server, subjects) as peer:
        async with running_worker(settings):
            await peer.until_ready(W)
            key = await peer.run(W, PROMPT, sampling=Sampling(max_tokens=20, ignore_eos=True))
        assert (await peer.until_end(key)).finish == "length"
        assert len(peer.ids(key)) == 20


async def test_the_load_tells_what_is_there_and_how_fast_it_is(slow: TokenizerPeer) -> None:
    idle = slow.loads[W]
    assert (idle.running, idle.waiting, idle.kv_used, idle.kv_total, idle.block_size) == (0, 0, 0, 8192, 16)
    assert (idle.max_batch, idle.kv_events, idle.model) == (256, "exact", "catenary-sim")
    key = await slow.run(W, list(range(200, 1000)), sampling=ENDLESS)
    await slow.until(lambda: slow.loads[W].running == 1 and slow.loads[W].decode_ms > 0)
    busy = slow.loads[W]
    assert busy.kv_used >= 50
    assert busy.prefill_tokens_per_s > 0
    assert [(turn.turn_id, turn.at) for turn in busy.turns] == [(key.turn_id, slow.name)]
    seen = [frame.number for frame in slow.frames]
    assert all(later == earlier + 1 for earlier, later in pairwise(seen))
    slow.cancel(W, key)
    await slow.until(lambda: key in slow.ended)
