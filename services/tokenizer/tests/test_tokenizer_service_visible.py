"""Which tokens are told of with which text: each of the visible ones once, and no other."""

from itertools import pairwise

from catenary_protocols.bus.messages import ModelCard
from catenary_protocols.conversation import TokenLogprob, Tool
from catenary_protocols.turn_events import TextDelta, TurnEvent, VisibleToken
from catenary_tokenizer_service.core.calls import policy_for
from catenary_tokenizer_service.egress.stream import AnswerStream
from catenary_tokenizer_service.models import ServedModel, open_model
from catenary_tokenizers import embedded_path, unpack
from hypothesis import given
from hypothesis import strategies as st

TOOL = Tool(name="get_weather", schema='{"type":"object","properties":{"city":{"type":"string"}}}')
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bergen"}}\n</tool_call>'
PIECES = [
    "<think>\nIt’s easy 🙂.\n</think>\n\n",
    "Let me see.",
    "\n",
    CALL,
    " <tool",
    " 🙂 é",
    " it rains",
    " STOP",
    " a < b",
]
_models: list[ServedModel] = []


def model() -> ServedModel:
    if not _models:
        card = ModelCard(model="m", card="c", context=4096, block_size=16, artifacts={}, parser="hermes")
        _models.append(open_model(card, embedded_path()))
    return _models[0]


def answer(ids: bytes, cuts: list[int], stop: tuple[str, ...] = ()) -> list[TurnEvent]:
    """The events of these tokens, in steps; the logprob of a token is minus its place."""
    tokens = unpack(ids)
    stream = AnswerStream(
        model(), "t" * 26, policy_for(["get_weather"], (), "auto"), tools=[TOOL], stop=stop, likely=True
    )
    events: list[TurnEvent] = []
    edges = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
    for start, end in pairwise(edges):
        told = tuple(TokenLogprob(logprob=-place, top={tokens[place]: -place}) for place in range(start, end))
        events += stream.push(ids[4 * start : 4 * end], told)
    return events + stream.close("stop")


def told(events: list[TurnEvent]) -> tuple[str, list[VisibleToken]]:
    texts = [event for event in events if isinstance(event, TextDelta)]
    return "".join(one.text for one in texts), [token for one in texts for token in one.tokens]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6), st.lists(st.integers(0, 400), max_size=4))
def test_tokens_told_of_are_those_of_the_visible_text_in_order_and_once(said: list[str], cuts: list[int]) -> None:
    ids = model().tokenizer.encode("".join(said), special=True)
    text, tokens = told(answer(ids, cuts))
    spelled = b"".join(token.piece for token in tokens).decode()
    assert "".join(text.split()) in "".join(spelled.split())
    places = [-token.logprob for token in tokens]
    assert places == sorted(set(places))
    assert [model().tokenizer.table.piece(unpack(ids)[int(place)]) for place in places] == [one.piece for one in tokens]
    assert all([other.piece for other in token.top] == [token.piece] for token in tokens)


def test_neither_thoughts_nor_calls_are_told_of() -> None:
    ids = model().tokenizer.encode(f"<think>\nI look.\n</think>\n\nOnce.\n{CALL}\nTwice.", special=True)
    text, tokens = told(answer(ids, []))
    assert text == "Once.Twice."
    assert b"".join(token.piece for token in tokens).decode().split() == ["Once.", "Twice."]


def test_a_character_of_several_tokens_comes_with_all_of_them() -> None:
    ids = model().tokenizer.encode("🙂", special=False)
    assert len(unpack(ids)) > 1
    text, tokens = told(answer(ids, [1, 2]))
    assert (text, b"".join(token.piece for token in tokens).decode()) == ("🙂", "🙂")


def test_what_a_stop_string_cuts_off_is_not_told_of() -> None:
    ids = model().tokenizer.encode("It rains. STOP here.", special=False)
    text, tokens = told(answer(ids, [], stop=("STOP",)))
    assert text == "It rains. "
    assert b"".join(token.piece for token in tokens).decode().startswith("It rains.")
    assert b"STOP" not in b"".join(token.piece for token in tokens)


def test_a_token_of_which_the_engine_knows_nothing_is_left_out() -> None:
    ids = model().tokenizer.encode("It rains.", special=False)
    stream = AnswerStream(model(), "t" * 26, policy_for([], (), "auto"), likely=True)
    first, *_ = unpack(ids)
    unknown = tuple(None if token == first else TokenLogprob(logprob=-1.0) for token in unpack(ids))
    _, tokens = told(stream.push(ids, unknown) + stream.close("stop"))
    assert b"".join(token.piece for token in tokens).decode() == " rains."
