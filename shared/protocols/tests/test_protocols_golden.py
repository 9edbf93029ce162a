"""What an older peer sent must keep decoding, and mean the same."""

from pathlib import Path

import msgspec
import pytest
from catenary_protocols.bus.codec import Decoder, encode, encode_json
from catenary_protocols.bus.examples import TOOL_PLANE, example, golden_files, main, message_types
from catenary_protocols.bus.messages import Message
from catenary_protocols.wire import Wire
from msgspec.msgpack import decode

GOLDEN = Path(__file__).parent / "golden"
MESSAGES = message_types()


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_message_of_an_older_peer_decodes_and_says_the_same(kind: type[Message]) -> None:
    golden = (GOLDEN / f"{kind.__name__}.msgpack").read_bytes()
    again = encode(Decoder(kind)(golden))
    assert decode(again) == decode(golden)  # not the bytes: with its sixteenth field a map gets a longer head


@pytest.mark.parametrize("kind", TOOL_PLANE, ids=lambda kind: kind.__name__)
def test_a_tool_plane_value_of_an_older_peer_decodes_and_says_the_same(kind: type[Wire]) -> None:
    golden = (GOLDEN / f"{kind.__name__}.json").read_bytes()
    assert encode_json(Decoder(kind, json=True)(golden)) == golden


def test_every_message_has_a_golden_file_and_no_file_is_left_over() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {name for name, _ in golden_files()}


@pytest.mark.parametrize("kind", [*MESSAGES, *TOOL_PLANE], ids=lambda kind: kind.__name__)
def test_an_example_has_no_field_at_its_default(kind: type[Wire]) -> None:
    told = msgspec.json.decode(encode_json(example(kind)), type=dict[str, object])
    assert set(kind.__struct_encode_fields__) <= set(told)


def test_a_golden_file_that_is_there_is_never_made_anew(tmp_path: Path) -> None:
    (tmp_path / "Beat.msgpack").write_bytes(b"old")
    assert main(tmp_path) == 0
    assert (tmp_path / "Beat.msgpack").read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {name for name, _ in golden_files()}


def test_message_names_are_the_tags_on_the_wire_and_unique() -> None:
    tags = [kind.__struct_config__.tag for kind in MESSAGES]
    assert tags == [kind.__name__ for kind in MESSAGES]
    assert len(set(tags)) == len(tags)
