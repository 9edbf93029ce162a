"""Subjects: any name becomes one legal token, reversibly; a subject says which names it was built from."""

import re

import pytest
from catenary_protocols.bus.subjects import CHANNELS, SERVICES, TOOL_STREAM_CHANNELS, Subjects, name_of, token
from hypothesis import given
from hypothesis import strategies as st

LEGAL = re.compile(r"[A-Za-z0-9_=-]+")
FIELD = re.compile(r"\{(\w+)\}")
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
channels = st.sampled_from(sorted(CHANNELS))
MESH = Subjects("acme.v2")


@given(names)
def test_a_token_is_legal_and_gives_its_name_back(name: str) -> None:
    assert LEGAL.fullmatch(token(name))
    assert name_of(token(name)) == name


def test_plain_names_stay_readable() -> None:
    assert token("get_weather-2") == "get_weather-2"
    assert token("org/model.v1") == "org=2fmodel=2ev1"
    assert token("=2f") == "=3d2f"


def test_an_empty_name_has_no_token() -> None:
    with pytest.raises(ValueError, match="empty"):
        token("")


@given(channels, st.data())
def test_a_subject_gives_back_the_names_it_was_built_from(channel: str, data: st.DataObject) -> None:
    fields = FIELD.findall(CHANNELS[channel].pattern)
    chosen = {field: data.draw(names) for field in fields}
    subject = MESH.to(channel, **chosen)
    assert MESH.match(channel, subject) == chosen
    assert len(subject.split(".")) == len(CHANNELS[channel].pattern.split(".")) + 2


@given(channels, channels, names)
def test_a_subject_belongs_to_one_channel_only(one: str, other: str, name: str) -> None:
    subject = MESH.to(one, **dict.fromkeys(FIELD.findall(CHANNELS[one].pattern), name))
    if one != other:
        assert MESH.match(other, subject) is None


@given(channels, names)
def test_another_mesh_on_the_same_broker_is_not_ours(channel: str, name: str) -> None:
    subject = Subjects("other.v1").to(channel, **dict.fromkeys(FIELD.findall(CHANNELS[channel].pattern), name))
    assert MESH.match(channel, subject) is None
    assert MESH.match(channel, subject.removeprefix("other.v1.")) is None


def test_a_token_that_no_name_has_matches_nothing() -> None:
    assert MESH.match("tokens", "acme.v2.tokens.=ff") is None


def test_fields_left_out_become_wildcards() -> None:
    assert MESH.to("load") == "acme.v2.load.*"
    assert MESH.to("beat", service="frontend") == "acme.v2.beat.frontend.*"
    assert MESH.everything() == "acme.v2.>"


def test_jetstream_names_carry_the_slug() -> None:
    assert MESH.tool_stream == "acme-v2-TOOLS"
    assert {MESH.models_bucket, MESH.artifacts_bucket, MESH.responses_bucket} == {
        "acme-v2-models",
        "acme-v2-artifacts",
        "acme-v2-responses",
    }
    assert MESH.queue_group("overlap") == "acme-v2-overlap"
    assert MESH.executor_consumer("a.b") == "exec-a=2eb"


def test_every_channel_names_roles_that_exist_and_patterns_do_not_overlap() -> None:
    roles = {*SERVICES, "executor", "approver", "operator", "test"}
    shapes = [FIELD.sub("*", channel.pattern) for channel in CHANNELS.values()]
    assert len(set(shapes)) == len(shapes)
    for channel in CHANNELS.values():
        assert {*channel.senders, *channel.receivers} <= roles
    assert all(channel.pattern.startswith("tool.") for channel in TOOL_STREAM_CHANNELS)
