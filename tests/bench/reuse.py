"""Which blocks of a turn its session's next turn finds again, however the client writes the conversation it sends back.

Six turns of a tool loop under a prompt of 4,096 tokens and more, once for each client, with turn memory and without. The
model spells its calls as no client does: two spaces, `\\u00e9`, `600.0`. Each turn is pinned to one worker: where turns
are placed is measured by `routing`.

OpenAI's SDK and its agents drop thoughts in Chat: the mesh puts them back. openclaw moves a message behind all others each
turn: it is rendered where it first stood. The last session's model leaves an empty line before its calls, where its template
has none.
"""

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from tests.mesh.harness import MODEL, RunningMesh, Script, running_mesh

Json = dict[str, Any]

TURNS = 6
BLOCK = 16
PROMPT = 4096
WITHIN_S = 120.0
OFF = {"CATENARY_TOKENIZER_TURN_MEMORY_OFF": MODEL}
SYSTEM = "\n".join(f"Rule {number}: the ferry of pier {number * 7 % 31} never waits." for number in range(200))
SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "why": {"type": "string"}, "timeout": {"type": "number"}},
    "required": ["command"],
}
FUNCTION = {"name": "run", "description": "Runs a command.", "parameters": SCHEMA}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
RESPONSES_TOOLS = [{"type": "function", "strict": False, **FUNCTION}]
MESSAGES_TOOLS = [{"name": "run", "description": "Runs a command.", "input_schema": SCHEMA}]
MARK = {"cache_control": {"type": "ephemeral"}}
NOTES = "".join(f"{line}. Pier {line * 5 % 31} of the caf\\u00e9 is read. " for line in range(12))
CALL = f'{{{{"name": "run", "arguments": {{{{"command":  "cat part-{{0}}", "why": "{NOTES}", "timeout": 600.0}}}}}}}}'
THOUGHT = " ".join(["Part {0} is next, and it may say where the last one ends."] * 8)
SAID = f"<think>\n{THOUGHT}\n</think>\n\n{{1}}<tool_call>\n{CALL}\n</tool_call>"

OTHER_SPACE = SAID.replace("{1}", "I read it.\n\n")


@dataclass(frozen=True)
class Step:
    """An answer as its API gave it, and what its call's tool said."""

    answer: Json
    output: str


@dataclass(frozen=True)
class Client:
    """The path it asks, and its body after these steps of a session."""

    path: str
    body: Callable[[str, Sequence[Step]], Json]


@dataclass(frozen=True)
class Turn:
    """Tokens as the API told them, and how the prompt left the last one, if it did."""

    prompt: int
    output: int
    cached: int
    diverged: str


def by_javascript(arguments: str) -> Json:
    """Parsed where there are no floats: `600.0` is 600."""
    parsed: Json = json.loads(arguments, parse_float=lambda digits: int(float(digits)))
    return parsed


def compact(arguments: str) -> str:
    return json.dumps(by_javascript(arguments), separators=(",", ":"), ensure_ascii=False)


# --- Chat Completions -------------------------------------------------------------------------------------------------


def chat(
    say: Callable[[Json], Json], tell: Callable[[str], Any], tail: Sequence[Json], topic: str, steps: Sequence[Step]
) -> Json:
    messages: list[Json] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": tell(topic)}]
    for step in steps:
        message = say(step.answer["choices"][0]["message"])
        called = message["tool_calls"][0]["id"]
        messages += [message, {"role": "tool", "tool_call_id": called, "content": tell(step.output)}]
    return {"messages": [*messages, *tail], "tools": CHAT_TOOLS}


def text_parts(text: str) -> list[Json]:
    return [{"type": "text", "text": text}]


