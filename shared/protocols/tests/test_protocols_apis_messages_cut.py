"""What is whole of a call's input that was cut is what Anthropic's own clients read in it."""

import json
from typing import Any, cast

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from catenary_protocols.apis.messages.cut import whole_part
from hypothesis import given
from hypothesis import strategies as st

leaf = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
value = st.recursive(leaf, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4))
objects = st.dictionaries(st.text(), value, max_size=5)


def read_by_anthropic(text: str) -> object:
    usage = {"input_tokens": 1, "output_tokens": 0}
    message = {"type": "message", "id": "m", "role": "assistant", "model": "m", "content": [], "usage": usage}
    call = {"type": "tool_use", "id": "c", "name": "tide", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": text}
    read: Any = None
    buffers: dict[int, bytes] = {}
    for event in (
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": call},
        {"type": "content_block_delta", "index": 0, "delta": delta},
    ):
        read = accumulate_event(event=cast("Any", event), current_snapshot=read, json_bufs=buffers)
    return read.content[0].input


@given(objects, st.sampled_from([None, 0, 2]), st.booleans(), st.data())
def test_it_is_what_the_clients_read(
    whole: dict[str, Any], indent: int | None, ascii_: bool, data: st.DataObject
) -> None:
    text = json.dumps(whole, indent=indent, ensure_ascii=ascii_)
    part = text[: data.draw(st.integers(1, len(text)))]
    assert json.loads(whole_part(part)) == read_by_anthropic(part)


@given(objects)
def test_what_is_whole_stays_as_it_is(whole: dict[str, Any]) -> None:
    text = json.dumps(whole)
    assert whole_part(text) == text


@pytest.mark.parametrize(
    ("cut", "whole"),
    [
        ("", "{}"),
        ("{", "{}"),
        ('{"port": "Ay', "{}"),
        ('{"port": "Ayr", "da', '{"port": "Ayr"}'),
        ('{"port": "Ayr", "day": ', '{"port": "Ayr"}'),
        ('{"port": "Ayr\\', "{}"),
        ('{"day": 12', '{"day": 12}'),
        ('{"day": 12.', "{}"),
        ('{"day": 1e', "{}"),
        ('{"sure": tru', "{}"),
        ('{"more": [1, {"a": [2], "b', '{"more": [1, {"a": [2]}]}'),
        ('{"more": ["a", "b', '{"more": ["a"]}'),
    ],
)
def test_what_is_half_is_left_out(cut: str, whole: str) -> None:
    assert whole_part(cut) == whole
