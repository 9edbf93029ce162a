"""What is remembered moves with its session: a rolling restart of all tokenizers costs no prompt its generated ids."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import CarryMemory, RememberedAnswer, TurnRequest, TurnTaken
from catenary_protocols.conversation import (
    AssistantMessage,
    CallPart,
    Conversation,
    Message,
    TextPart,
    Tool,
    ToolMessage,
    UserMessage,
)
from catenary_protocols.turn_events import CallComplete, Finished
from catenary_runtime.bus import Bus
from catenary_runtime.rendezvous import ranked
from catenary_runtime.testing import NatsServer
from catenary_tokenizer_service.service import TokenizerService
from catenary_tokenizer_service.testing import TOKENIZER, Peers, owner, owner_among, turn_request
from catenary_tokenizers import CarriedTurn, embedded_path, pack
from prometheus_client import REGISTRY

decode = Decoder(TurnTaken)
THOUGHT = "I had better look."
ANSWERS = ("Good morning.", "It is sunny.", "Yes, tomorrow too.")


@pytest.fixture
async def first(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[tuple[TokenizerService, Peers]]:
    async with owner_among(nats_server, bus, embedded_path(), tmp_path) as one:
        yield one


def history(turn: int) -> Conversation:
    messages: list[Message] = []
    for answer in ANSWERS[:turn]:
        messages += [user("And?"), AssistantMessage(parts=(TextPart(text=answer),))]
    return Conversation(messages=(*messages, user("And?")))


def user(text: str) -> UserMessage:
    return UserMessage(parts=(TextPart(text=text),))


def byte_by_byte(service: TokenizerService, text: str) -> bytes:
    """Ids of a text as no tokenizer would cut it."""
    tokenizer = service.models.all()[0].tokenizer
    single = {bytes(piece): index for index, piece in enumerate(tokenizer.table.pieces) if len(piece) == 1}
    return pack([single[bytes([byte])] for byte in text.encode()]) + tokenizer.encode("<|im_end|>", special=True)


async def turn_at(service: TokenizerService, peers: Peers, session: str, turn: int, tenant: str = "") -> bytes:
    """Run a turn of a session to its end; its prompt."""
    one = turn_request(history(turn), session=session, tenant=tenant)
    return await answered(service, peers, one, byte_by_byte(service, ANSWERS[turn]))


async def answered(service: TokenizerService, peers: Peers, request: TurnRequest, ids: bytes) -> bytes:
    """Run a turn to its end, in which the model says this; its prompt."""
    assert isinstance(decode(await peers.submit(request, service.instance)), TurnTaken)
    run = await peers.run_of(request.turn.turn_id)
    peers.tokens("w1", request.turn.turn_id, ids, to=service.instance, cached=0, finish="stop", stop_token=True)
    await peers.until(lambda: any(isinstance(e, Finished) for e in peers.events.get(request.turn.turn_id, ())))
    return run.prompt


def hits(service: TokenizerService) -> int:
    memory = service.models.all()[0].memory
    assert memory is not None
    return memory.counts.get("hit", 0)


def put_back() -> float:
    return REGISTRY.get_sample_value("catenary_thoughts_total", {"model": "m", "what": "restored"}) or 0.0


def counted() -> float:
    return REGISTRY.get_sample_value("catenary_turn_memory_total", {"model": "m", "what": "hit"}) or 0.0


async def settled(service: TokenizerService, session: str) -> None:
    """Until the session's answers have come to this instance."""
    memory = service.models.all()[0].memory
    assert memory is not None
    await there(lambda: session in memory.sessions())


