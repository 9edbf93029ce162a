"""Content blocks of requests: one type each, chosen by `type`.

A type that nobody here knows is passed over, and said to be: clients send news of their API long before a server hears
of it. A type that is known, and whose content would be lost, is refused.
"""

from collections.abc import Iterator
from typing import Annotated, get_args

import msgspec
from msgspec import Meta, Raw

from catenary_protocols.apis.reading import read, wrong
from catenary_protocols.apis.tools import JsonObject, Name
from catenary_protocols.errors import RequestError
from catenary_protocols.wire import Wire

_TYPES = ("Text", "Image", "Document", "SearchResult", "Thinking", "RedactedThinking", "ToolUse", "ToolResult")
_REFS = [{"$ref": f"#/components/schemas/{name}Param"} for name in (*_TYPES, "ToolReference")]
Content = str | Annotated[list[Raw], Meta(extra_json_schema={"items": {"anyOf": _REFS}})]
"""Text, or blocks; `blocks` reads it."""


class TextParam(Wire, frozen=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class Base64Source(Wire, frozen=True, tag_field="type", tag="base64"):
    """The thing itself."""

    media_type: str
    data: str


class UrlSource(Wire, frozen=True, tag_field="type", tag="url"):
    """Where the thing is."""

    url: str


class FileSource(Wire, frozen=True, tag_field="type", tag="file"):
    """A file that was uploaded before."""

    file_id: str


class TextSource(Wire, frozen=True, tag_field="type", tag="text"):
    """A document that is plain text."""

    data: str


class ContentSource(Wire, frozen=True, tag_field="type", tag="content"):
    """A document made of blocks."""

    content: Content


class ImageParam(Wire, frozen=True, tag_field="type", tag="image"):
    """An image."""

    source: Base64Source | UrlSource | FileSource


class DocumentParam(Wire, frozen=True, tag_field="type", tag="document"):
    """A document. Those that are text are read; others are refused."""

    source: Base64Source | UrlSource | FileSource | TextSource | ContentSource
    title: str | None = None
    context: str | None = None


class SearchResultParam(Wire, frozen=True, tag_field="type", tag="search_result"):
    """A passage that a search of the client's found."""

    source: str
    title: str
    content: list[TextParam]


class ThinkingParam(Wire, frozen=True, tag_field="type", tag="thinking"):
    """What the model thought, sent back. What was sealed into the signature is what counts."""

    thinking: str = ""
    signature: str = ""


class RedactedThinkingParam(Wire, frozen=True, tag_field="type", tag="redacted_thinking"):
    """Thinking that the client never saw."""

    data: str = ""


class ToolUseParam(Wire, frozen=True, tag_field="type", tag="tool_use"):
    """A call the model made, sent back."""

    id: str
    name: Name
    input: JsonObject


class ToolResultParam(Wire, frozen=True, tag_field="type", tag="tool_result"):
    """What a call returned; nothing means empty."""

    tool_use_id: str
    content: Content | None = None
    is_error: bool | None = None


class ToolReferenceParam(Wire, frozen=True, tag_field="type", tag="tool_reference"):
    """A deferred tool that the model is to know from here on."""

    tool_name: Name


Block = (
    TextParam
    | ImageParam
    | DocumentParam
    | SearchResultParam
    | ThinkingParam
    | RedactedThinkingParam
    | ToolUseParam
    | ToolResultParam
    | ToolReferenceParam
)
BLOCKS: tuple[type[Block], ...] = get_args(Block)
_KNOWN = frozenset(str(kind.__struct_config__.tag) for kind in BLOCKS)
_SERVER_SIDE = frozenset({"server_tool_use", "mcp_tool_use", "container_upload"})


class UnknownBlock(Wire, frozen=True):
    """A block of another type: what every block has."""

    type: str


_block: msgspec.json.Decoder[Block] = msgspec.json.Decoder(Block)
_unknown = msgspec.json.Decoder(UnknownBlock)


def blocks(content: Content, path: str) -> Iterator[tuple[str, Block | UnknownBlock]]:
    """The blocks of a content and the path of each in the request; raises `RequestError`."""
    if isinstance(content, str):
        yield path, TextParam(text=content)
        return
    for at, raw in enumerate(content):
        here, data = f"{path}[{at}]", bytes(raw)
        try:
            block = read(_block, data, within=here)
        except RequestError:
            unknown = read(_unknown, data, within=here)
            if unknown.type in _KNOWN:
                raise
            _refuse_server_side(unknown.type, here)
            yield here, unknown
        else:
            yield here, block


def _refuse_server_side(kind: str, path: str) -> None:
    if kind in _SERVER_SIDE or kind.endswith("_tool_result"):
        raise wrong(
            f"{path}.type", f"{kind!r} blocks belong to server tools, which are not run here", code="unsupported"
        )
