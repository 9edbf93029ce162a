"""The bus as an AsyncAPI 3 document, from the channels, the registry and the types themselves.

What the NATS binding has no word for (kind, stream, encoding, roles) stands under `x-catenary`.
"""

import re
from typing import Any

import msgspec

from catenary_protocols.bus.registry import STORED, TRAFFIC, Traffic
from catenary_protocols.bus.subjects import CHANNELS, DEFAULT_NAMESPACE, Channel, Subjects
from catenary_protocols.wire import Wire

_FIELD = re.compile(r"\{(\w+)\}")
_CONTENT = {"msgpack": "application/msgpack", "json": "application/json"}
_OBJECT = "AnyObject"
_ABOUT = {
    "tokenizer": "instance of the tokenizer service",
    "router": "instance of the router",
    "model": "name of a model",
    "worker": "instance of a worker",
    "frontend": "instance of the frontend",
    "service": "name of a service",
    "instance": "name of an instance",
    "tool": "name of a tool",
    "run_by": "`client` or `mesh`: who runs the call",
    "key": "key of the call",
    "what": "kind of fact",
}


def document(version: str, namespace: str = DEFAULT_NAMESPACE) -> dict[str, Any]:
    """The whole document, ready for JSON."""
    kinds = [kind for traffic in TRAFFIC.values() for kind in (*traffic.messages, *traffic.replies)]
    _, schemas = msgspec.json.schema_components(
        sorted({*kinds, *STORED}, key=lambda kind: kind.__name__), ref_template="#/components/schemas/{name}"
    )
    subjects = Subjects(namespace)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Catenary's bus",
            "version": version,
            "description": "Every subject of the mesh. Inside subjects names are escaped: any byte but letters, "
            "digits, `_` and `-` is `=xx`. MessagePack messages are maps; their schemas show bytes as base64 strings.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": _CONTENT["msgpack"],
        "servers": {"local": {"host": "127.0.0.1:4222", "protocol": "nats"}},
        "channels": {name: _channel(channel, subjects) for name, channel in CHANNELS.items()},
        "operations": dict(entry for channel in CHANNELS.values() for entry in _operations(channel)),
        "components": {
            "messages": dict(sorted(entry for traffic in TRAFFIC.values() for entry in _messages(traffic))),
            "schemas": {**dict(sorted(schemas.items())), _OBJECT: {"type": "object"}},
        },
    }


def _channel(channel: Channel, subjects: Subjects) -> dict[str, Any]:
    traffic = TRAFFIC[channel.name]
    fields = _FIELD.findall(channel.pattern)
    facts: dict[str, Any] = {"kind": channel.kind, "senders": [*channel.senders], "receivers": [*channel.receivers]}
    if channel.kind == "stream":
        facts["stream"] = subjects.tool_stream
    return {
        "address": f"{subjects.namespace}.{channel.pattern}",
        "description": channel.about,
        "parameters": {field: {"description": _ABOUT[field]} for field in fields},
        "messages": {name: _ref("components/messages", name) for name in _names((*traffic.messages, *traffic.replies))},
        "x-catenary": facts,
    }


def _operations(channel: Channel) -> list[tuple[str, dict[str, Any]]]:
    traffic = TRAFFIC[channel.name]
    reply = {}
    if channel.kind == "request":
        reply = {
            "reply": {
                "address": {"location": "$message.header#/reply-to", "description": "The NATS reply subject."},
                "messages": [_in_channel(channel, name) for name in _names(traffic.replies)],
            }
        }
    return [
        (
            f"{action}_{channel.name}",
            {
                "action": action,
                "channel": _ref("channels", channel.name),
                "summary": channel.about,
                "messages": [_in_channel(channel, name) for name in _names(traffic.messages)],
                **reply,
                "x-catenary": {"roles": [*roles]},
            },
        )
        for action, roles in (("send", channel.senders), ("receive", channel.receivers))
    ]


def _messages(traffic: Traffic) -> list[tuple[str, dict[str, Any]]]:
    content = _CONTENT[traffic.encoding]
    kinds = (*traffic.messages, *traffic.replies)
    entries = [(kind.__name__, _message(kind, content)) for kind in kinds]
    return entries or [(_OBJECT, {"contentType": content, "payload": _ref("components/schemas", _OBJECT)})]


def _message(kind: type[Wire], content: str) -> dict[str, Any]:
    return {
        "contentType": content,
        "summary": (kind.__doc__ or "").strip().splitlines()[0],
        "payload": _ref("components/schemas", kind.__name__),
    }


def _names(kinds: tuple[type[Wire], ...]) -> list[str]:
    return [kind.__name__ for kind in kinds] or [_OBJECT]


def _ref(where: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/{where}/{name}"}


def _in_channel(channel: Channel, name: str) -> dict[str, str]:
    return _ref(f"channels/{channel.name}/messages", name)