async def there(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # a message without an answer; bounded above
            await asyncio.sleep(0.01)


async def test_a_rolling_restart_keeps_what_was_generated(
    first: tuple[TokenizerService, Peers], nats_server: NatsServer, tmp_path: Path
) -> None:
    service, peers = first
    session, before = "s", counted()
    await turn_at(service, peers, session, 0)
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(owner(nats_server, peers, tmp_path, "tokenizer-second"))
        service.stopping.set()
        await settled(second, session)
        prompt = await turn_at(second, peers, session, 1)
        assert byte_by_byte(second, ANSWERS[0]) in prompt
        third = await stack.enter_async_context(owner(nats_server, peers, tmp_path, "tokenizer-third"))
        second.stopping.set()
        await settled(third, session)
        prompt = await turn_at(third, peers, session, 2)
        assert byte_by_byte(third, ANSWERS[0]) in prompt
        assert byte_by_byte(third, ANSWERS[1]) in prompt
        assert (hits(second), hits(third)) == (1, 2)
        for one in (second, third, third):
            one.models.observe()
        assert counted() == before + 3


@pytest.mark.parametrize("memory", [{}, {"turn_memory_mb": 0}], ids=["with turn memory", "without"])
async def test_thoughts_that_a_client_leaves_out_go_with_their_session(
    first: tuple[TokenizerService, Peers], nats_server: NatsServer, tmp_path: Path, memory: dict[str, object]
) -> None:
    service, peers = first
    before = put_back()
    tokenizer = service.models.all()[0].tokenizer
    tools = (Tool(name="look"),)
    said = f'<think>\n{THOUGHT}\n</think>\n\n<tool_call>\n{{"name": "look", "arguments": {{}}}}\n</tool_call><|im_end|>'
    asked = turn_request(Conversation(messages=(user("Where?"),), tools=tools), session="s", tenant="t")
    await answered(service, peers, asked, tokenizer.encode(said, special=True))
    (call,) = (event for event in peers.events[asked.turn.turn_id] if isinstance(event, CallComplete))
    left_out = AssistantMessage(parts=(CallPart(id=call.id, name="look", arguments="{}"),), left_out=True)
    result = ToolMessage(call_id=call.id, parts=(TextPart(text="Here."),))
    conversation = Conversation(messages=(user("Where?"), left_out, result), tools=tools)

    async def next_prompt(owner: TokenizerService, name: str, tenant: str = "t") -> str:
        one = turn_request(conversation, session="s", tenant=tenant)
        return tokenizer.decode(await answered(owner, peers, one, byte_by_byte(owner, "Well.")))

    assert THOUGHT in await next_prompt(service, "here")
    assert THOUGHT not in await next_prompt(service, "nobody's", tenant="u")
    async with owner(nats_server, peers, tmp_path, "tokenizer-second", **memory) as second:
        service.stopping.set()
        await there(lambda: "s" in second.models.all()[0].thoughts.sessions())
        assert THOUGHT in await next_prompt(second, "there")
        for one in (service, second, second):
            one.models.observe()
        assert put_back() == before + 2


async def test_a_session_that_belongs_to_an_instance_that_comes_goes_there_and_the_others_stay(
    first: tuple[TokenizerService, Peers], nats_server: NatsServer, tmp_path: Path
) -> None:
    service, peers = first
    names = (TOKENIZER, "tokenizer-second")
    leaving = next(name for name in map(str, range(99)) if ranked(name, names)[0] != TOKENIZER)
    staying = next(name for name in map(str, range(99)) if ranked(name, names)[0] == TOKENIZER)
    for session in (leaving, staying):
        await turn_at(service, peers, session, 0, session)
    async with owner(nats_server, peers, tmp_path, "tokenizer-second") as second:
        await settled(second, leaving)
        memory = service.models.all()[0].memory
        assert memory is not None
        assert memory.sessions() == {staying}
        await turn_at(service, peers, leaving, 0, "late")  # from a frontend that has not heard of the second yet
        assert memory.sessions() == {staying}


async def test_what_is_carried_stays_with_its_tenant_and_what_nobody_can_use_is_counted(
    first: tuple[TokenizerService, Peers],
) -> None:
    service, peers = first
    await turn_at(service, peers, "s", 0, "one")
    memory = service.models.all()[0].memory
    assert memory is not None
    carried = memory.take({"s"})
    memory.accept([CarriedTurn(turn.key, turn.opening, turn.generated, turn.session) for turn in carried])
    prompt = await turn_at(service, peers, "s", 1, "two")
    assert byte_by_byte(service, ANSWERS[0]) not in prompt
    assert hits(service) == 0

    def dropped() -> float:
        return REGISTRY.get_sample_value("catenary_turn_memory_carried_total", {"way": "dropped"}) or 0.0

    before = dropped()
    answers = (RememberedAnswer(key=b"k", control="c", tail="", generated=pack([1]), session="s"),)
    subject = peers.bus.subjects.to("memory", tokenizer=TOKENIZER)
    peers.bus.publish(subject, encode(CarryMemory(card="unknown", answers=answers)))
    await turn_at(service, peers, "s", 0, "three")  # the message before it has been read
    assert dropped() == before + 1
