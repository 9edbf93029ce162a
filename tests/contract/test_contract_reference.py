"""The generated pages say what the code does; every channel and every message is in them."""

import ast
import json
import re

import msgspec
import pytest
from catenary_protocols.bus import messages, tool_plane
from catenary_protocols.bus.asyncapi import document
from catenary_protocols.bus.codec import encode
from catenary_protocols.bus.permissions import PLACEHOLDER, ROLES, rights
from catenary_protocols.bus.registry import STORED, TRAFFIC
from catenary_protocols.bus.subjects import CHANNELS, Subjects
from catenary_protocols.ids import TurnKey

from tests.contract.reference import PAGES
from tests.contract.workspace import ROOT, tree

DESIGN = ROOT / "docs" / "design.md"


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_what_the_code_says(name: str) -> None:
    assert (ROOT / name).read_text() == PAGES[name](), "run `make reference`"


def test_every_channel_has_its_traffic() -> None:
    assert list(TRAFFIC) == list(CHANNELS)
    for channel in CHANNELS.values():
        traffic = TRAFFIC[channel.name]
        assert bool(traffic.replies) <= (channel.kind == "request")
        assert (traffic.encoding == "json") == channel.name.startswith(("tool_", "sim_", "observe"))


def test_every_message_travels_somewhere() -> None:
    known = {kind for traffic in TRAFFIC.values() for kind in (*traffic.messages, *traffic.replies)} | set(STORED)
    defined = {
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type) and issubclass(kind, messages.Message) and kind is not messages.Message
    }
    plane = {
        getattr(tool_plane, node.name)
        for node in tree(ROOT / tool_plane.__file__).body
        if isinstance(node, ast.ClassDef)
    }
    assert defined | plane == known


def test_references_in_the_document_resolve() -> None:
    whole = document("1")
    for ref in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(whole)):
        at: object = whole
        for step in ref.split("/"):
            assert isinstance(at, dict)
            assert step in at, ref
            at = at[step]


def test_the_schema_of_a_message_names_its_fields() -> None:
    schemas = document("1")["components"]["schemas"]
    for traffic in TRAFFIC.values():
        for kind in (*traffic.messages, *traffic.replies):
            assert set(kind.__struct_fields__) <= set(schemas[kind.__name__]["properties"])


def test_encoded_messages_are_maps_with_their_type() -> None:
    raw = msgspec.msgpack.decode(encode(messages.CancelPlace(turn=TurnKey(turn_id="t"))))
    assert raw == {"type": "CancelPlace", "turn": {"turn_id": "t"}}


def test_the_design_page_lists_every_channel() -> None:
    page = DESIGN.read_text().replace("<", "{").replace(">", "}")
    shown = {"sim_delete": "`.delete`", "sim_report": "`.report`", "sim_script": "`sim.{worker}.script`"}
    missing = [
        channel.pattern for channel in CHANNELS.values() if shown.get(channel.name, f"`{channel.pattern}`") not in page
    ]
    assert not missing


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_no_more_than_its_channels(role: str) -> None:
    subjects = Subjects("n.v1")
    of = rights(role, subjects)  # type: ignore[arg-type]  # parametrised over the literal
    for subject in of.publish:
        own = {"service": role, "tool": PLACEHOLDER}
        channels = [c for c in CHANNELS.values() if subject in {subjects.to(c.name), subjects.to(c.name, **own)}]
        assert subject.startswith(("$JS.", "$KV.", "$O.", "$SRV.")) or any(role in c.senders for c in channels)
    if role != "operator":
        assert "$JS.API.>" not in of.publish
        assert subjects.everything() not in of.subscribe
