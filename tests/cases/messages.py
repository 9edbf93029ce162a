"""What `api_messages` cases look at beside the answer itself: what a client assembles, and the counting endpoint."""

import copy
import json
from typing import Any

import httpx


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The final message of a stream."""
    message: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    for data in (copy.deepcopy(event["data"]) for event in events):
        match data["type"]:
            case "message_start":
                message = data["message"]
            case "content_block_start":
                message["content"].append(data["content_block"])
            case "content_block_delta":
                _add(message["content"][data["index"]], data["delta"], inputs, data["index"])
            case "message_delta":
                message |= data["delta"]
                message["usage"] |= data["usage"]
    return plain(message)


def _add(block: dict[str, Any], delta: dict[str, Any], inputs: dict[int, str], index: int) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "input_json_delta":
            inputs[index] = inputs.get(index, "") + delta["partial_json"]
            block["input"] = inputs[index]


def plain(message: Any) -> dict[str, Any]:
    """A message in the form that cases compare: texts trimmed, inputs as values, the whole input counted."""
    if not isinstance(message, dict):
        return {}
    for block in message.get("content", ()):
        for field in ("text", "thinking"):
            if field in block:
                block[field] = block[field].strip()
        if isinstance(block.get("input"), str):
            block["input"] = _value(block["input"])
    if usage := message.get("usage"):
        usage["input_total"] = sum(
            usage[name] for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        )
    return message


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # a call that was cut
        return text


async def counts(request: dict[str, Any], client: httpx.AsyncClient) -> dict[str, Any]:
    """What the counting endpoint says of the request, of it without tools, and without a system text."""
    bodies = {
        "count_tokens": request,
        "count_tokens_no_tools": {key: value for key, value in request.items() if key != "tools"},
        "count_tokens_no_system": {key: value for key, value in request.items() if key != "system"},
    }
    return {name: (await client.post("/v1/messages/count_tokens", json=body)).json() for name, body in bodies.items()}
