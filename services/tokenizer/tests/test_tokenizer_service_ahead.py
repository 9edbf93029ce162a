"""What a session's worker is told while the session is away: how long to keep its blocks, what to compute ahead."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from catenary_protocols.bus.codec import encode_json
from catenary_protocols.bus.messages import CancelTurn, PlaceTurn, Retain, Retention, RunTurn, TurnRequest
from catenary_protocols.bus.tool_plane import ToolResult
from catenary_protocols.conversation import (
    AssistantMessage,
    CallPart,
    Conversation,
    Hints,
    Message,
    ReasoningPart,
    TextPart,
    Tool,
    ToolMessage,
    UserMessage,
)
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.turn_events import CallComplete, Finished, ReasoningDelta, TextDelta
from catenary_runtime.bus import Bus
from catenary_runtime.testing import NatsServer
from catenary_tokenizer_service.core.away import LEAST_S, UNKNOWN_S
from catenary_tokenizer_service.core.kept import AWAY
from catenary_tokenizer_service.service import TokenizerService
from catenary_tokenizer_service.testing import Peers, asking, owner_among, turn_request
from catenary_tokenizers import ModelTokenizer, embedded_path, load
from prometheus_client import REGISTRY

TOOL = Tool(name="get_weather", schema='{"type":"object","properties":{"city":{"type":"string"}}}')
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bergen"}}\n</tool_call>'
RESULT = "It is raining in Bergen, as on every day of the year, and the wind is from the west at nine metres a second."
REASONING = "<think>\nLet me see what the person wants to hear of me today, in so many words.\n</think>\n\n"
Owner = tuple[TokenizerService, Peers]


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    return load(embedded_path())


@pytest.fixture
async def owner(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[Owner]:
    async with owner_among(nats_server, bus, embedded_path(), tmp_path) as one:
        yield one


@pytest.fixture
def peers(owner: Owner) -> Peers:
    return owner[1]


def says(text: str) -> UserMessage:
    return UserMessage(parts=(TextPart(text=text),))


def request(*messages: Message, **more: object) -> TurnRequest:
    return turn_request(
        Conversation(messages=messages or (says("What is the weather in Bergen?"),), tools=(TOOL,)), **more
    )


async def turn(peers: Peers, tokenizer: ModelTokenizer, one: TurnRequest, text: str) -> RunTurn:
    """Run a turn to its end; what its worker was told."""
    await peers.submit(one)
    run = await peers.run_of(one.turn.turn_id)
    ids = tokenizer.encode(f"{text}<|im_end|>", special=True)
    peers.tokens("w1", one.turn.turn_id, ids, cached=0, finish="stop", stop_token=True)
    log = peers.events.setdefault(one.turn.turn_id, [])
    await peers.until(lambda: bool(log) and isinstance(log[-1], Finished))
    return run


async def told(peers: Peers, count: int = 1) -> list[Retain]:
    await peers.until(lambda: len(peers.of(Retain)) >= count)
    return [one for one in peers.of(Retain) if isinstance(one, Retain)]


def called(peers: Peers, turn_id: str) -> CallComplete:
    return next(event for event in peers.events[turn_id] if isinstance(event, CallComplete))


# --- retention --------------------------------------------------------------------------------------------------------


async def test_a_session_with_tools_is_kept_as_long_as_its_tools_usually_take(
    peers: Peers, tokenizer: ModelTokenizer
) -> None:
    for _ in range(20):
        run = await turn(peers, tokenizer, request(), CALL)
    assert run.retention.priority == AWAY
    assert run.retention.seconds == LEAST_S, "it came back at once so often that it is expected at once"
    first = peers.of(RunTurn)[0]
    assert isinstance(first, RunTurn)
    assert first.retention == Retention(priority=AWAY, seconds=UNKNOWN_S)


async def test_an_answer_makes_a_session_ordinary_and_ends_a_sub_agents(
    peers: Peers, tokenizer: ModelTokenizer
) -> None:
    await turn(peers, tokenizer, request(), "Rain.")
    await turn(peers, tokenizer, request(session="child", subagent=True), "Rain.")
    assert await told(peers, 2) == [
        Retain(session="s", retention=Retention()),
        Retain(session="child", retention=Retention(priority=-1)),
    ]


async def test_a_sessions_last_turn_gives_its_blocks_up_by_itself(peers: Peers, tokenizer: ModelTokenizer) -> None:
    run = await turn(peers, tokenizer, request(session_final=True), CALL)
    assert run.retention == Retention(priority=-1)
    await turn(peers, tokenizer, request(session="other"), "Rain.")
    assert await told(peers) == [Retain(session="other", retention=Retention())]


async def test_a_session_without_tools_is_not_kept(peers: Peers, tokenizer: ModelTokenizer) -> None:
    plain = turn_request(asking("hi"))
    assert (await turn(peers, tokenizer, plain, "Rain.")).retention == Retention()


async def test_where_a_session_moved_away_from_nothing_is_kept_for_it(peers: Peers, tokenizer: ModelTokenizer) -> None:
    await turn(peers, tokenizer, request(), CALL)
    place = peers.placed

    def elsewhere(message: PlaceTurn) -> object:
        return place(PlaceTurn(**{**{f: getattr(message, f) for f in message.__struct_fields__}, "not_on": ("w1",)}))

    peers.router = elsewhere  # type: ignore[assignment]
    one = request()
    await peers.submit(one)
    await peers.run_of(one.turn.turn_id)
    assert (await told(peers))[-1] == Retain(session="s", retention=Retention())


# --- speculative prefill ----------------------------------------------------------------------------------------------

AHEAD = Hints(speculative_prefill=True)


def outcome(cause: str, what: str) -> float:
    labels = {"cause": cause, "outcome": what}
    return REGISTRY.get_sample_value("catenary_speculative_prefills_total", labels) or 0.0


def prefills(peers: Peers) -> list[RunTurn]:
    known = {one.turn.turn_id for one in peers.of(PlaceTurn) if isinstance(one, PlaceTurn)}
    return [one for one in peers.of(RunTurn) if isinstance(one, RunTurn) and one.turn.turn_id not in known]


async def prefill_of(peers: Peers) -> RunTurn:
    await peers.until(lambda: bool(prefills(peers)))
    return prefills(peers)[0]


def publish(bus: Bus, call: CallComplete, output: str, error: ErrorInfo | None = None) -> None:
    result = ToolResult(key=call.key, tool=call.name, output=output, error=error)
    bus.publish(bus.subjects.to("tool_result", tool=call.name, key=call.key), encode_json(result))


@pytest.mark.parametrize("api", ["chat", "messages"])
@pytest.mark.parametrize("error", [None, ErrorInfo(code="tool_failed", message=RESULT)])
async def test_what_the_next_turn_asks_is_computed_up_to_the_results(
    bus: Bus, peers: Peers, tokenizer: ModelTokenizer, error: ErrorInfo | None, api: str
) -> None:
    one = request(hints=AHEAD, run_tools=("*",), salt="mine", api=api)
    first = await turn(peers, tokenizer, one, f"{REASONING}One moment.\n{CALL}")
    call = called(peers, one.turn.turn_id)
    publish(bus, call, "" if error else RESULT, error)
    ahead = await prefill_of(peers)
    assert (ahead.salt, ahead.session, ahead.sampling.max_tokens) == ("mine", "s", 1)
    assert ahead.hints.priority < first.hints.priority
    assert ahead.retention.priority == AWAY
    assert ahead.generated == b""
    thought = "".join(e.text for e in peers.events[one.turn.turn_id] if isinstance(e, ReasoningDelta))
    said = "".join(e.text for e in peers.events[one.turn.turn_id] if isinstance(e, TextDelta))
    back = (TextPart(text=said), CallPart(id=call.id, name=call.name, arguments=call.arguments))
    thoughts = (ReasoningPart(text=thought),) if api == "messages" else ()
    answer = AssistantMessage(parts=(*thoughts, *back), left_out=api == "chat")
    failed = error is not None and api == "messages"
    result = ToolMessage(call_id=call.id, parts=(TextPart(text=RESULT),), name=call.name, is_error=failed)
    again = request(says("What is the weather in Bergen?"), answer, result, salt="mine")
    await peers.submit(again)
    real = await peers.run_of(again.turn.turn_id)
    assert real.prompt == ahead.prompt, "to the last token"


async def test_the_real_turn_cancels_what_is_computed_ahead(bus: Bus, peers: Peers, tokenizer: ModelTokenizer) -> None:
    cancelled = outcome("results", "cancelled")
    one = request(hints=AHEAD, run_tools=("*",))
    await turn(peers, tokenizer, one, CALL)
    publish(bus, called(peers, one.turn.turn_id), RESULT)
    ahead = await prefill_of(peers)
    await peers.submit(request())
    await peers.until(lambda: any(isinstance(m, CancelTurn) and m.turn == ahead.turn for m in peers.seen))
    assert outcome("results", "cancelled") == cancelled + 1


async def test_a_prefill_is_alive_in_our_beats_until_it_has_ended_and_counts_what_it_computed(
    owner: Owner, bus: Bus, tokenizer: ModelTokenizer
) -> None:
    service, peers = owner
    done = outcome("results", "done")
    tokens = REGISTRY.get_sample_value("catenary_speculative_prefill_tokens_total") or 0.0
    one = request(hints=AHEAD, run_tools=("*",))
    await turn(peers, tokenizer, one, CALL)
    publish(bus, called(peers, one.turn.turn_id), RESULT)
    ahead = await prefill_of(peers)
    assert [live.turn_id for live in service.turns.ahead.live()] == [ahead.turn.turn_id]
    peers.tokens("w1", ahead.turn.turn_id, b"\0\0\0\0", cached=16, finish="length")
    await turn(peers, tokenizer, request(session="other"), "Rain.")
    assert not service.turns.ahead.live()
    assert outcome("results", "done") == done + 1
    computed = (REGISTRY.get_sample_value("catenary_speculative_prefill_tokens_total") or 0.0) - tokens
    assert computed == len(ahead.prompt) / 4 - 16


async def test_an_answer_that_comes_back_without_its_reasoning_is_computed_anew_ahead(
    peers: Peers, tokenizer: ModelTokenizer
) -> None:
    one = request(hints=AHEAD)
    text = "I am well, thank you, and I hope that you are too, wherever you may be reading this."
    first = await turn(peers, tokenizer, one, REASONING + text)
    ahead = await prefill_of(peers)
    shared = len(first.prompt)
    assert ahead.prompt[:shared] == first.prompt
    rest = tokenizer.decode(ahead.prompt[shared:])
    assert rest.startswith(text)
    assert "think" not in rest
    answer = AssistantMessage(parts=(TextPart(text=text),))
    again = request(says("What is the weather in Bergen?"), answer, says("And now?"))
    await peers.submit(again)
    real = await peers.run_of(again.turn.turn_id)
    assert real.prompt.startswith(ahead.prompt)
    assert len(real.prompt) - len(ahead.prompt) < 4 * 16, "all but the new question"


USELESS: dict[str, tuple[dict[str, object], str]] = {
    "it did not ask": ({}, f"{REASONING}{CALL}"),
    "the client runs its calls": ({"hints": AHEAD}, f"{REASONING}{CALL}"),
    "all of it stands in the cache": ({"hints": AHEAD}, "Rain."),
    "its reasoning comes back": ({"hints": AHEAD, "api": "messages"}, f"{REASONING}Rain."),
    "who knows what comes back": (
        {"hints": AHEAD, "run_tools": ("*",)},
        f"{CALL}<tool_call>\n{{oops\n</tool_call>",
    ),
}


async def test_nothing_is_computed_ahead_where_it_cannot_help(
    bus: Bus, peers: Peers, tokenizer: ModelTokenizer
) -> None:
    for why, (more, text) in USELESS.items():
        one = request(session=why, **more)
        await turn(peers, tokenizer, one, text)
        if CALL in text:
            publish(bus, called(peers, one.turn.turn_id), RESULT)
    useful = request(session="useful", hints=AHEAD)  # what it leads to comes after all that others would have
    await turn(peers, tokenizer, useful, f"{REASONING}I am well, thank you, and I hope that you are, wherever you are.")
    await prefill_of(peers)
    assert [one.session for one in prefills(peers)] == ["useful"]


async def test_results_that_come_before_the_turn_ends_count(bus: Bus, peers: Peers, tokenizer: ModelTokenizer) -> None:
    one = request(hints=AHEAD, run_tools=("*",))
    await peers.submit(one)
    await peers.run_of(one.turn.turn_id)
    ids = tokenizer.encode(CALL, special=True)
    peers.tokens("w1", one.turn.turn_id, ids, cached=0)
    log = peers.events.setdefault(one.turn.turn_id, [])
    await peers.until(lambda: any(isinstance(event, CallComplete) for event in log))
    publish(bus, called(peers, one.turn.turn_id), RESULT)
    await peers.until(lambda: type(log[-1]).__name__ == "ToolResulted")
    assert not prefills(peers)
    end = tokenizer.encode("\nSo much.<|im_end|>", special=True)
    peers.tokens("w1", one.turn.turn_id, end, offset=len(ids) // 4, finish="stop", stop_token=True)
    assert RESULT in tokenizer.decode((await prefill_of(peers)).prompt)
