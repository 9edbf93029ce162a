"""`GET /docs`: the OpenAPI document as a page to read. All of it is made here: it loads nothing and runs no script."""

import json
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse

Node = Mapping[str, Any]
_POLICY = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Catenary</title><style>
body { font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse } td { padding: .1em 1.5em .1em 0; vertical-align: top } h3 { margin-bottom: 0 }
</style><h1>Catenary</h1><p>Made from the types that decode and encode: <a href="openapi.json">openapi.json</a>.</p>"""


def add_reference(api: FastAPI) -> None:
    """The page, beside the document."""

    async def endpoint(_request: Request) -> HTMLResponse:
        return HTMLResponse(page(api.openapi()), headers=_POLICY)

    api.add_api_route("/docs", endpoint, methods=["GET"], include_in_schema=False)


def page(document: Node) -> str:
    """The HTML of an OpenAPI document: its operations, then its types."""
    operations = (
        _operation(f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    types = (_type(name, schema) for name, schema in sorted(document["components"]["schemas"].items()))
    return "\n".join([_HEAD, *operations, "<h2>Types</h2>", *types])


def _operation(title: str, operation: Node) -> str:
    body = _contents("takes", operation.get("requestBody", {}))
    answers = (line for status, one in operation["responses"].items() for line in _contents(status, one))
    return f"<h2><code>{escape(title)}</code></h2>{_table((*body, *answers))}"


def _contents(what: str, holder: Node) -> Iterator[tuple[str, str, str]]:
    for media, content in holder.get("content", {}).items():
        yield escape(what), escape(media), _kind(content["schema"])


def _type(name: str, schema: Node) -> str:
    needed = set(schema.get("required", ()))
    fields = (
        (f"<code>{escape(field)}</code>", _kind(of), "needed" if field in needed else _default(of))
        for field, of in schema.get("properties", {}).items()
    )
    about = escape(schema.get("description", ""))
    whole = "" if "properties" in schema else _kind(schema)
    return f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{about} {whole}</p>{_table(fields)}'


def _default(schema: Node) -> str:
    return f"else {escape(json.dumps(schema['default']))}" if schema.get("default") is not None else ""


def _kind(schema: Node) -> str:
    """What a value may be, with links to types."""
    if name := schema.get("$ref", "").rpartition("/")[2]:
        return f'<a href="#{escape(name)}">{escape(name)}</a>'
    if choices := schema.get("anyOf"):
        return " | ".join(map(_kind, choices))
    if "enum" in schema:
        return " | ".join(escape(json.dumps(value)) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return escape(str(schema.get("type", "any")))


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{lines}</table>" if lines else ""
