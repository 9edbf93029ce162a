"""Encoding: maps with names, defaults left out, unknown fields ignored, broken bytes a typed error."""

from contextlib import suppress

import msgspec
import pytest
from catenary_protocols.bus.codec import Decoder, UndecodableError, encode, encode_json
from catenary_protocols.bus.messages import (
    Beat,
    CancelTurn,
    Drain,
    KvEvents,
    KvStored,
    LiveTurn,
    ResendTokens,
    TokenFrame,
    TurnTokens,
)
from catenary_protocols.bus.tool_plane import ToolCall
from catenary_protocols.ids import TurnKey
from hypothesis import given
from hypothesis import strategies as st

COMMANDS: Decoder[CancelTurn | ResendTokens | Drain] = Decoder(CancelTurn | ResendTokens | Drain)  # type: ignore[arg-type]
u64 = st.integers(0, 2**64 - 1)
keys = st.builds(TurnKey, turn_id=st.text(), attempt=st.integers(0, 2**31))
items = st.builds(
    TurnTokens,
    turn_id=st.text(),
    attempt=st.integers(0, 5000),
    offset=st.integers(0, 2**31),
    tokens=st.binary(),
    cached=st.none() | st.integers(0, 2**31),
    finish=st.sampled_from(("", "stop", "length", "cancelled", "error")),
)


@given(st.builds(TokenFrame, worker=st.text(), incarnation=u64, number=u64, items=st.lists(items).map(tuple)))
def test_a_frame_comes_back_as_it_was(frame: TokenFrame) -> None:
    assert Decoder(TokenFrame)(encode(frame)) == frame


@given(st.builds(KvStored, hashes=st.binary(), parent=st.none() | u64))
def test_sequence_hashes_of_all_64_bits_come_back(stored: KvStored) -> None:
    message = KvEvents(worker="w", incarnation=1, model="m", block_size=16, first=1, events=(stored,))
    assert Decoder(KvEvents)(encode(message)).events == (stored,)


@given(keys)
def test_a_union_decodes_to_the_message_that_was_sent(key: TurnKey) -> None:
    for message in (CancelTurn(turn=key), ResendTokens(turn=key, tokenizer="t", offset=3), Drain(deadline=1.0)):
        assert COMMANDS(encode(message)) == message


@given(st.binary())
def test_any_bytes_are_a_message_or_a_typed_error(data: bytes) -> None:
    with suppress(UndecodableError):
        COMMANDS(data)


def test_defaults_are_left_out() -> None:
    assert msgspec.msgpack.decode(encode(Drain())) == {"type": "Drain"}
    live = LiveTurn(turn_id="t", at="w")
    beat = msgspec.msgpack.decode(encode(Beat(service="s", instance="i", incarnation=1, turns=(live,))))
    assert beat["turns"] == [{"turn_id": "t", "at": "w"}]


def test_a_newer_peers_field_is_ignored() -> None:
    newer = msgspec.msgpack.encode({"type": "Drain", "deadline": 2.0, "mood": "good"})
    assert COMMANDS(newer) == Drain(deadline=2.0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"type": "Unheard"}),
        msgspec.msgpack.encode({"deadline": 1.0}),
        msgspec.msgpack.encode({"type": "CancelTurn"}),
        msgspec.msgpack.encode({"type": "Drain", "deadline": "soon"}),
        encode(Drain(deadline=1.0))[:-1],
        b"\x81\xa4type" + b"\x91" * 100_000,
    ],
    ids=["empty", "no such byte", "tag", "no tag", "field missing", "type", "cut", "deep"],
)
def test_what_is_no_message_says_so(data: bytes) -> None:
    with pytest.raises(UndecodableError, match="cannot decode"):
        COMMANDS(data)


def test_json_values_are_read_by_strangers() -> None:
    call = ToolCall(
        key="t-0-0",
        id="call_1",
        tool="get_weather",
        arguments=msgspec.Raw(b'{"city":"Lund"}'),
        run_by="mesh",
        turn_id="t",
        index=0,
    )
    assert encode_json(call) == (
        b'{"key":"t-0-0","id":"call_1","tool":"get_weather","arguments":{"city":"Lund"},'
        b'"run_by":"mesh","turn_id":"t","index":0}'
    )
    with pytest.raises(UndecodableError):
        Decoder(ToolCall, json=True)(b'{"key": "\xff"}')
