"""What an MCP tool answers, as text for the model: text as it is, anything else named in brackets.

| content                   | text                                              |
| ------------------------- | ------------------------------------------------- |
| text, embedded text       | itself                                            |
| image, audio, blob        | `[image, image/png, 1234 bytes: not shown]`       |
| link to a resource        | `[resource report.pdf, application/pdf: file:…]`  |
| structured content alone  | its JSON                                          |
"""

import json

import mcp_types as types

from catenary_tool_dispatch.executors.base import not_shown


def text_of(result: types.CallToolResult) -> str:
    """The parts of a result, a line break between them."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":"))
    return "\n".join(map(_part, result.content))


def _part(part: types.ContentBlock) -> str:
    match part:
        case types.TextContent():
            return part.text
        case types.ImageContent() | types.AudioContent():
            return not_shown(part.type, part.mime_type, _size(part.data))
        case types.ResourceLink():
            return f"[resource {part.name}, {part.mime_type or 'unknown type'}: {part.uri}]"
        case types.EmbeddedResource():
            return _resource(part.resource)


def _resource(resource: types.TextResourceContents | types.BlobResourceContents) -> str:
    if isinstance(resource, types.TextResourceContents):
        return resource.text
    return not_shown(f"resource {resource.uri}", resource.mime_type or "unknown type", _size(resource.blob))


def _size(base64: str) -> int:
    return len(base64.rstrip("=")) * 3 // 4
