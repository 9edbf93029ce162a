"""Runs `api_*` cases against a real mesh that serves the case models; scripts tell its simulators what to say."""

import asyncio
import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from catenary_runtime.bus import Bus

from tests.cases import messages, responses
from tests.cases.checks import check, unfold
from tests.cases.variants import changed, said_by_user
from tests.mesh.harness import PATIENCE_S, PATIENT, RunningMesh, Script, running_mesh
from tests.models.build import FAMILIES, build

ROUTES = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
PIECES = (3, 1)
LATER = {"turns"}


@cache
def _started() -> RunningMesh | AssertionError:
    stack = ExitStack()
    atexit.register(stack.close)
    folder = Path(tempfile.mkdtemp())
    stack.callback(shutil.rmtree, folder)
    config = folder / "catenary.toml"
    config.write_text("\n".join(_entry(name, path) for name, path in build(folder / "models").items()))
    flags = ("--config", str(config), "--time-scale", "0", "--sim-script")
    for _ in range(2):
        try:
            return stack.enter_context(running_mesh(folder, *flags, environment=PATIENT))
        except AssertionError as error:
            why = error
            print(f"UNSTEADY the mesh did not start: {why}", flush=True)
    return why


def the_mesh() -> RunningMesh:
    """One worker for each case model, until the process ends; a mesh that does not start is tried twice in all."""
    mesh = _started()
    if isinstance(mesh, AssertionError):
        raise mesh
    return mesh


def _root(path: str) -> str:
    """The document's own key that a path begins with."""
    return path.removeprefix("$.").partition(".")[0].partition("[")[0]


def _entry(name: str, path: Path) -> str:
    family = FAMILIES[name]
    return "\n".join(
        [
            "[[models]]",
            f"name = {json.dumps(name)}",
            f"path = {json.dumps(str(path))}",
            "workers = 1",
            f"parser = {json.dumps(family.tools)}",
            f"reasoning = {json.dumps(family.reasoning)}",
        ]
    )


async def run(case: dict[str, Any]) -> None:
    """Run one case, in pieces of three characters and one by one; raises `AssertionError`."""
    if later := LATER & case.keys():
        raise AssertionError(f"{', '.join(sorted(later))}: not supported yet")
    mesh = the_mesh()
    for pieces in PIECES:
        async with mesh.bus() as bus, mesh.client() as client:
            await until_listed(client)
            document = await _document(case, bus, Script(bus, mesh.workers, case["id"]), client, pieces)
        expected = case["expect"]["status"]
        wanted = expected if isinstance(expected, list) else [expected]
        assert document["status"] in wanted, f"status is {document['status']}, wanted {expected}: {document['json']}"
        for assertion in case["expect"]["assertions"]:
            whole = {"path": "$.msg", "other": "$.nonstream"} if assertion["op"] == "same_as_nonstream" else {}
            check(document, assertion | whole)


async def until_listed(client: httpx.AsyncClient) -> None:
    """Six workers are ready in six moments; the API lists a model a little later."""
    async with asyncio.timeout(PATIENCE_S):
        while FAMILIES.keys() - {one["id"] for one in (await client.get("/v1/models")).json()["data"]}:
            pass


async def _after_others(case: dict[str, Any], script: Script, client: httpx.AsyncClient, pieces: int) -> dict[str, Any]:
    """The case with its request as it is after the earlier requests, which are played first."""
    previous: Any = None
    for earlier in case.get("before", ()):
        one = {**earlier, "api": case["api"], "request": responses.linked(earlier["request"], previous)}
        previous = (await _play(one, script, client, pieces))["msg"]
    if previous is None:
        return case
    request = responses.linked(case["request"], previous)
    if case.get("link_previous"):
        request["previous_response_id"] = previous["id"]
    return {**case, "request": request}


async def _document(
    case: dict[str, Any], bus: Bus, script: Script, client: httpx.AsyncClient, pieces: int
) -> dict[str, Any]:
    """What happened, and what happened to the requests beside it that assertions look at."""
    wanted = {_root(str(assertion["path"])) for assertion in case["expect"]["assertions"]}
    kept = await responses.stored(bus) if "store_size" in wanted else 0
    document = await _play(await _after_others(case, script, client, pieces), script, client, pieces)
    if "repeat" in case:
        document["second"] = await _play(case, script, client, pieces)
    if "store_size" in wanted:
        document["store_size"] = await responses.stored(bus) - kept
    if "after" in wanted:
        document["after"] = await responses.afterwards(document["msg"]["id"], case["request"], client)
    if "count_tokens" in wanted:
        before = await script.reports()
        document |= await messages.counts(case["request"], client)
        document["count_tokens"]["engine_calls"] = _engine(before, await script.reports())["calls"]
    if any(assertion["op"] == "same_as_nonstream" for assertion in case["expect"]["assertions"]):
        request = {**case["request"], "stream": False}
        document["nonstream"] = (await _play({**case, "request": request}, script, client, pieces))["msg"]
    for name, change in (("variant", changed), ("variant_user", said_by_user)) if "variant" in case else ():
        request = change(case["request"], case["variant"])
        document[name] = await _play({**case, "request": request}, script, client, pieces)
    return document


