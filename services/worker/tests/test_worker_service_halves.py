"""Two workers share a turn over the bus: one computes the prompt, the other goes on from its handoff."""

from collections.abc import AsyncIterator

import pytest
from catenary_protocols.bus.messages import Refused
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.conversation import Sampling
from catenary_protocols.ids import TurnKey
from catenary_runtime.testing import NatsServer, provisioned
from catenary_worker.testing import TokenizerPeer, new_key, running_worker, tokenizer_peer, worker_settings

P, D = "w-prefill", "w-decode"
PROMPT = list(range(300, 400))
SAMPLING = Sampling(max_tokens=20, ignore_eos=True)


@pytest.fixture
async def peer(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[TokenizerPeer]:
    await provisioned(nats_server.url, subjects)
    roles = [
        worker_settings(nats_server, subjects, name, engine_options=f'{{"time_scale": 0, "role": "{role}"}}')
        for name, role in ((P, "prefill"), (D, "decode"))
    ]
    async with tokenizer_peer(nats_server, subjects) as peer, running_worker(roles[0]), running_worker(roles[1]):
        for name in (P, D):
            await peer.until_ready(name)
        yield peer


async def test_a_handoff_travels_in_messages(peer: TokenizerPeer) -> None:
    assert (peer.loads[P].halves, peer.loads[D].halves) == (("prefill",), ("decode", "whole"))
    first = await peer.run(P, PROMPT, half="prefill", sampling=SAMPLING)
    end = await peer.until_end(first)
    assert (end.finish, end.tokens, end.cached) == ("handoff", b"", 0)
    second = TurnKey(turn_id=first.turn_id, attempt=1)
    await peer.run(D, PROMPT, key=second, half="decode", handoff=end.handoff, sampling=SAMPLING)
    await peer.until_end(second)
    assert peer.firsts[second].cached == len(PROMPT) - 1
    alone = TurnKey(turn_id=first.turn_id, attempt=2)
    await peer.run(D, PROMPT, key=alone, sampling=SAMPLING)
    await peer.until_end(alone)
    assert peer.ids(second) == peer.ids(alone)
    assert len(peer.ids(second)) == 20


async def test_a_handoff_whose_frame_was_lost_is_sent_again(peer: TokenizerPeer) -> None:
    key = await peer.run(P, PROMPT, half="prefill", sampling=SAMPLING)
    told = (await peer.until_end(key)).handoff
    peer.ends.clear()
    peer.resend(P, key)
    assert (await peer.until_end(key)).handoff == told != b""


@pytest.mark.parametrize(
    ("worker", "more", "field"),
    [
        (P, {}, "half"),
        (P, {"half": "decode", "handoff": b"x"}, "half"),
        (D, {"half": "prefill"}, "half"),
        (D, {"half": "decode"}, "handoff"),
        (D, {"handoff": b"x"}, "handoff"),
        (D, {"half": "decode", "handoff": b"x"}, "handoff"),
    ],
)
async def test_what_a_worker_does_not_do_is_refused(
    peer: TokenizerPeer, worker: str, more: dict[str, object], field: str
) -> None:
    answer = await peer.ask(worker, peer.run_turn(worker, new_key(), PROMPT, **more))
    assert isinstance(answer, Refused)
    assert answer.error.field == field
