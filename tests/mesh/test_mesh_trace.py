"""One trace per turn, with a span of every service; never what was said."""

import asyncio

from tests.mesh.harness import MODEL, PATIENCE_S, WEATHER, RunningMesh
from tests.mesh.otlp import Receiver

STAGES = {"request", "render", "encode", "place", "overlap", "queue", "prefill", "decode", "execute_tool get_weather"}
SERVICES = {f"catenary-{name}" for name in ("frontend", "tokenizer", "router", "kv-indexer", "worker", "tool-dispatch")}
SECRET = "Oslofjorden"
BEFORE_THE_END = 20


async def test_a_turn_is_one_trace_and_its_tool_starts_while_it_decodes(
    paced_mesh: RunningMesh, spans: Receiver
) -> None:
    request = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"What is the weather in `{SECRET}`?"}],
        "tools": [WEATHER],
        "nvext": {"run_tools": True},
    }
    async with paced_mesh.client() as client:
        answer = await client.post("/v1/chat/completions", json=request)
    turn = answer.headers["x-catenary-turn-id"]
    trace = await asyncio.to_thread(spans.trace_of, turn, STAGES, PATIENCE_S)
    assert {span.name for span in trace} >= STAGES
    assert {span.service for span in trace} == SERVICES
    assert len({span.trace for span in trace}) == 1
    known = {span.span for span in trace}
    assert [span.name for span in trace if span.parent not in known] == ["request"]
    decode = next(span for span in trace if span.name == "decode")
    tool = next(span for span in trace if span.name.startswith("execute_tool"))
    per_token = (decode.ended - decode.began) / answer.json()["usage"]["completion_tokens"]
    assert (decode.ended - tool.began) / per_token >= BEFORE_THE_END
    assert SECRET not in repr(trace)


async def test_a_callers_trace_is_continued(paced_mesh: RunningMesh, spans: Receiver) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    request = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
    headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
    async with paced_mesh.client() as client:
        answer = await client.post("/v1/chat/completions", json=request, headers=headers)
    trace = await asyncio.to_thread(spans.trace_of, answer.headers["x-catenary-turn-id"], {"request"}, PATIENCE_S)
    assert {span.trace for span in trace} == {trace_id}