async def _play(case: dict[str, Any], script: Script, client: httpx.AsyncClient, pieces: int) -> dict[str, Any]:
    more = {
        field: case[key]
        for field, key in (
            ("finish", "engine_finish"),
            ("fault", "engine_fault"),
            ("cached_tokens", "engine_cached_tokens"),
        )
        if key in case
    }
    if "fault" in more:
        more["fault"] = {"after": more["fault"]["after_pieces"], "error": more["fault"]["error"]}
    before = await script.reports()
    texts = unfold(case["engine_texts"]) if "engine_texts" in case else [unfold(case["engine_text"]) or ""]
    await script.say(*texts, pieces=pieces, **more)
    try:
        answer = await client.post(
            ROUTES[case["api"]], content=_body(case), headers={"content-type": "application/json"}, timeout=PATIENCE_S
        )
        after = await script.reports()
    finally:
        await script.forget()
    streamed = answer.headers.get("content-type", "").startswith("text/event-stream")
    engine = _engine(before, after)
    events = _events(answer.text) if streamed else []
    body = None if streamed else answer.json()
    assemble, whole = ASSEMBLE[case["api"]]
    return {
        "status": answer.status_code,
        "json": body,
        "events": events,
        "closed": True,
        "msg": assemble(events) if streamed else whole(body),
        "msgs": [
            _assembled(events, choice) if streamed else _message(body, choice)
            for choice in range(len(case.get("engine_texts", ())))
        ],
        "prompt": engine.get("prompt"),
        "engine": engine,
    }


def _body(case: dict[str, Any]) -> bytes:
    if "request_raw_hex" in case:
        return bytes.fromhex(case["request_raw_hex"])
    if "request_raw" in case:
        return str(case["request_raw"]).encode()
    return json.dumps(unfold(case["request"])).encode()


def _engine(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> dict[str, Any]:
    """What the engines did meanwhile; the fields of the last turn of the one that ran it."""
    calls = sum(report["calls"] for report in after) - sum(report["calls"] for report in before)
    aborted = sum(report["aborted"] for report in after) - sum(report["aborted"] for report in before)
    ran = [new for old, new in zip(before, after, strict=True) if new["calls"] > old["calls"]]
    return {**(ran[0] if ran else {}), "calls": calls, "aborted": aborted}


def _events(text: str) -> list[dict[str, Any]]:
    events = []
    for block in text.split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in block.split("\n") if line and not line.startswith(":"))
        if data := fields.get("data"):
            events.append({"event": fields.get("event"), "data": data if data == "[DONE]" else json.loads(data)})
    return events


def _assembled(events: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """What an ordinary chat client puts together of one choice."""
    message: dict[str, Any] = {
        "content": None,
        "reasoning": None,
        "tool_calls": [],
        "finish_reason": None,
        "usage": None,
    }
    for event in events:
        if event["event"] or not isinstance(event["data"], dict):
            continue
        message["usage"] = event["data"].get("usage") or message["usage"]
        for choice in event["data"].get("choices", ()):
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            message["finish_reason"] = choice.get("finish_reason") or message["finish_reason"]
            for key, field in (("content", "content"), ("reasoning", "reasoning_content")):
                if delta.get(field) is not None:
                    message[key] = (message[key] or "") + delta[field]
            for call in delta.get("tool_calls") or ():
                _add_call(message["tool_calls"], call)
    message["content"], message["reasoning"] = _trim(message["content"]), _trim(message["reasoning"])
    return message


def _add_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    if delta["index"] == len(calls):
        calls.append(
            {"index": delta["index"], "id": delta.get("id"), "name": delta["function"]["name"], "arguments": ""}
        )
    calls[delta["index"]]["arguments"] += delta["function"].get("arguments") or ""


def _message(body: Any, index: int = 0) -> dict[str, Any]:
    """The same of an answer that was not streamed."""
    if not isinstance(body, dict) or not body.get("choices"):
        return {}
    choice = body["choices"][index]
    said = choice["message"]
    calls = [
        {"index": at, "id": call["id"], "name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for at, call in enumerate(said.get("tool_calls") or ())
    ]
    return {
        "content": _trim(said.get("content")),
        "reasoning": _trim(said.get("reasoning_content")),
        "tool_calls": calls,
        "finish_reason": choice["finish_reason"],
        "usage": body["usage"],
    }


def _trim(text: str | None) -> str | None:
    return text.strip() or None if text is not None else None


ASSEMBLE: dict[str, tuple[Callable[[list[dict[str, Any]]], dict[str, Any]], Callable[[Any], dict[str, Any]]]] = {
    "chat": (_assembled, _message),
    "messages": (messages.assembled, messages.plain),
    "responses": (responses.assembled, responses.plain),
}
