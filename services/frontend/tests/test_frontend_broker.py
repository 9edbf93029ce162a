"""What a frontend does when the broker goes away, or when others have taken it for dead."""

import asyncio

import pytest
from catenary_frontend import owners
from catenary_frontend.testing import running_frontend
from catenary_protocols.bus.messages import Attach
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.turn_events import Accepted, Finished, TextDelta, Usage
from catenary_runtime.testing import NatsServer, temporary_nats

ASK = {"model": "org/m", "messages": [{"role": "user", "content": "?"}]}
END = Finished(reason="stop", usage=Usage())


async def test_a_broker_restart_costs_a_turn_nothing_but_time(subjects: Subjects) -> None:
    async with (
        temporary_nats() as server,
        running_frontend(server, subjects) as stand,
        stand.tokenizer() as tokenizer,
        asyncio.TaskGroup() as tasks,
    ):
        asking = tasks.create_task(stand.http.post("/v1/chat/completions", json=ASK))
        turn = (await tokenizer.request()).turn.turn_id
        tokenizer.say(turn, Accepted(prompt_tokens=1), TextDelta(text="before "))
        await stand.until(lambda: stand.frontend.turns.live()[0].offset == 2)
        await asyncio.to_thread(server.kill)
        await stand.until(lambda: stand.frontend.presence.cut_off)
        tokenizer.lose = 1
        tokenizer.say(turn, TextDelta(text="lost "))
        await asyncio.to_thread(server.start)
        await stand.until(lambda: tokenizer.bus.connected)
        tokenizer.say(turn, TextDelta(text="after"), END)
        answer = await asking
    assert answer.json()["choices"][0]["message"]["content"] == "before lost after"


async def test_without_a_broker_nothing_hangs(subjects: Subjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "PATIENCE_S", 0.3)
    monkeypatch.setattr(owners, "OUTAGE_S", 0.6)
    async with (
        temporary_nats() as server,
        running_frontend(server, subjects) as stand,
        stand.tokenizer() as tokenizer,
        asyncio.TaskGroup() as tasks,
    ):
        asking = tasks.create_task(stand.http.post("/v1/chat/completions", json=ASK))
        turn = (await tokenizer.request()).turn.turn_id
        tokenizer.say(turn, Accepted(prompt_tokens=1), TextDelta(text="before "))
        await stand.until(lambda: stand.frontend.turns.live()[0].offset == 2)
        await asyncio.to_thread(server.kill)
        new = await stand.http.post("/v1/chat/completions", json=ASK)
        old = await asking
        await asyncio.to_thread(server.start)
    assert [(one.status_code, one.json()["error"]["code"]) for one in (new, old)] == [(503, "disconnected")] * 2


async def test_under_a_new_incarnation_it_takes_up_its_turns_again(nats_server: NatsServer, subjects: Subjects) -> None:
    async with (
        running_frontend(nats_server, subjects) as stand,
        stand.tokenizer() as tokenizer,
        asyncio.TaskGroup() as tasks,
    ):
        asking = tasks.create_task(stand.http.post("/v1/chat/completions", json=ASK))
        request = await tokenizer.request()
        tokenizer.say(request.turn.turn_id, Accepted(prompt_tokens=1))
        await stand.until(lambda: stand.frontend.turns.live()[0].offset == 1)
        stand.frontend.presence._rejoin(2.0)
        attach = await tokenizer.inbox.get()
        assert isinstance(attach, Attach)
        assert attach.after == 1
        assert attach.frontend_incarnation > request.frontend_incarnation
        tokenizer.say(request.turn.turn_id, TextDelta(text="on"), END)
        answer = await asking
    assert answer.json()["choices"][0]["message"]["content"] == "on"
