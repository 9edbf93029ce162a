"""The owner of turns on a real broker, with its neighbours played by the test."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import (
    Attach,
    Attached,
    Beat,
    CancelPlace,
    CancelTurn,
    CountTokens,
    LiveTurn,
    Placement,
    PlaceQueued,
    PlaceTurn,
    Refused,
    ResendTokens,
    TokenCount,
    TurnRequest,
    TurnTaken,
)
from catenary_protocols.bus.tool_plane import ToolCall, ToolResult
from catenary_protocols.conversation import Tool
from catenary_protocols.errors import ErrorInfo
from catenary_protocols.ids import TurnKey
from catenary_protocols.turn_events import (
    Accepted,
    CallComplete,
    Failed,
    Finished,
    Queued,
    Started,
    TextDelta,
    ToolResulted,
)
from catenary_runtime.bus import Bus
from catenary_runtime.models import publish_model
from catenary_runtime.rendezvous import ranked
from catenary_runtime.testing import NatsServer
from catenary_tokenizer_service import running
from catenary_tokenizer_service.testing import FRONTEND, ROUTER, TOKENIZER, Peers, asking, owner_among, turn_request
from catenary_tokenizers import ModelTokenizer, embedded_path, load
from nats.aio.msg import Msg
from prometheus_client import REGISTRY

reply: Decoder[TurnTaken | Refused | Attached | TokenCount] = Decoder(
    TurnTaken | Refused | Attached | TokenCount  # type: ignore[arg-type]
)
decode_beat = Decoder(Beat)
TOOL = Tool(name="get_weather", schema='{"type":"object","properties":{"city":{"type":"string"}}}')
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bergen"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    return load(embedded_path())


@pytest.fixture
async def peers(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[Peers]:
    async with owner_among(nats_server, bus, embedded_path(), tmp_path) as (_, peers):
        yield peers


def request(text: str = "hello", **more: object) -> TurnRequest:
    return turn_request(asking(text, tools=(TOOL,)), **more)


async def test_a_turn_goes_from_text_to_text(peers: Peers, tokenizer: ModelTokenizer) -> None:
    one = request()
    assert isinstance(reply(await peers.submit(one)), TurnTaken)
    run = await peers.run_of(one.turn.turn_id)
    assert "hello" in tokenizer.decode(run.prompt)
    ids = tokenizer.encode("Good morning.<|im_end|>", special=True)
    peers.tokens("w1", one.turn.turn_id, ids[:4], cached=16)
    peers.tokens("w1", one.turn.turn_id, ids[4:], offset=1, finish="stop", stop_token=True)
    log = peers.events.setdefault(one.turn.turn_id, [])
    await peers.until(lambda: bool(log) and isinstance(log[-1], Finished))
    assert log[:2] == [Accepted(prompt_tokens=len(run.prompt) // 4), Started(cached_tokens=16, worker="w1")]
    assert "".join(e.text for e in log if isinstance(e, TextDelta)) == "Good morning."
    end = log[-1]
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.completion_tokens, end.usage.cached_tokens) == ("stop", len(ids) // 4, 16)


async def test_what_the_router_expected_is_compared_with_what_was_cached(
    peers: Peers, tokenizer: ModelTokenizer
) -> None:
    def error() -> float:
        return REGISTRY.get_sample_value("catenary_route_prediction_error_ratio_sum") or 0.0

    before = error()
    one = request()
    await peers.submit(one)
    run = await peers.run_of(one.turn.turn_id)
    peers.tokens("w1", one.turn.turn_id, tokenizer.encode("a", special=False), cached=16)  # the router said none
    await peers.until(lambda: error() > before)
    assert error() - before == pytest.approx(16 * 4 / len(run.prompt))


async def test_a_request_asked_twice_runs_once(peers: Peers) -> None:
    one = request()
    await peers.submit(one)
    assert isinstance(reply(await peers.submit(one)), TurnTaken)
    await peers.run_of(one.turn.turn_id)
    assert len(peers.of(PlaceTurn)) == 1


async def test_an_unknown_model_is_refused_with_its_field(peers: Peers) -> None:
    answer = reply(await peers.submit(request(model="nope")))
    assert isinstance(answer, Refused)
    assert (answer.error.code, answer.error.field) == ("model_not_found", "model")


async def test_a_prompt_over_the_context_fails_before_it_is_accepted(peers: Peers) -> None:
    one = request(text="word " * 5000)
    await peers.submit(one)
    log = peers.events.setdefault(one.turn.turn_id, [])
    await peers.until(lambda: bool(log))
    first = log[0]
    assert isinstance(first, Failed)
    assert (first.error.code, first.error.field) == ("context_length_exceeded", "messages")
    assert peers.of(PlaceTurn) == []


async def test_a_router_that_queues_is_told_and_a_refusal_ends_the_turn(peers: Peers) -> None:
    answers = [
        PlaceQueued(turn=TurnKey(turn_id=""), router=ROUTER, router_incarnation=1, position=3),
        Refused(error=ErrorInfo(code="queue_full", message="full", retry_after=2.0)),
    ]

    def answer(message: PlaceTurn) -> None:
        for one in answers:
            fields = {name: getattr(one, name) for name in one.__struct_fields__}
            peers.bus.publish(replies[0], encode(type(one)(**{**fields, "turn": message.turn})))

    replies: list[str] = []
    await peers.bus.subscribe(peers.bus.subjects.to("place", router=ROUTER), lambda msg: replies.insert(0, msg.reply))

    def in_a_moment(message: PlaceTurn) -> None:
        asyncio.get_running_loop().call_later(0.05, answer, message)

    peers.router = in_a_moment
    one = request()
    await peers.submit(one)
    log = peers.events.setdefault(one.turn.turn_id, [])
    await peers.until(lambda: bool(log) and isinstance(log[-1], Failed))
    assert isinstance(log[0], Accepted)
    assert Queued(position=3) in log
    end = log[-1]
    assert isinstance(end, Failed)
    assert (end.error.code, end.error.retry_after) == ("queue_full", 2.0)


async def test_a_dead_worker_s_turn_goes_on_elsewhere_with_its_tokens(peers: Peers, tokenizer: ModelTokenizer) -> None:
    one = request()
    await peers.submit(one)
    first = await peers.run_of(one.turn.turn_id)
    ids = tokenizer.encode("Good morning, all of you.<|im_end|>", special=True)
    peers.tokens("w1", one.turn.turn_id, ids[:12], cached=0)
    log = peers.events.setdefault(one.turn.turn_id, [])
    await peers.until(lambda: any(isinstance(event, TextDelta) for event in log))
    peers.silent.add("w1")
    second = await peers.run_of(one.turn.turn_id, attempt=1)
    assert (second.prompt, second.generated) == (first.prompt, ids[:12])
    peers.tokens("w1", one.turn.turn_id, ids[12:16], offset=3)  # it was not dead, only slow: fenced
    peers.tokens("w2", one.turn.turn_id, ids[12:], attempt=1, offset=3, finish="stop", stop_token=True)
    await peers.until(lambda: isinstance(log[-1], Finished))
    assert "".join(e.text for e in log if isinstance(e, TextDelta)) == "Good morning, all of you."
    assert sum(isinstance(event, Started) for event in log) == 1


async def test_missing_tokens_are_asked_for(peers: Peers, tokenizer: ModelTokenizer) -> None:
    resends: list[ResendTokens] = []
    decode: Decoder[ResendTokens | CancelTurn] = Decoder(ResendTokens | CancelTurn)  # type: ignore[arg-type]

    one = request()
    await peers.submit(one)
    await peers.run_of(one.turn.turn_id)

    def note(msg: object) -> None:
        message = decode(msg.data)  # type: ignore[attr-defined]
        if isinstance(message, ResendTokens):
            resends.append(message)
            peers.tokens("w1", one.turn.turn_id, ids[:8], cached=0)

    ids = tokenizer.encode("one two three four<|im_end|>", special=True)
    await peers.bus.subscribe(peers.bus.subjects.to("do", worker="w1"), note)
    peers.tokens("w1", one.turn.turn_id, ids[8:], offset=2, finish="stop", stop_token=True)
    log = peers.events.setdefault(one.turn.turn_id, [])
    await peers.until(lambda: any(isinstance(event, TextDelta) for event in log))
    assert resends[0].offset == 0


async def test_a_call_is_on_the_bus_while_the_turn_goes_on_and_its_result_comes_back(
    peers: Peers, tokenizer: ModelTokenizer
) -> None:
    calls: list[ToolCall] = []
    decode: Decoder[ToolCall] = Decoder(ToolCall, json=True)
    subjects = peers.bus.subjects

    def call(msg: object) -> None:
        calls.append(decode(msg.data))  # type: ignore[attr-defined]
        peers.changed.set()

    await peers.bus.subscribe(subjects.to("tool_call"), call)
    one = request(run_tools=("*",))
    await peers.submit(one)
    await peers.run_of(one.turn.turn_id)
    peers.tokens("w1", one.turn.turn_id, tokenizer.encode(CALL, special=True), cached=0)
    await peers.until(lambda: bool(calls))
    key = f"{one.turn.turn_id}-0-0"
    assert (calls[0].key, calls[0].run_by, bytes(calls[0].arguments)) == (key, "mesh", b'{"city": "Bergen"}')
    result = ToolResult(key=key, tool="get_weather", output="rain")
    from catenary_protocols.bus.codec import encode_json

    peers.bus.publish(subjects.to("tool_result", tool="get_weather", key=key), encode_json(result))
    log = peers.events[one.turn.turn_id]
    await peers.until(lambda: any(isinstance(event, ToolResulted) for event in log))
    kinds = [type(event) for event in log]
    assert kinds.index(CallComplete) < kinds.index(ToolResulted)


async def test_one_call_only_stops_the_engine(peers: Peers, tokenizer: ModelTokenizer) -> None:
    one = turn_request(asking("x", tools=(TOOL,), parallel_calls=False))
    await peers.submit(one)
    await peers.run_of(one.turn.turn_id)
    peers.tokens("w1", one.turn.turn_id, tokenizer.encode(f"{CALL}\n{CALL}\nmore", special=True), cached=0)
    await peers.until(lambda: bool(peers.of(CancelTurn)))
    log = peers.events[one.turn.turn_id]
    assert sum(isinstance(event, CallComplete) for event in log) == 1
    assert isinstance(log[-1], Finished)
    assert log[-1].reason == "tool_calls"


async def test_a_client_that_goes_cancels_its_turn_in_the_engine(peers: Peers) -> None:
    one = request()
    await peers.submit(one)
    await peers.run_of(one.turn.turn_id)
    peers.tell(CancelTurn(turn=one.turn))
    await peers.until(lambda: bool(peers.of(CancelTurn)))


async def test_the_log_of_a_turn_is_not_kept_for_the_frontend_that_cancelled_it(peers: Peers) -> None:
    one = request()
    named: list[int] = []

    def beat(msg: Msg) -> None:
        named.append(len(decode_beat(msg.data).turns))
        peers.changed.set()

    peers.frontend_turns = (LiveTurn(turn_id=one.turn.turn_id, at=TOKENIZER, offset=1),)
    subject = peers.bus.subjects.to("beat", service="tokenizer", instance=TOKENIZER)
    await peers.bus.subscribe(subject, beat)
    await peers.submit(one)
    await peers.until(lambda: named[-1:] == [1])
    peers.tell(CancelTurn(turn=one.turn))
    await peers.until(lambda: named[-1:] == [0])


async def test_a_dead_frontend_s_turns_are_cancelled(peers: Peers) -> None:
    one = request()
    await peers.submit(one)
    await peers.run_of(one.turn.turn_id)
    peers.silent.add(FRONTEND)
    await peers.until(lambda: bool(peers.of(CancelTurn)))


async def test_when_a_router_dies_the_next_one_places_its_turns(peers: Peers) -> None:
    first, second = ranked(peers.card.model, ["router-t", "router-u"])
    peers.routers = (first, second)
    placed_by: list[str] = []
    place = peers.placed

    async def placed(name: str) -> tuple[str, TurnKey]:
        one = request(name, session=name)
        await peers.submit(one)
        await peers.run_of(one.turn.turn_id)
        return placed_by[-1], one.turn

    def noted(message: PlaceTurn, router: str = ROUTER) -> Placement:
        placed_by.append(router)
        return place(message, router)

    peers.placed = noted  # type: ignore[method-assign]
    while (await placed(f"before {len(placed_by)}"))[0] != first:
        pass  # until both have been heard of
    peers.silent.add(first)
    router, turn = await placed("after")
    assert router == second
    cancelled = [one.turn for one in peers.of(CancelPlace) if isinstance(one, CancelPlace)]
    assert turn in cancelled, "the dead one need not place it, if it comes back"
    assert [one.turn for one in peers.of(PlaceTurn) if isinstance(one, PlaceTurn)].count(turn) > 1


async def test_a_silent_router_is_left(peers: Peers) -> None:
    cancelled: list[CancelPlace] = []
    decode: Decoder[CancelPlace | PlaceTurn] = Decoder(CancelPlace | PlaceTurn)  # type: ignore[arg-type]

    def note(msg: object) -> None:
        message = decode(msg.data)  # type: ignore[attr-defined]
        if isinstance(message, CancelPlace):
            cancelled.append(message)

    peers.router = lambda _: None
    one = request()
    await peers.bus.subscribe(peers.bus.subjects.to("place", router=ROUTER), note)
    await peers.submit(one)
    await peers.until(lambda: len(peers.of(PlaceTurn)) > 1)
    places = [message.turn for message in peers.of(PlaceTurn) if isinstance(message, PlaceTurn)]
    assert places[0] == places[1], "the same attempt, asked again"


async def test_attach_sends_the_log_from_where_the_frontend_is(peers: Peers, tokenizer: ModelTokenizer) -> None:
    one = request()
    await peers.submit(one)
    await peers.run_of(one.turn.turn_id)
    peers.tokens("w1", one.turn.turn_id, tokenizer.encode("a b c", special=False), cached=0)
    log = peers.events.setdefault(one.turn.turn_id, [])
    await peers.until(lambda: any(isinstance(event, TextDelta) for event in log))
    attach = Attach(turn_id=one.turn.turn_id, frontend=FRONTEND, frontend_incarnation=1, after=0)
    before = list(log)
    log.clear()
    answer = reply(
        await peers.bus.request(peers.bus.subjects.to("turn", tokenizer=TOKENIZER), encode(attach), within=5)
    )
    assert isinstance(answer, Attached)
    await peers.until(lambda: len(log) >= len(before))
    assert log[: len(before)] == before


async def test_counting_gives_the_length_of_the_rendered_prompt(peers: Peers) -> None:
    one = request()
    await peers.submit(one)
    run = await peers.run_of(one.turn.turn_id)
    count = CountTokens(model="m", conversation=one.conversation)
    answer = reply(await peers.bus.request(peers.bus.subjects.to("turn", tokenizer=TOKENIZER), encode(count), within=5))
    assert answer == TokenCount(tokens=len(run.prompt) // 4)


async def test_a_lost_tail_is_asked_for_after_two_beats(peers: Peers, tokenizer: ModelTokenizer) -> None:
    resends: list[ResendTokens] = []
    decode: Decoder[ResendTokens | CancelTurn] = Decoder(ResendTokens | CancelTurn)  # type: ignore[arg-type]
    one = request()
    await peers.submit(one)
    await peers.run_of(one.turn.turn_id)

    def note(msg: object) -> None:
        message = decode(msg.data)  # type: ignore[attr-defined]
        if isinstance(message, ResendTokens):
            resends.append(message)
            peers.changed.set()

    await peers.bus.subscribe(peers.bus.subjects.to("do", worker="w1"), note)
    ids = tokenizer.encode("a b", special=False)
    peers.tokens("w1", one.turn.turn_id, ids, cached=0)
    have = len(ids) // 4
    peers.live["w1"] = (LiveTurn(turn_id=one.turn.turn_id, at=TOKENIZER, offset=have + 5),)
    await peers.until(lambda: bool(resends))
    assert resends[0].offset == have
    log = peers.events[one.turn.turn_id]
    peers.tokens("w1", one.turn.turn_id, b"", offset=have, finish="stop")
    await peers.until(lambda: isinstance(log[-1], Finished))


async def test_a_prompt_that_the_bus_cannot_carry_is_refused_and_not_moved(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LONGEST_MESSAGE", 2000)
    one = request(text="word " * 1000)
    await peers.submit(one)
    log = peers.events.setdefault(one.turn.turn_id, [])
    await peers.until(lambda: bool(log) and isinstance(log[-1], Failed))
    end = log[-1]
    assert isinstance(end, Failed)
    assert (end.error.code, end.error.field) == ("request_too_large", "messages")
    assert "2000" in end.error.message
    assert len(peers.of(PlaceTurn)) == 1


async def test_a_model_under_two_names_is_placed_under_the_one_that_was_asked_for(peers: Peers) -> None:
    """Its files are the same, so its card is: only the name tells the workers apart."""
    peers.cards["w2"] = msgspec.structs.replace(peers.card, model="m2")
    await publish_model(peers.bus, peers.cards["w2"], embedded_path())
    one = request(model="m2")
    async with asyncio.timeout(10):
        while isinstance(reply(await peers.submit(one)), Refused):  # until the card of the second name is known
            peers.beat()
    run = await peers.run_of(one.turn.turn_id)
    placed = peers.of(PlaceTurn)[0]
    assert isinstance(placed, PlaceTurn)
    assert (placed.model, run.model, placed.card) == ("m2", "m2", peers.card.card)
