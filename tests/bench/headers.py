"""What a header that differs in every session costs ahead of a prompt of 52,000 tokens, and what it costs taken out.

Sessions of Claude Code share system text and tools, and each begins with a billing header. `same`: the header never varies.
`stripped`: it varies, and the mesh takes it out. `unstripped`: it varies under a name that the mesh does not know, as there
is no switch for the known one. The simulator's `dynamo` preset in real time; nothing is ever evicted.
"""

import asyncio
import secrets
import statistics
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from catenary_tokenizers import embedded_path, load

from tests.bench.routing import Texts
from tests.mesh.harness import MODEL, running_mesh, stream

Json = dict[str, Any]

PROMPT = 53_500
"""Of the system text, estimated by its words."""
SESSIONS = 12
BLOCK = 16
PATIENCE_S = 60.0
CONFIG = """
[[models]]
name = "catenary-sim"
workers = 1
sim = { blocks = 65536, block_size = 16 }
"""
HEADERS = {
    "same": ("x-anthropic-billing-header", False),
    "stripped": ("x-anthropic-billing-header", True),
    "unstripped": ("x-other-billing-header", True),
}
"""By name: the header's, and whether it varies."""


def measure() -> Json:
    """Shares of the blocks that were hit, and times to first token, absolute and as ratios."""
    with TemporaryDirectory() as folder:
        config = Path(folder) / "catenary.toml"
        config.write_text(CONFIG)
        with running_mesh(Path(folder), "--config", str(config)) as mesh:
            return asyncio.run(_measure(mesh.api))


async def _measure(api: str) -> Json:
    """Sessions of each kind take turns; the first of each, which finds nothing, does not count."""
    texts = Texts(load(embedded_path()))
    system = {name: texts.of(name, PROMPT) for name in HEADERS}
    first_ms, hit, prompts = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list), set[int]()
    async with httpx.AsyncClient(base_url=api, timeout=PATIENCE_S) as client:
        for number in range(SESSIONS + 1):
            for name, (header, varies) in HEADERS.items():
                session = secrets.token_hex(4) if varies else "a1b2c3d4"
                blocks = [f"{header}: cc_version=2.1.332.{session}; cc_entrypoint=cli;", system[name]]
                took, prompt, cached = await ask(client, blocks)
                if number:
                    first_ms[name].append(1000 * took)
                    hit[name].append(cached // BLOCK / (prompt // BLOCK))
                    prompts.add(prompt)
    median = {name: statistics.median(times) for name, times in first_ms.items()}
    return {
        "prompt_tokens": [min(prompts), max(prompts)],
        "sessions": SESSIONS,
        "blocks_hit": {name: round(statistics.fmean(shares), 4) for name, shares in hit.items()},
        "ttft_ms": {name: round(value, 1) for name, value in median.items()},
        "stripped_to_same": round(median["stripped"] / median["same"], 2),
        "unstripped_to_stripped": round(median["unstripped"] / median["stripped"], 1),
    }


async def ask(client: httpx.AsyncClient, system: list[str]) -> tuple[float, int, int]:
    """A session's first turn: seconds to its first token, tokens of its prompt, and how many of them were cached."""
    body = {
        "model": MODEL,
        "system": [{"type": "text", "text": text} for text in system],
        "messages": [{"role": "user", "content": f"What is {secrets.token_hex(4)}?"}],
        "max_tokens": 4,
    }
    began = time.monotonic()
    events = await stream(client, body, "/v1/messages")
    first = next(event for event in events if event.name == "content_block_delta")
    usage = next(event for event in events if event.name == "message_start").data["message"]["usage"]
    cached = usage["cache_read_input_tokens"]
    prompt = usage["input_tokens"] + usage.get("cache_creation_input_tokens", 0) + cached
    return first.at - began, prompt, cached
