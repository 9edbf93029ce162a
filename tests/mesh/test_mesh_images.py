"""Images over a conversation: what stands before a new one stays cached, and another one shares nothing behind it."""

import base64
from typing import Any

import httpx
import pytest

from tests.mesh.harness import MODEL, RunningMesh
from tests.mesh.ops import VISION

pytestmark = pytest.mark.slow

LONG = "The harbour of Bergen has a quay for every wind, and each of them has a name. " * 20


def image(name: str) -> dict[str, Any]:
    data = base64.b64encode(name.encode()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def asked(text: str, *images: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}, *map(image, images)]}


async def answer(client: httpx.AsyncClient, *messages: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
    """What was said, tokens of the prompt, and how many of these were cached."""
    body = {"model": VISION, "messages": messages, "max_tokens": 40, "seed": 1}
    told = await client.post("/v1/chat/completions", json=body)
    assert told.status_code == 200, told.text
    usage = told.json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return told.json()["choices"][0]["message"], usage["prompt_tokens"], cached


async def test_a_new_image_leaves_what_stands_before_it_in_the_cache(ops_mesh: RunningMesh) -> None:
    async with ops_mesh.client() as client:
        first = asked(LONG, "quay")
        said, length, _ = await answer(client, first)
        _, _, cached = await answer(client, first, said, asked("And this?", "ferry"))
        assert cached > length - 32
        _, _, again = await answer(client, first, said, asked("And this?", "ferry"))
        assert again > cached
        _, _, other = await answer(client, first, said, asked("And this?", "lighthouse"))
        assert cached <= other < again


async def test_another_image_under_the_same_words_shares_only_the_words_before_it(ops_mesh: RunningMesh) -> None:
    async with ops_mesh.client() as client:
        begun = {"role": "system", "content": f"Kept apart: {LONG}"}
        _, length, _ = await answer(client, begun, asked("Look:", "one"), asked(LONG))
        _, _, same = await answer(client, begun, asked("Look:", "one"), asked(LONG))
        _, _, other = await answer(client, begun, asked("Look:", "two"), asked(LONG))
        assert same > length - 32
        assert 0 < other < length / 2 + 32


async def test_a_model_that_cannot_see_says_so_and_where(ops_mesh: RunningMesh) -> None:
    async with ops_mesh.client() as client:
        told = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": [asked("See:", "one")]})
        assert (told.status_code, told.json()["error"]["param"]) == (400, "messages[0].content[1]")
        source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
        body = {
            "model": MODEL,
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}],
        }
        told = await client.post("/v1/messages", json=body)
        assert told.status_code == 400
        assert "messages[0].content[0]" in told.json()["error"]["message"]
