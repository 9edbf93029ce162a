"""The served pages. Of the OpenAPI document every body has the schema of the type that reads or writes it."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from catenary_frontend.testing import Stand, running_frontend
from catenary_protocols.bus.subjects import Subjects
from catenary_runtime.testing import NatsServer

Json = dict[str, Any]
REQUIRED = {
    "/v1/chat/completions": {"model", "messages"},
    "/v1/responses": {"model"},
    "/v1/messages": {"model", "messages", "max_tokens"},
    "/v1/messages/count_tokens": {"model", "messages"},
    "/v1/completions": {"model", "prompt"},
}


@pytest.fixture
async def stand(nats_server: NatsServer, subjects: Subjects) -> AsyncIterator[Stand]:
    async with running_frontend(nats_server, subjects) as one:
        yield one


def bodies(document: Json) -> Iterator[tuple[str, Json]]:
    """Each body that is taken or given, with what it is of."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            given = {"request": operation.get("requestBody"), **operation["responses"]}
            assert ("200" in given, "4XX" in given) == (True, True), path
            assert given["request"] or method != "post", path
            for part, body in given.items():
                for kind, content in (body or {}).get("content", {}).items():
                    yield f"{method} {path} {part} {kind}", content["schema"]


def kinds_of(schema: Json, document: Json) -> list[Json]:
    """The schemas of objects that a body may have."""
    if "$ref" in schema:
        return kinds_of(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    return [kind for one in schema["anyOf"] for kind in kinds_of(one, document)] if "anyOf" in schema else [schema]


async def test_every_body_has_a_schema_that_says_something(stand: Stand) -> None:
    document = (await stand.http.get("/openapi.json")).json()
    found = dict(bodies(document))
    assert len(found) > 40
    for body, schema in found.items():
        for kind in kinds_of(schema, document):
            assert kind["type"] == "object", body
            assert kind["properties"], body
            assert kind.get("required"), body


async def test_what_a_request_needs_is_required(stand: Stand) -> None:
    document = (await stand.http.get("/openapi.json")).json()
    for path, required in REQUIRED.items():
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert [set(kind["required"]) for kind in kinds_of(schema, document)] == [required]


async def test_what_it_refers_to_is_there(stand: Stand) -> None:
    document = (await stand.http.get("/openapi.json")).json()
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(document))) <= known


async def test_the_reference_page_names_every_path_and_field_and_loads_nothing(stand: Stand) -> None:
    document = (await stand.http.get("/openapi.json")).json()
    answer = await stand.http.get("/docs")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert "<script" not in answer.text
    assert "http" not in answer.text.replace("https://json-schema.org", "")
    for path in document["paths"]:
        assert path in answer.text
    for name, schema in document["components"]["schemas"].items():
        assert f'id="{name}"' in answer.text
        assert all(f"<code>{field}</code>" in answer.text for field in schema.get("properties", {}))
    assert all(f'id="{name}"' in answer.text for name in re.findall(r'href="#([^"]+)"', answer.text))


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/org/m", "/docs", "/openapi.json", "/v1/models/none", "/v1/messages"]
)
async def test_a_head_is_that_of_the_page_and_no_more(stand: Stand, path: str) -> None:
    page = await stand.http.get(path)
    head = await stand.http.head(path)
    assert head.status_code == page.status_code
    assert head.headers["content-length"] == page.headers["content-length"] == str(len(page.content))
    assert head.headers["content-type"] == page.headers["content-type"]
    assert head.content == b""
    assert head.headers["x-request-id"]
