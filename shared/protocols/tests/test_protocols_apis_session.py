import json
from typing import Any

import msgspec
from catenary_protocols.apis.chat import CHAT
from catenary_protocols.apis.error_bodies import anthropic_error
from catenary_protocols.apis.models import anthropic_models, openai_models
from catenary_protocols.apis.session import session_of
from catenary_protocols.bus.messages import ModelCard
from catenary_protocols.errors import ErrorInfo


def session(*turns: str, tenant: str = "", headers: dict[str, str] | None = None, **fields: Any) -> str:
    messages = [{"role": "system", "content": "s"}]
    for place, text in enumerate(turns):
        messages.append({"role": ("user", "assistant")[place % 2], "content": text})
    draft = CHAT.read(json.dumps({"model": "m", "messages": messages, **fields}).encode())
    return session_of(draft, tenant, headers or {})


def test_a_conversation_without_a_name_is_known_by_its_head() -> None:
    assert session("a") == session("a", "b", "c")
    assert len({session("a"), session("b"), session("a", tenant="t"), session("a", user="u")}) == 4
    assert session("a") != session("a", tools=[{"type": "function", "function": {"name": "f"}}])


def test_a_client_that_names_its_conversation_is_believed() -> None:
    claude = {"x-claude-code-session-id": "s1"}
    assert session("a", headers=claude) == session("b", headers=claude)
    assert session("a", headers=claude) != session("a", headers={**claude, "x-claude-code-agent-id": "sub"})
    assert session("a", headers=claude) != session("a", headers=claude, tenant="t")
    assert session("a", prompt_cache_key="k") == session("b", prompt_cache_key="k")
    assert session("a", metadata={"session_id": "k"}) == session("b", prompt_cache_key="k")


def test_models_are_listed_in_both_shapes() -> None:
    cards = [ModelCard(model="org/m", card="c", context=4096, block_size=16, artifacts={}, created=86400)]
    assert json.loads(openai_models(cards)) == {
        "object": "list",
        "data": [
            {
                "object": "model",
                "id": "org/m",
                "created": 86400,
                "owned_by": "catenary",
                "context_window": 4096,
                "max_output_tokens": 4096,
            }
        ],
    }
    shown = json.loads(anthropic_models(cards))
    assert (shown["first_id"], shown["last_id"], shown["has_more"]) == ("org/m", "org/m", False)
    assert shown["data"][0]["created_at"] == "1970-01-02T00:00:00Z"
    assert json.loads(anthropic_models([]))["first_id"] is None


def test_an_error_has_anthropics_shape_too() -> None:
    shown = msgspec.json.decode(anthropic_error(ErrorInfo(code="queue_full", message="later"), "req_1"))
    assert shown == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "later"},
        "request_id": "req_1",
    }
