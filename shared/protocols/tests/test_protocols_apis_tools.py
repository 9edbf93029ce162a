"""Schemas that callers declare: bounded in depth, whatever their texts hold."""

import json
from typing import Any

import pytest
from catenary_protocols.apis.tools import DEEPEST, schema_text, tool_of
from catenary_protocols.errors import RequestError
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

TEXTS = st.text('[]{}"\\a', max_size=12)
VALUES = st.recursive(
    st.none() | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


def depth_of(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth_of, value.values() if isinstance(value, dict) else value), default=0)


@given(VALUES, st.integers(DEEPEST - 12, DEEPEST + 2))
def test_a_schema_is_refused_when_it_is_too_deep_and_only_then(value: Any, levels: int) -> None:
    for _ in range(levels):
        value = {"]]": value}
    text = json.dumps(value).encode()
    if depth_of(value) <= DEEPEST:
        assert schema_text(Raw(text), "f").encode() == text
        return
    with pytest.raises(RequestError, match=f"more than {DEEPEST} levels") as refused:
        schema_text(Raw(text), "f")
    assert refused.value.field == "f"


def test_a_tools_schema_is_bounded_too() -> None:
    deep = b'{"properties":{"a":' + b'{"not":' * DEEPEST + b"{}" + b"}" * DEEPEST + b"}}"
    with pytest.raises(RequestError, match="levels deep") as refused:
        tool_of("t", None, Raw(deep), strict=None, path="tools[0].function.parameters")
    assert refused.value.field == "tools[0].function.parameters"
