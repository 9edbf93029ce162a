"""What a long agent prompt costs: conversation to hashed ids, known and cold, and ids back to text.

CPU time of one core, medians; a conversation of some 52,000 tokens, 200 messages and 40 tools on Qwen's vocabulary.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from catenary_tokenizers import ModelTokenizer, TurnMemory, block_hashes, extend_hashes, load, pack, scope_of, unpack

from tests.models import fetch

ROUNDS = 15
MESSAGES = 200
TOOLS = 40
BLOCK = 16
SCOPE = scope_of(tenant="bench", salt="", model="qwen", template="")
WORDS = [
    "the",
    "file",
    "server",
    "returns",
    "a",
    "list",
    "of",
    "open",
    "ports",
    "and",
    "config",
    "values",
    "while",
    "this",
    "test",
    "checks",
    "that",
    "each",
    "request",
    "was",
    "parsed",
    "before",
    "its",
    "handler",
    "ran;",
    "see",
    "error",
    "404",
    "in",
    "line",
    "1287",
    "of",
    "src/net/http_client.py,",
    "retry",
    "with",
    "timeout=30.5",
]


def measure() -> dict[str, float]:
    """Milliseconds and microseconds of CPU by name, with the prompt's size beside them."""
    model = load(fetch.qwen())
    messages, tools = conversation(1)
    ids = prompt(model, messages, tools)
    memory = remembered(model, messages, tools, ids)
    before = ids, block_hashes(ids, BLOCK)
    known = [turn(messages, number) for number in range(ROUNDS + 1)]
    cold = [conversation(100 + number) for number in range(ROUNDS + 1)]
    return {
        "prompt_tokens": len(ids) // 4,
        "known_session_ms": cpu(lambda n: prompt(model, known[n], tools, before=before)) * 1e3,
        "known_session_with_memory_ms": cpu(lambda n: prompt(model, known[n], tools, memory, before)) * 1e3,
        "cold_ms": cpu(lambda n: prompt(model, *cold[n])) * 1e3,
        "render_ms": cpu(lambda _: model.render(messages, tools)) * 1e3,
        "hash_ms": cpu(lambda _: block_hashes(ids, BLOCK)) * 1e3,
        "detokenise_us_per_token": cpu(lambda _: detokenise(model, ids, 1)) * 1e6 / (len(ids) // 4),
        "detokenise_64_us_per_token": cpu(lambda _: detokenise(model, ids, 64)) * 1e6 / (len(ids) // 4),
    }


def prompt(
    model: ModelTokenizer,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    memory: TurnMemory | None = None,
    before: tuple[bytes, bytes] = (b"", b""),
) -> bytes:
    """A conversation to hashed ids, the way of every turn; `before` is the session's last prompt with its hashes."""
    ids = model.encode_prompt(model.render(messages, tools), memory, SCOPE)
    extend_hashes(*before, ids, BLOCK)
    return ids


def remembered(
    model: ModelTokenizer, messages: list[dict[str, Any]], tools: list[dict[str, Any]], whole: bytes
) -> TurnMemory:
    """A memory that has every answer of the session, as that of a session served from its start."""
    memory = TurnMemory(model.table, 64 << 20)
    ids, end = unpack(whole), model.control_tokens["<|im_end|>"]
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            before = prompt(model, messages[:at], tools)
            memory.remember(SCOPE, before, pack(ids[len(before) // 4 : ids.index(end, len(before) // 4) + 1]))
    return memory


def detokenise(model: ModelTokenizer, ids: bytes, step: int) -> None:
    """A stream of all ids in steps of `step` tokens."""
    stream = model.detokenizer()
    for at in range(0, len(ids), 4 * step):
        stream.push(ids[at : at + 4 * step])
    stream.flush()


def cpu(work: Callable[[int], object]) -> float:
    """Median CPU seconds of a call; the first, which warms up, is not counted."""
    times = []
    for number in range(ROUNDS + 1):
        began = time.process_time()
        work(number)
        times.append(time.process_time() - began)
    return statistics.median(times[1:])


def turn(messages: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The session's next turn: some 500 new tokens."""
    pick = random.Random(seed)  # noqa: S311  reproducible, not secret
    return [
        *messages,
        {"role": "assistant", "content": "", "tool_calls": [_call(pick, 1000 + seed)]},
        {"role": "tool", "content": _text(pick, 200), "tool_call_id": f"{1000 + seed}"},
    ]


def conversation(seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and tools of an agent's session."""
    pick = random.Random(seed)  # noqa: S311  reproducible, not secret
    tools = [_tool(pick, number) for number in range(TOOLS)]
    messages: list[dict[str, Any]] = [{"role": "system", "content": _text(pick, 1200)}]
    while len(messages) < MESSAGES - 2:
        if len(messages) % 20 == 1:
            messages.append({"role": "user", "content": _text(pick, 60)})
        call = _call(pick, len(messages))
        messages.append({"role": "assistant", "content": _text(pick, 20), "tool_calls": [call]})
        messages.append({"role": "tool", "content": _text(pick, 95), "tool_call_id": call["id"]})
    return messages, tools


def _text(pick: random.Random, words: int) -> str:
    return " ".join(
        pick.choice(WORDS) + pick.choice(["", "", "", ".\n", f" {pick.randrange(10_000)}"]) for _ in range(words)
    )


def _call(pick: random.Random, number: int) -> dict[str, Any]:
    arguments = {
        "path": f"src/{pick.choice(WORDS)}.py",
        "lines": [pick.randrange(99), pick.randrange(99)],
        "force": True,
    }
    return {"id": f"{number}", "type": "function", "function": {"name": "tool_1", "arguments": arguments}}


def _tool(pick: random.Random, number: int) -> dict[str, Any]:
    properties = {
        f"field_{n}": {"type": pick.choice(["string", "integer", "boolean"]), "description": _text(pick, 12)}
        for n in range(4)
    }
    schema = {"type": "object", "properties": properties, "required": ["field_0"]}
    return {
        "type": "function",
        "function": {"name": f"tool_{number}", "description": _text(pick, 40), "parameters": schema},
    }


if __name__ == "__main__":
    import json

    print(json.dumps(measure(), indent=1))
