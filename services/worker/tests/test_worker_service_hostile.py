"""Messages nobody should send: each is refused or dropped, and the worker goes on."""

import random
from collections.abc import AsyncIterator

import msgspec
import pytest
from catenary_protocols.bus.codec import encode
from catenary_protocols.bus.messages import CancelTurn, KvReplay, Refused, ResendTokens, SnapshotQuery, TurnTokens
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.conversation import Sampling
from catenary_protocols.ids import TurnKey
from catenary_runtime.testing import NatsServer, provisioned
from catenary_worker.testing import TokenizerPeer, new_key, running_worker, tokenizer_peer, worker_settings

W = "w-1"
PROMPT = list(range(300, 340))


@pytest.fixture
async def peer(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[TokenizerPeer]:
    """Beside a worker that is ready; at the end the worker must still serve."""
    await provisioned(nats_server.url, subjects)
    async with (
        running_worker(worker_settings(nats_server, subjects, W)) as worker,
        tokenizer_peer(nats_server, subjects) as peer,
    ):
        await peer.until_ready(W)
        first = worker.incarnation
        yield peer
        key = await peer.run(W, PROMPT, sampling=Sampling(max_tokens=5, ignore_eos=True))
        assert (await peer.until_end(key)).finish == "length"
        assert worker.incarnation == first


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tokenizer": ""}, "tokenizer"),
        ({"turn": TurnKey(turn_id="")}, "turn"),
        ({"turn": TurnKey(turn_id="t", attempt=-1)}, "turn"),
        ({"sampling": Sampling(max_tokens=-1)}, "max_tokens"),
    ],
)
async def test_a_turn_that_makes_no_sense_is_refused_with_the_field(
    peer: TokenizerPeer, fields: dict[str, object], field: str
) -> None:
    run = msgspec.structs.replace(peer.run_turn(W, new_key(), PROMPT), **fields)
    answer = await peer.ask(W, run)
    assert isinstance(answer, Refused)
    assert (answer.error.field, answer.turn) == (field, run.turn)


async def test_commands_for_nothing_change_nothing(peer: TokenizerPeer) -> None:
    key = TurnKey(turn_id="", attempt=-5)
    peer.do(W, CancelTurn(turn=key))
    peer.do(W, ResendTokens(turn=key, tokenizer="", offset=-3))
    peer.do(W, ResendTokens(turn=new_key(), tokenizer=peer.name, offset=-3))
    await peer.until(lambda: len(peer.ends) == 1)


async def test_an_offset_that_is_not_there_gets_what_there_is(peer: TokenizerPeer) -> None:
    key = await peer.run(W, PROMPT)
    await peer.until_end(key)

    async def again(offset: int) -> TurnTokens:
        before = len(peer.frames)
        peer.resend(W, key, offset=offset)
        await peer.until(lambda: len(peer.frames) > before)
        return peer.frames[-1].items[0]

    assert [(len(item.tokens) // 4, item.finish) for item in (await again(-7), await again(999))] == [
        (16, "length"),
        (0, "length"),
    ]


async def test_noise_on_every_subject_of_a_worker_is_counted_and_dropped(peer: TokenizerPeer) -> None:
    rng = random.Random(7)  # noqa: S311
    subjects = peer.bus.subjects
    whole = [
        encode(peer.run_turn(W, new_key(), PROMPT)),
        encode(CancelTurn(turn=new_key())),
        encode(KvReplay(rank=-1, first=-9)),
        encode(SnapshotQuery(rank=0, page=-3, as_of=-1)),
    ]
    for subject in (
        subjects.to("do", worker=W),
        subjects.to("snapshot", worker=W),
        subjects.to("beat", service="tokenizer", instance="x"),
    ):
        for message in whole:
            peer.bus.publish(subject, message)
            for _ in range(20):
                noise = bytearray(message)
                noise[rng.randrange(len(noise))] = rng.randrange(256)
                peer.bus.publish(subject, bytes(noise[: rng.randrange(1, len(noise) + 1)]), reply="nobody.listens")
