"""Token ids that a caller names."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import Detokenize, Refused, TokenText
from catenary_protocols.conversation import Sampling
from catenary_protocols.turn_events import Failed
from catenary_runtime.bus import Bus
from catenary_runtime.testing import NatsServer
from catenary_tokenizer_service.testing import TOKENIZER, Peers, asking, owner_among, turn_request
from catenary_tokenizers import embedded_path, load, pack

HELLO = asking("hello")
VOCABULARY = load(embedded_path())
LAST = len(VOCABULARY.table.pieces) - 1
_reply: Decoder[TokenText | Refused] = Decoder(TokenText | Refused)  # type: ignore[arg-type]


@pytest.fixture
async def peers(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[Peers]:
    async with owner_among(nats_server, bus, embedded_path(), tmp_path) as (_, peers):
        yield peers


async def test_an_id_past_the_vocabulary_is_no_token_anywhere(peers: Peers) -> None:
    async def asked(message: Detokenize) -> object:
        subject = peers.bus.subjects.to("turn", tokenizer=TOKENIZER)
        return _reply(await peers.bus.request(subject, encode(message), within=10))

    assert isinstance(await asked(Detokenize(model="m", ids=pack([LAST, 0]))), TokenText)
    refused = await asked(Detokenize(model="m", ids=pack([0, LAST + 1, 2])))
    assert isinstance(refused, Refused)
    assert (refused.error.code, refused.error.field) == ("invalid_value", "tokens")
    assert refused.error.message == f"`tokens`: {LAST + 1} is no token of this model; its last is {LAST}"


async def test_the_clients_stop_tokens_stand_beside_the_models_own(peers: Peers) -> None:
    own = sorted(VOCABULARY.eos_ids)

    async def stops(**said: Any) -> list[int]:
        one = turn_request(HELLO, sampling=Sampling(**said))
        await peers.submit(one)
        return list((await peers.run_of(one.turn.turn_id)).stop_token_ids)

    assert await stops() == own
    assert await stops(stop_token_ids=(LAST, own[0])) == sorted({*own, LAST})
    assert await stops(stop_token_ids=(LAST,), ignore_eos=True) == [LAST]
    one = turn_request(HELLO, sampling=Sampling(stop_token_ids=(0, LAST + 1)))
    await peers.submit(one)
    log = peers.events.setdefault(one.turn.turn_id, [])
    await peers.until(lambda: bool(log) and isinstance(log[-1], Failed))
    end = log[-1]
    assert isinstance(end, Failed)
    assert (end.error.code, end.error.field) == ("invalid_value", "stop_token_ids")