def compacted(message: Json) -> Json:
    """Thoughts and text as they came, arguments written anew."""
    calls = [
        {**call, "function": {**call["function"], "arguments": compact(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "content": message.get("content") or "", "tool_calls": calls}


def without_thoughts(message: Json) -> Json:
    return {name: value for name, value in message.items() if name not in {"reasoning", "reasoning_content"}}


def alphanumeric(message: Json) -> Json:
    """Calls' ids lose what is neither letter nor digit."""
    message = compacted(message)
    calls = [{**call, "id": "".join(filter(str.isalnum, call["id"]))} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


# --- Responses --------------------------------------------------------------------------------------------------------


def responses(say: Callable[[Json], Json], head: Json, role: str, topic: str, steps: Sequence[Step]) -> Json:
    items: list[Json] = [{"role": role, "content": SYSTEM}] if role else []
    items.append({"role": "user", "content": [{"type": "input_text", "text": topic}]})
    for step in steps:
        items += [*map(say, step.answer["output"]), told(step)]
    return {"input": items, "tools": RESPONSES_TOOLS, "include": ["reasoning.encrypted_content"], **head}


def told(step: Step) -> Json:
    call = next(item for item in step.answer["output"] if item["type"] == "function_call")
    return {"type": "function_call_output", "call_id": call["call_id"], "output": step.output}


def rewritten(item: Json) -> Json:
    """Without its id and status, arguments written anew."""
    item = {name: value for name, value in item.items() if name not in {"id", "status"}}
    return {**item, "arguments": compact(item["arguments"])} if item["type"] == "function_call" else item


def thoughts_as_text(item: Json) -> Json:
    """A thought becomes an assistant's message in tags."""
    if item["type"] != "reasoning":
        return rewritten(item)
    thought = "".join(part["text"] for part in item.get("content") or item["summary"])
    return {"role": "assistant", "content": f"<think>\n{thought}\n</think>"}


def stored(topic: str, steps: Sequence[Step]) -> Json:
    """The mesh keeps the conversation; only what is new is sent."""
    body = responses(dict, {"store": True}, "system", topic, ())
    return {**body, "input": [told(steps[-1])], "previous_response_id": steps[-1].answer["id"]} if steps else body


# --- Messages ---------------------------------------------------------------------------------------------------------


def messages(
    marked: Callable[[int, int], bool], read: Callable[[Any], Any], head: Json, topic: str, steps: Sequence[Step]
) -> Json:
    """A message with a mark is a list of blocks; one without, of a single text, is a string."""
    said: list[tuple[str, list[Json]]] = [("user", text_parts(topic))]
    for step in steps:
        content = [
            {**block, "input": read(json.dumps(block["input"]))} if block["type"] == "tool_use" else block
            for block in step.answer["content"]
        ]
        called = next(block["id"] for block in content if block["type"] == "tool_use")
        result = {"type": "tool_result", "tool_use_id": called, "content": step.output}
        said += [("assistant", content), ("user", [result])]
    written: list[Json] = []
    for place, (role, blocks) in enumerate(said, 1):
        if marked(place, len(said)):
            written.append({"role": role, "content": [*blocks[:-1], {**blocks[-1], **MARK}]})
        else:
            alone = len(blocks) == 1 and blocks[0]["type"] == "text"
            written.append({"role": role, "content": blocks[0]["text"] if alone else blocks})
    system = [{"type": "text", "text": SYSTEM, **MARK}]
    return {"messages": written, "system": system, "tools": MESSAGES_TOOLS, "max_tokens": 2000, **head}


def claude_code(topic: str, steps: Sequence[Step]) -> Json:
    """Its billing header first, thoughts left to their signature, the mark on the last message."""
    thinking = {"thinking": {"type": "adaptive", "display": "omitted"}}
    body = messages(lambda place, of: place == of, by_javascript, thinking, topic, steps)
    billing = {
        "type": "text",
        "text": f"x-anthropic-billing-header: cc_version=2.1.332.{topic[-3:]}; cc_entrypoint=cli;",
    }
    return {**body, "system": [billing, *body["system"]]}


CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
CONTEXT = {"role": "user", "content": "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nNothing new.\n"}
CLIENTS: Mapping[str, Client] = {
    "opencode": Client(CHAT, partial(chat, compacted, str, ())),
    "qwen-code": Client(CHAT, partial(chat, compacted, text_parts, ())),
    "openclaw": Client(CHAT, partial(chat, alphanumeric, str, (CONTEXT,))),
    "openai, openai-agents": Client(CHAT, partial(chat, without_thoughts, str, ())),
    "codex": Client(RESPONSES, partial(responses, dict, {"store": False}, "developer")),
    "opencode, qwen-code, responses": Client(
        RESPONSES, partial(responses, rewritten, {"store": False, "instructions": SYSTEM}, "")
    ),
    "pydantic-ai, responses": Client(RESPONSES, partial(responses, thoughts_as_text, {}, "system")),
    "openai, stored": Client(RESPONSES, stored),
    "claude-code": Client(MESSAGES, claude_code),
    "opencode, messages": Client(
        MESSAGES, partial(messages, lambda place, of: place > of - 2, by_javascript, {"tool_choice": {"type": "auto"}})
    ),
    "anthropic": Client(MESSAGES, partial(messages, lambda *_: False, json.loads, {})),
}


def measure() -> Json:
    """By client: blocks found again, as a share of those that the turn before had whole, with turn memory and without."""
    return {"with_memory": asyncio.run(_measure({})), "without": asyncio.run(_measure(OFF))}


async def _measure(environment: Mapping[str, str]) -> Json:
    results = {}
    with TemporaryDirectory() as folder:
        flags = ("--time-scale", "0", "--sim-script")
        with running_mesh(Path(folder), *flags, environment=environment) as mesh:
            for name, client in CLIENTS.items():
                results[name] = summary(await play(mesh, client))
            results["anthropic, other white space"] = summary(await play(mesh, CLIENTS["anthropic"], OTHER_SPACE))
    return results


def summary(turns: Sequence[Turn]) -> Json:
    """`ratio` of blocks found to blocks that were there; `answers`: of those that answers filled, below 0 where more is lost."""
    found = [later.cached // BLOCK for later in turns[1:]]
    whole = [(turn.prompt + turn.output - 1) // BLOCK for turn in turns[:-1]]
    lost = [had - has for had, has in zip(whole, found, strict=True)]
    answers = sum(whole) - sum(turn.prompt // BLOCK for turn in turns[:-1])
    result = {"ratio": round(sum(found) / sum(whole), 4), "answers": round(1 - sum(lost) / answers, 4), "lost": lost}
    left = [json.loads(turn.diverged) for turn in turns if turn.diverged]
    return {**result, "diverged": left[0]} if left else result


async def play(mesh: RunningMesh, client: Client, said: str = SAID) -> list[Turn]:
    """One session. Raises when a turn is refused, makes no call, or is shorter than it has to be."""
    topic = f"Read all parts of topic-{secrets.token_hex(8)}."
    pinned = {"model": MODEL, "nvext": {"routing": {"workers": [mesh.workers[0]]}}}
    turns: list[Turn] = []
    steps: list[Step] = []
    async with mesh.bus() as bus, mesh.client() as http, asyncio.timeout(WITHIN_S):
        script = Script(bus, mesh.workers, topic)
        words = (said.format(number, "I read it.\n" if number % 2 else "") for number in range(TURNS))
        await script.say(*words, match=topic)
        for number in range(TURNS):
            body = {**client.body(topic, steps), **pinned}
            answer = await http.post(client.path, json=body, headers={"x-catenary-explain": "1"})
            turns.append(read(answer))
            steps.append(Step(answer.json(), f"part {number}\nends with {secrets.token_hex(4)}\n"))
        await script.forget()
    if turns[0].prompt < PROMPT:
        raise RuntimeError(f"a prompt of {turns[0].prompt} tokens is too short")
    return turns


def read(answer: httpx.Response) -> Turn:
    if answer.status_code != 200:
        raise RuntimeError(f"status {answer.status_code}: {answer.text}")
    usage, left = answer.json()["usage"], answer.headers.get("x-catenary-diverged", "")
    if "prompt_tokens" in usage:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Turn(usage["prompt_tokens"], usage["completion_tokens"], cached, left)
    if "input_tokens_details" in usage:
        cached = usage["input_tokens_details"]["cached_tokens"]
        return Turn(usage["input_tokens"], usage["output_tokens"], cached, left)
    cached = usage["cache_read_input_tokens"]
    fresh = usage["input_tokens"] + usage.get("cache_creation_input_tokens", 0)
    return Turn(fresh + cached, usage["output_tokens"], cached, left)
