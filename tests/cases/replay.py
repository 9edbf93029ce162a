"""Runs `replay` cases: turns of one conversation against a real mesh, each sent back as its API's clients send it."""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from tests.cases.apis import PIECES, ROUTES, the_mesh, until_listed
from tests.cases.checks import check
from tests.mesh.harness import PATIENCE_S, Script

Json = dict[str, Any]
BLOCK = 16
REASONING = ("reasoning_content", "reasoning")
_FLOOR = re.compile(r"\$\.block_floor\(prompt_tokens\[(\d+)\]\)")


@dataclass(frozen=True)
class Client:
    """How an API's client asks and answers.

    Attributes:
        request: (model, history, turn) → body.
        said: an answer → the message that goes into the history.
        unreasoned: the same without what the model thought.
        called: an answer → ids of its calls.
        result: (call id, text) → the message that tells a call's result.
    """

    request: Callable[[str, list[Json], Json], Json]
    said: Callable[[Json], Json]
    unreasoned: Callable[[Json], Json]
    called: Callable[[Json], list[str]]
    result: Callable[[str, str], Json]


def _chat_request(model: str, history: list[Json], turn: Json) -> Json:
    return {"model": model, "messages": history, "tools": turn.get("tools", [])}


def _messages_request(model: str, history: list[Json], turn: Json) -> Json:
    functions = [tool["function"] for tool in turn.get("tools", [])]
    tools = [{"name": one["name"], "input_schema": one["parameters"]} for one in functions]
    request = {"model": model, "max_tokens": 512, "messages": history, "tools": tools}
    return {**request, "thinking": {"type": "enabled", "budget_tokens": 256}} if turn.get("thinking") else request


def _said_in_chat(answer: Json) -> Json:
    message: Json = answer["choices"][0]["message"]
    return message


CLIENTS = {
    "chat": Client(
        request=_chat_request,
        said=_said_in_chat,
        unreasoned=lambda answer: {k: v for k, v in _said_in_chat(answer).items() if k not in REASONING},
        called=lambda answer: [call["id"] for call in _said_in_chat(answer).get("tool_calls", ())],
        result=lambda call, text: {"role": "tool", "tool_call_id": call, "content": text},
    ),
    "messages": Client(
        request=_messages_request,
        said=lambda answer: {"role": "assistant", "content": answer["content"]},
        unreasoned=lambda answer: {
            "role": "assistant",
            "content": [block for block in answer["content"] if block["type"] != "thinking"],
        },
        called=lambda answer: [block["id"] for block in answer["content"] if block["type"] == "tool_use"],
        result=lambda call, text: {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call, "content": text}],
        },
    ),
}


async def run(case: Json) -> None:
    """Run one case, in pieces of three characters and one by one; raises `AssertionError`."""
    if case["api"] not in CLIENTS:
        raise AssertionError(f"replay through {case['api']}: not supported yet")
    mesh = the_mesh()
    for pieces in PIECES:
        async with mesh.bus() as bus, mesh.client() as client:
            await until_listed(client)
            play = Play(case, CLIENTS[case["api"]], Script(bus, mesh.workers, case["id"]), client, pieces)
            document = await play.all_turns()
        for assertion in case["expect"]["assertions"]:
            check(document, _floored(assertion, document))


class Play:
    """One conversation."""

    def __init__(self, case: Json, api: Client, script: Script, client: httpx.AsyncClient, pieces: int) -> None:
        self._case, self._api, self._script, self._client, self._pieces = case, api, script, client, pieces
        self._history: list[Json] = []

    async def all_turns(self) -> Json:
        """What was asked, answered and computed, by turn."""
        done: list[Json] = []
        for turn in self._case["turns"]:
            self._history += [self._message(one, done[-1]["answer"] if done else {}) for one in turn["append"]]
            done.append(await self._turn(turn, self._history))
        document: Json = {
            "messages": [{}, *(_flat(one["answer"], self._api) for one in done)],  # cases count answers from 1
            "statuses": [one["status"] for one in done],
            "prompts": [one["prompt"] for one in done],
            "prompt_tokens": [one["prompt_tokens"] for one in done],
            "cached_tokens": [one["cached_tokens"] for one in done],
            "engine_texts": [turn["engine_text"] for turn in self._case["turns"]],
        }
        if any("variant_bad_signature" in assertion["path"] for assertion in self._case["expect"]["assertions"]):
            changed = _resigned(self._history)
            document["variant_bad_signature"] = await self._turn(self._case["turns"][-1], changed)
        return document | _difference(document)

    async def _turn(self, turn: Json, history: list[Json]) -> Json:
        body = self._api.request(self._case["model"], history, turn)
        before = await self._script.reports()
        await self._script.say(turn["engine_text"], pieces=self._pieces)
        try:
            answer = await self._client.post(ROUTES[self._case["api"]], json=body, timeout=PATIENCE_S)
            after = await self._script.reports()
        finally:
            await self._script.forget()
        ran = [new for old, new in zip(before, after, strict=True) if new["calls"] > old["calls"]]
        assert ran, f"the engine was not asked: {answer.text}"
        told = {key: ran[0].get(key) for key in ("prompt", "prompt_tokens", "cached_tokens")}
        return {**told, "status": answer.status_code, "answer": answer.json()}

    def _message(self, given: Any, last: Json) -> Json:
        """A message of the case with what it takes from the last answer."""
        match given:
            case "$assistant_full":
                return self._api.said(last)
            case "$assistant_no_reasoning":
                return self._api.unreasoned(last)
            case str() if given.startswith("$tool_result:"):
                return self._api.result(self._api.called(last)[0], given.removeprefix("$tool_result:"))
            case dict():
                return {key: self._value(value, last) for key, value in given.items()}
            case _:
                raise AssertionError(f"{given}: not supported yet")

    def _value(self, value: Any, last: Json) -> Any:
        if value == "$call_id":
            return self._api.called(last)[0]
        return _said_in_chat(last)["tool_calls"] if value == "$tool_calls" else value


def _flat(answer: Json, api: Client) -> Json:
    return api.said(answer) if "error" not in answer else answer


def _resigned(history: list[Json]) -> list[Json]:
    """The history with a signature that nobody gave out."""
    history = copy.deepcopy(history)
    for message in history:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block.get("type") == "thinking":
                block["signature"] = "bm90IG91cnM"
    return history


def _difference(document: Json) -> Json:
    """Where the last prompt leaves the way of the one before it, and where the first answer in it begins."""
    if len(document["prompts"]) < 2:
        return {}
    before, last = document["prompts"][-2] + document["engine_texts"][-2], document["prompts"][-1]
    same = next((at for at, (one, two) in enumerate(zip(before, last, strict=False)) if one != two), len(before))
    return {"first_difference": same, "offset_of_first_assistant": len(document["prompts"][0])}


def _floored(assertion: Json, document: Json) -> Json:
    """`$.block_floor(prompt_tokens[i])` written out: the tokens of the whole blocks of a prompt."""
    found = _FLOOR.fullmatch(str(assertion.get("other", "")))
    if found is None:
        return assertion
    document["block_floor"] = document["prompt_tokens"][int(found[1])] // BLOCK * BLOCK
    return {**assertion, "other": "$.block_floor"}
