"""What `api_responses` cases look at beside the answer itself: earlier responses, the store, and the stream as items."""

import re
from typing import Any

import httpx
from catenary_runtime.bus import Bus
from nats.js.errors import NoKeysError

from tests.cases.paths import find


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What the stream's end tells as a whole."""
    last = events[-1]["data"] if events else {}
    return last.get("response", {}) if isinstance(last, dict) else {}


def plain(body: Any) -> dict[str, Any]:
    """The same of an answer that was not streamed."""
    return body if isinstance(body, dict) else {}


def linked(request: Any, previous: Any) -> Any:
    """The request with `$prev.<path>` replaced by what the answer before has there."""
    if isinstance(request, dict):
        return {key: linked(value, previous) for key, value in request.items()}
    if isinstance(request, list):
        return [linked(value, previous) for value in request]
    named = re.fullmatch(r"\$prev(\..+)", request) if isinstance(request, str) else None
    return find(previous, "$" + named[1]) if named else request


async def afterwards(id_: str, request: dict[str, Any], client: httpx.AsyncClient) -> dict[str, Any]:
    """Whether the response can be had, or gone on from, when it is over."""
    got = await client.get(f"/v1/responses/{id_}")
    going_on = {key: value for key, value in request.items() if key != "stream"} | {"previous_response_id": id_}
    went_on = await client.post("/v1/responses", json=going_on) if got.status_code != httpx.codes.OK else got
    return {"get_status": got.status_code, "previous_status": went_on.status_code}


async def stored(bus: Bus) -> int:
    """How many responses are kept."""
    bucket = await bus.js.key_value(bus.subjects.responses_bucket)
    try:
        return len(await bucket.keys())
    except NoKeysError:
        return 0


# --- operators ------------------------------------------------------------------------------------------------------


def _of(events: Any, kind: str) -> list[dict[str, Any]]:
    return [event["data"] for event in events if str(event["event"]).endswith(kind)]


def delta_inside_part(events: Any, _: Any) -> bool:
    """Text comes between `content_part.added` and `content_part.done` of its part."""
    open_parts: set[tuple[str, int]] = set()
    for event in events:
        part = (event["data"].get("item_id"), event["data"].get("content_index"))
        match event["event"]:
            case "response.content_part.added":
                open_parts.add(part)
            case "response.content_part.done":
                open_parts.discard(part)
            case "response.output_text.delta" if part not in open_parts:
                return False
    return not open_parts


def items_sequential(events: Any, _: Any) -> bool:
    """An item is done before the next is added; indexes are 0, 1, 2, …"""  # an ellipsis for the reader
    count, open_item = 0, None
    for event in events:
        index = event["data"].get("output_index")
        if event["event"] == "response.output_item.added":
            if open_item is not None or index != count:
                return False
            open_item, count = index, count + 1
        elif index is not None and index != open_item:
            return False
        if event["event"] == "response.output_item.done":
            open_item = None
    return count > 0 and open_item is None


def _deltas_eq_done(kind: str, field: str, events: Any) -> bool:
    done = _of(events, f"{kind}.done")
    return bool(done) and all(
        "".join(delta["delta"] for delta in _of(events, f"{kind}.delta") if delta["item_id"] == one["item_id"])
        == one[field]
        for one in done
    )


def args_deltas_eq_done(events: Any, _: Any) -> bool:
    """A call's argument deltas are, joined, its arguments."""
    return _deltas_eq_done("function_call_arguments", "arguments", events)


def custom_input_eq(events: Any, _: Any) -> bool:
    """A custom call's input deltas are, joined, its input."""
    return _deltas_eq_done("custom_tool_call_input", "input", events)


def item_id_stable(events: Any, _: Any) -> bool:
    """An item's events all have the id with which it was added."""
    ids = {event["output_index"]: event["item"]["id"] for event in _of(events, "output_item.added")}
    named = [event["data"] for event in events if "item_id" in event["data"]]
    done = _of(events, "output_item.done")
    return all(ids[one["output_index"]] == one["item_id"] for one in named) and all(
        ids[one["output_index"]] == one["item"]["id"] for one in done
    )


def call_id_stable(events: Any, _: Any) -> bool:
    """A call has one call id from its first event to the response's end."""
    added = [one["item"]["call_id"] for one in _of(events, "output_item.added") if "call_id" in one["item"]]
    whole = [item["call_id"] for item in assembled(events)["output"] if "call_id" in item]
    return added == whole


def id_ne_call_id(events: Any, _: Any) -> bool:
    """An item's id is not its call id."""
    items = [one["item"] for one in _of(events, "output_item.added")]
    return all(item["id"] != item["call_id"] for item in items if "call_id" in item)


CHECKS = {
    one.__name__: one
    for one in (
        delta_inside_part,
        items_sequential,
        args_deltas_eq_done,
        custom_input_eq,
        item_id_stable,
        call_id_stable,
        id_ne_call_id,
    )
}
