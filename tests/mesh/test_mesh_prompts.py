"""What the mesh tells of a prompt that is no extension of its session's last one, when it is asked."""

import json
import secrets
from typing import Any

import httpx
import pytest

from tests.mesh.harness import MODEL

EXPLAIN = {"x-catenary-explain": "1"}
DIVERGED = "x-catenary-diverged"


def asked(session: str, system: str, *said: str, stream: bool) -> dict[str, Any]:
    turns = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)]
    messages = [{"role": "system", "content": system}, *turns]
    return {"model": MODEL, "messages": messages, "prompt_cache_key": session, "max_tokens": 1, "stream": stream}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_that_leaves_its_sessions_last_one_says_where_and_why(
    client: httpx.AsyncClient, *, stream: bool
) -> None:
    session = secrets.token_hex(8)

    async def headers(system: str, *said: str, **more: str) -> httpx.Headers:
        body = asked(session, system, *said, stream=stream)
        answer = await client.post("/v1/chat/completions", json=body, headers=more)
        assert answer.status_code == 200
        return answer.headers

    system = "Be brief. " * 100
    assert DIVERGED not in await headers(system, "Hi", **EXPLAIN)
    assert DIVERGED not in await headers(system, "Hi", "Hello.", "And?", **EXPLAIN)
    left = json.loads((await headers("It is 10:04. " + system, "Hi", "Hello.", "And?", **EXPLAIN))[DIVERGED])
    assert (left["cause"], left["message"], left["role"]) == ("system", 0, "system")
    assert 0 < left["token"] < 16
    assert left["blocks_lost"] > 10
    assert DIVERGED not in await headers(system, "Hi")


async def test_a_token_that_the_model_does_not_have_is_refused(client: httpx.AsyncClient) -> None:
    request = {"model": MODEL, "max_tokens": 1}
    last = (await client.post("/tokenize", json={"model": MODEL, "prompt": "a"})).json()["tokens"]
    assert (await client.post("/v1/completions", json={**request, "prompt": last})).status_code == 200
    for path, field in (("/v1/completions", "prompt"), ("/detokenize", "tokens")):
        for token, text in ((10**9, "1000000000 is no token of this model"), (-1, "expected `int` >= 0")):
            refused = await client.post(path, json={**request, field: [*last, token]})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"].startswith(field)
            assert text in refused.json()["error"]["message"]


async def test_a_token_that_the_client_names_ends_the_answer_and_is_not_shown(client: httpx.AsyncClient) -> None:
    request: dict[str, Any] = {"model": MODEL, "prompt": "The tide at Ayr", "seed": 3, "max_tokens": 12}
    text = (await client.post("/v1/completions", json=request)).json()["choices"][0]["text"]
    said = (await client.post("/tokenize", json={"model": MODEL, "prompt": text})).json()["tokens"]
    stop = said[3]
    begin = (await client.post("/detokenize", json={"model": MODEL, "tokens": said[: said.index(stop)]})).json()
    answer = (await client.post("/v1/completions", json={**request, "stop_token_ids": [stop]})).json()
    assert answer["choices"][0] == {**answer["choices"][0], "text": begin["prompt"], "finish_reason": "stop"}
    assert answer["usage"]["completion_tokens"] == said.index(stop) + 1
