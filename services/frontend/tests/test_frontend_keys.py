"""Keys: who gets in, what each may do, and how much of it."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from catenary_frontend.auth import Keys
from catenary_frontend.core.keys import KeyRing, Policy, hash_of, key_from, read_entry, read_keys
from catenary_frontend.core.limits import MINUTE, Limits
from catenary_frontend.testing import ScriptedTokenizer, Stand, running_frontend
from catenary_protocols.bus.messages import TurnRequest
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.errors import CapacityError, RequestError
from catenary_protocols.turn_events import Accepted, Finished, Started, TextDelta, Usage
from catenary_runtime.config import ConfigError
from catenary_runtime.testing import NatsServer, free_tcp_port
from hypothesis import given
from hypothesis import strategies as st

TURN = (
    Accepted(prompt_tokens=5),
    Started(cached_tokens=0, worker="w1"),
    TextDelta(text="hi"),
    Finished(reason="stop", usage=Usage(prompt_tokens=5, completion_tokens=3)),
)
ASK: dict[str, Any] = {"model": "org/m", "messages": [{"role": "user", "content": "hi"}]}
MESSAGES: dict[str, Any] = {**ASK, "max_tokens": 9}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("see", "send")]


def entry(key: str, **more: object) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"hash": hash_of(key), **more}.items()]
    return "\n".join(["[[keys]]", *lines, ""])


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def served(stand: Stand, tokenizer: ScriptedTokenizer, key: str, **more: object) -> TurnRequest:
    """A turn that is let in and ends; what the tokenizer got."""
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(
            stand.http.post("/v1/chat/completions", json={**ASK, **more}, headers=bearer(key)),
        )
        request = await tokenizer.request()
        tokenizer.say(request.turn.turn_id, *TURN)
    assert asking.result().status_code == 200, asking.result().text
    return request


# --- keys -------------------------------------------------------------------------------------------------------


def test_a_made_key_is_found_by_its_hash_alone() -> None:
    key = key_from(bytes(range(32)))
    (policy,) = read_keys(entry(key, tenant="acme"))
    ring = KeyRing([policy])
    assert ring.find(key) is policy
    assert ring.find(key[:-1]) is None
    assert ring.find("") is None
    assert key not in repr(vars(ring))


def test_a_digest_that_begins_alike_is_not_enough() -> None:
    real = hash_of("one")
    ring = KeyRing([Policy(hash=real[:-1] + ("0" if real[-1] != "0" else "1"))])
    assert ring.find("one") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (entry("k", colour="red"), "colour"),
        (entry("k", requests_per_minute=0), "requests_per_minute"),
        ('[[keys]]\nhash = "sesame"\n', "hash"),
        (entry("k") * 2, "same hash"),
        ("[[keys", "end of document"),
    ],
)
def test_a_wrong_file_is_refused_by_field(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        asyncio.run(_loaded(str(file)))


async def _loaded(file: str) -> Keys:
    return Keys((), file)


def test_an_entry_of_the_environment_is_a_hash_and_never_shown() -> None:
    with pytest.raises(ValueError, match="no hash") as caught:
        read_entry("acme:plain-secret")
    assert "plain-secret" not in str(caught.value)
    assert read_entry(f"acme:{hash_of('k')}").owner == "acme"
    assert read_entry(hash_of("k")).owner == hash_of("k")[len("sha256-") :][:12]


# --- rights -----------------------------------------------------------------------------------------------------


def test_tools_are_run_by_the_mesh_only_within_the_keys_policy() -> None:
    none, some = Policy(hash=hash_of("a")), Policy(hash=hash_of("b"), mesh_tools=("se?",), always_run=("log_*",))
    declared = ("see", "send", "log_it")
    assert none.tools_to_run(("*",), declared) == ()
    assert some.tools_to_run((), declared) == ("log_it",)
    assert some.tools_to_run(("*",), declared) == ("see", "log_it")
    assert some.tools_to_run(("see",), declared) == ("see", "log_it")
    with pytest.raises(RequestError) as caught:
        some.tools_to_run(("see", "send"), declared)
    assert (caught.value.code, caught.value.field) == ("permission_denied", "nvext.run_tools[1]")


async def test_a_key_has_its_models_tools_priority_and_tenant(
    nats_server: NatsServer, subjects: Subjects, tmp_path: Path
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(
        entry("full", tenant="acme", mesh_tools=["see"], max_priority=2)
        + entry("same", tenant="acme")
        + entry("other", models=["org/other*"])
    )
    async with (
        running_frontend(nats_server, subjects, keys_file=str(file)) as stand,
        stand.tokenizer() as tokenizer,
    ):
        hints = {"agent_hints": {"priority": 9, "strict_priority": 9}, "run_tools": True}
        full = await served(stand, tokenizer, "full", tools=TOOLS, nvext=hints)
        assert (full.tenant, full.salt, full.run_tools) == ("acme", "acme", ("see",))
        assert (full.hints.priority, full.hints.strict_priority) == (2, 0)
        assert (await served(stand, tokenizer, "same")).session == (await served(stand, tokenizer, "full")).session
        refused = await stand.http.post("/v1/messages", json=MESSAGES, headers={"x-api-key": "other"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
        assert (await stand.http.get("/v1/models", headers=bearer("other"))).json()["data"] == []
        assert (await stand.http.get("/v1/models/org/m", headers=bearer("other"))).status_code == 404
        missing = await stand.http.post("/tokenize", json={**ASK, "model": "org/others"}, headers=bearer("other"))
        assert missing.status_code != 403
        assert "org/m " not in missing.text
        ask = {**ASK, "tools": TOOLS, "nvext": {"run_tools": ["send"]}}
        denied = await stand.http.post("/v1/chat/completions", json=ask, headers=bearer("full"))
        assert (denied.status_code, denied.json()["error"]["param"]) == (403, "nvext.run_tools[0]")


async def test_keys_are_read_again_when_the_file_changes_and_a_wrong_file_changes_nothing(
    nats_server: NatsServer, subjects: Subjects, tmp_path: Path
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(entry("one"))
    async with running_frontend(nats_server, subjects, keys_file=str(file)) as stand:

        async def status(key: str) -> int:
            return (await stand.http.get("/v1/models", headers=bearer(key))).status_code

        async def until(key: str, wanted: int) -> None:
            while await status(key) != wanted:
                os.kill(os.getpid(), signal.SIGHUP)

        file.write_text("[[keys")
        os.kill(os.getpid(), signal.SIGHUP)
        assert await status("one") == 200
        file.write_text(entry("two"))
        await until("two", 200)
        assert await status("one") == 401
        file.write_text("")  # nobody, which is not everybody
        while await status("two") != 401:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_metrics_tell_of_every_tenant_and_are_told_to_none(nats_server: NatsServer, subjects: Subjects) -> None:
    admin = free_tcp_port()
    async with running_frontend(nats_server, subjects, api_keys=(hash_of("k"),), admin_port=admin) as stand:
        assert (await stand.http.get("/metrics", headers=bearer("k"))).status_code == 404
        assert (await stand.http.get("/health")).status_code == 200
        assert "catenary_requests" in (await stand.http.get(f"http://127.0.0.1:{admin}/metrics")).text


# --- limits -----------------------------------------------------------------------------------------------------


@given(
    limit=st.integers(1, 500),
    used=st.lists(st.tuples(st.floats(0, 40), st.integers(0, 900)), max_size=30),
)
def test_who_is_refused_is_let_in_at_the_time_that_was_told(limit: int, used: list[tuple[float, int]]) -> None:
    now = 100.0
    limits = Limits(now)
    limits.set(now, limit, limit, None)
    for passed, tokens in used:
        now = _let_in(limits.request, now + passed)
        now = _let_in(lambda at: limits.begin(at, 1), now)
        limits.end(now, 1, tokens)
    assert limits.running == 0


def _let_in(take: Callable[[float], None], now: float) -> float:
    """When it was: at once, or at the time that the refusal tells."""
    try:
        take(now)
    except CapacityError as error:
        now += error.retry_after + 1e-6
        take(now)
    return now


@given(limit=st.integers(1, 100), gaps=st.lists(st.floats(0, 5), min_size=1, max_size=400))
def test_no_minute_has_more_requests_than_the_limit_and_what_flowed_back(limit: int, gaps: list[float]) -> None:
    now, let_in = 0.0, []
    limits = Limits(now)
    limits.set(now, limit, None, None)
    for gap in gaps:
        now += gap
        try:
            limits.request(now)
        except CapacityError:
            continue
        let_in.append(now)
    for begin in let_in:
        assert sum(begin <= at < begin + MINUTE for at in let_in) <= 2 * limit


async def test_each_limit_is_a_429_that_says_when(nats_server: NatsServer, subjects: Subjects, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(
        entry("requests", requests_per_minute=2)
        + entry("tokens", tokens_per_minute=6)
        + entry("turns", concurrent_turns=1)
    )
    async with (
        running_frontend(nats_server, subjects, keys_file=str(file)) as stand,
        stand.tokenizer() as tokenizer,
    ):
        await served(stand, tokenizer, "requests")
        await served(stand, tokenizer, "requests")
        refused = await stand.http.post("/v1/chat/completions", json=ASK, headers=bearer("requests"))
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
        assert 29 <= int(refused.headers["retry-after"]) <= 30
        assert refused.headers["x-ratelimit-limit-requests"] == "2"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert (await stand.http.get("/v1/models", headers=bearer("requests"))).status_code == 200
        await served(stand, tokenizer, "tokens")  # uses eight
        refused = await stand.http.post("/v1/messages", json=MESSAGES, headers=bearer("tokens"))
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
        assert 29 <= int(refused.headers["retry-after"]) <= 31  # three tokens at six a minute
        assert refused.headers["anthropic-ratelimit-tokens-limit"] == "6"
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(stand.http.post("/v1/chat/completions", json=ASK, headers=bearer("turns")))
            request = await tokenizer.request()
            refused = await stand.http.post(
                "/v1/responses", json={"model": "org/m", "input": "hi"}, headers=bearer("turns")
            )
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            tokenizer.say(request.turn.turn_id, *TURN)
        assert first.result().status_code == 200
        await served(stand, tokenizer, "turns")
        many = await stand.http.post("/v1/chat/completions", json={**ASK, "n": 2}, headers=bearer("turns"))
        assert (many.status_code, many.json()["error"]["param"]) == (403, "n")


async def test_a_client_that_leaves_has_used_what_came_and_gives_its_place_back(
    nats_server: NatsServer, subjects: Subjects, tmp_path: Path
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(entry("key", concurrent_turns=1, tokens_per_minute=10))
    async with (
        running_frontend(nats_server, subjects, keys_file=str(file)) as stand,
        stand.tokenizer() as tokenizer,
    ):
        async with (
            stand.http.stream(
                "POST", "/v1/chat/completions", json={**ASK, "stream": True}, headers=bearer("key")
            ) as answer,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(_say(tokenizer))
            await anext(answer.aiter_bytes())
        await tokenizer.cancelled()
        refused = await stand.http.post("/v1/chat/completions", json=ASK, headers=bearer("key"))
        assert refused.headers["x-ratelimit-limit-tokens"] == "10"


async def _say(tokenizer: ScriptedTokenizer) -> None:
    request = await tokenizer.request()
    tokenizer.say(request.turn.turn_id, *TURN[:2], *(TextDelta(text="x") for _ in range(20)))
