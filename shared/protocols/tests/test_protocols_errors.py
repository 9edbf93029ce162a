"""One table for every error; what travels is what was raised."""

import json
from collections.abc import Callable

import pytest
from catenary_protocols.apis.error_bodies import anthropic_error, openai_error
from catenary_protocols.errors import (
    TABLE,
    CapacityError,
    CatenaryError,
    EngineError,
    ErrorInfo,
    RequestError,
    ToolError,
    TransportError,
    kind_of,
)
from hypothesis import given
from hypothesis import strategies as st

TREE = [RequestError, CapacityError, EngineError, ToolError, TransportError]
infos = st.builds(
    ErrorInfo,
    code=st.sampled_from(sorted(TABLE)),
    message=st.text(),
    field=st.text(),
    retry_after=st.floats(0, 60),
    retry=st.booleans(),
)


@pytest.mark.parametrize("kind", TREE)
def test_every_error_is_in_the_tree_and_its_code_in_the_table(kind: type[CatenaryError]) -> None:
    error = kind("no")
    assert isinstance(error, CatenaryError)
    assert error.code in TABLE
    assert str(error) == error.message == "no"


@given(infos)
def test_an_error_travels_whole(info: ErrorInfo) -> None:
    assert RequestError.from_info(info).info == info


def test_an_unknown_code_reads_as_internal() -> None:
    assert kind_of("of a newer peer") is TABLE["internal"]


@pytest.mark.parametrize(("code", "kind"), sorted(TABLE.items()))
def test_every_code_is_an_error_status_with_a_type_for_each_api(code: str, kind: object) -> None:
    row = kind_of(code)
    assert row is kind
    assert 400 <= row.status < 600
    assert row.openai_type.endswith("_error")
    assert row.anthropic_type.endswith("_error") or row.anthropic_type == "request_too_large"


def test_who_is_to_blame_shows_in_the_status() -> None:
    assert kind_of(RequestError.default_code).status == 400
    assert kind_of(CapacityError.default_code).status == 503
    assert kind_of("queue_full").status == 429
    assert kind_of(EngineError.default_code).status == 500


@pytest.mark.parametrize("body_of", [openai_error, anthropic_error])
def test_a_body_says_when_it_must_not_be_tried_again(body_of: Callable[[ErrorInfo], bytes]) -> None:
    said = [
        json.loads(body_of(ErrorInfo(code="owner_lost", message="gone", retry=retry)))["error"]
        for retry in (True, False)
    ]
    assert [error.get("retry") for error in said] == [None, False]
