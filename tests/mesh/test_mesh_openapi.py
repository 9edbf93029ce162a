"""What the served OpenAPI document promises, tried at random against a whole mesh: no request breaks or hangs it.

Bodies are made from the document's own schemas, valid ones and invalid ones. The same every time: the seeds are fixed.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok

from tests.mesh.harness import MODEL, RunningMesh, running_mesh

EXAMPLES = 2_400
"""In all; a body with many fields gets a greater share."""
SHARE = {
    ("POST", "/v1/chat/completions"): 20,
    ("POST", "/v1/responses"): 20,
    ("POST", "/v1/messages"): 20,
    ("POST", "/v1/completions"): 10,
    ("POST", "/v1/messages/count_tokens"): 8,
    ("POST", "/v1/responses/input_tokens"): 8,
    ("POST", "/tokenize"): 4,
    ("POST", "/detokenize"): 4,
}
LONGEST_S = 30.0
"""No answer takes longer, and none of its pieces."""
CONFIG = f"""
[[models]]
name = "{MODEL}"
workers = 1
context = 4096
sim = {{ time_scale = 0 }}
"""


@pytest.fixture(scope="module")
def small_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """Its model has a short context, so that a turn without a limit ends."""
    folder = tmp_path_factory.mktemp("openapi")
    Path(folder, "mesh.toml").write_text(CONFIG)
    with running_mesh(folder, "--config", str(folder / "mesh.toml")) as mesh:
        yield mesh


@dataclass
class Tried:
    """How many requests had which status."""

    statuses: dict[int, int]

    def note(self, status: int) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1


def aimed(case: Case[Any]) -> Case[Any]:
    """The same, but mostly of the model that is served, and with the input that only a stored response can replace."""
    body = case.body
    model = body.get("model") if isinstance(body, dict) else None
    if isinstance(body, dict) and isinstance(model, str) and len(model) != 1:
        case.body = {**body, "model": MODEL}
        if case.path.startswith("/v1/responses") and not body.get("input"):
            case.body["input"] = "Say something."
    return case


def sent(client: httpx.Client, case: Case[Any]) -> httpx.Response:
    """The answer, read to its end."""
    request = case.as_transport_kwargs(base_url=str(client.base_url).rstrip("/"))
    return client.request(
        request["method"],
        request["url"],
        params=request.get("params"),
        headers=dict(request.get("headers") or {}),
        json=request.get("json"),
        content=request.get("data"),
    )


def is_error(path: str, body: Any) -> bool:
    """Whether it is an error in the shape of the path's own API."""
    error = body.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("message"), str) or not isinstance(error["type"], str):
        return False
    if path.startswith("/v1/messages"):
        return body["type"] == "error" and isinstance(body["request_id"], str)
    return isinstance(error["code"], str) and {"param"} <= set(error)


def names_workers(body: Any) -> bool:
    """Whether it says (`nvext.routing`) which workers may run it. At random, none of them is there."""
    nvext = body.get("nvext") if isinstance(body, dict) else None
    routing = nvext.get("routing") if isinstance(nvext, dict) else None
    return isinstance(routing, dict) and bool(routing.get("workers") or routing.get("tags"))


def is_nowhere(answer: httpx.Response) -> bool:
    """Whether it says that no such worker is there: true, and may change."""
    return (
        answer.status_code == 503
        and "retry-after" in answer.headers
        and answer.json()["error"]["message"] == f"no worker of {MODEL} that the turn may run on is there"
    )


def ends_well(path: str, stream: str) -> bool:
    """Whether its last event is one of those that end a stream of the path's API."""
    last = stream.rstrip("\n").rpartition("\n\n")[2]
    if path in {"/v1/chat/completions", "/v1/completions"}:
        return last == "data: [DONE]"
    kind = json.loads(last.partition("data: ")[2])["type"]
    ends = {"message_stop", "error", "response.completed", "response.incomplete", "response.failed"}
    return kind in ends


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
def test_no_request_that_the_document_allows_or_forbids_breaks_the_mesh(
    small_mesh: RunningMesh, mode: GenerationMode
) -> None:
    tried = Tried({})
    with httpx.Client(base_url=small_mesh.api, timeout=LONGEST_S) as client:
        document = client.get("/openapi.json").json()
        schema = schemathesis.openapi.from_dict(document)
        operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
        assert {path for _, path in SHARE} <= {one.path for one in operations}
        shares = {one.label: SHARE.get((one.method.upper(), one.path), 1) for one in operations}
        for operation in operations:
            if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
                continue
            count = EXAMPLES // 2 * shares[operation.label] // sum(shares.values()) + 1
            trial(client, operation.path, tried, count)(operation.as_strategy(generation_mode=mode).map(aimed))
    assert sum(tried.statuses.values()) >= 1_000
    assert tried.statuses[200 if mode is GenerationMode.POSITIVE else 400] > EXAMPLES // 10


def trial(client: httpx.Client, path: str, tried: Tried, count: int) -> Callable[[st.SearchStrategy[Case[Any]]], None]:
    """Tries so many cases of a strategy."""

    def run(cases: st.SearchStrategy[Case[Any]]) -> None:
        @settings(
            max_examples=count,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(cases)
        def one(case: Case[Any]) -> None:
            answer = sent(client, case)
            tried.note(answer.status_code)
            assert answer.status_code < 500 or (names_workers(case.body) and is_nowhere(answer)), answer.text
            if answer.status_code >= 400:
                assert is_error(path, answer.json()), answer.text
            elif answer.headers["content-type"].startswith("text/event-stream"):
                assert ends_well(path, answer.text), answer.text[-500:]
            else:
                answer.json()

        one()

    return run
