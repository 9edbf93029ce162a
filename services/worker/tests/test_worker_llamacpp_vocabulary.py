"""A GGUF file's vocabulary as we read it gives the tokens that llama.cpp gives."""

import asyncio
import json
import urllib.request
from pathlib import Path

import pytest
from catenary_tokenizers import load, unpack, unpack_gguf
from catenary_worker.engines.llamacpp import LlamaSettings
from catenary_worker.engines.llamacpp.server import Address, LlamaServer
from catenary_worker.engines.llamacpp.testing import write_tiny_gguf

TEXTS = (
    "It's I'LL we'Ve HELLOWorld helloWORLD XMLHttpRequest 12345 a/b//\n",
    "  leading and trailing  ",
    " \t \n\n  \r\n x \n",
    "def f(x):\n    return {'a': [1, 2.5e-3], \"b\": None}\n\n\n\tif x!=y: pass  # ...",
    "漢字かな交じり文、한국어 ภาษาไทย עברית हिन्दी naïve café 👩‍👩‍👧",
    '{"name":"get_weather","arguments":{"city":"Zürich"}}<|x|><tool',
)


def tokens_of(address: Address, text: str) -> list[int]:
    request = urllib.request.Request(
        f"http://{address.host}:{address.port}/tokenize",
        json.dumps({"content": text, "parse_special": False}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {address.key}"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        found: list[int] = json.load(answer)["tokens"]
    return found


@pytest.mark.parametrize("cut", ["gpt-2", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "tekken"])
async def test_words_are_cut_as_llama_cpp_cuts_them(cut: str, tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "m.gguf", cut)
    unpack_gguf(file, tmp_path / "m")
    model, server = load(tmp_path / "m"), LlamaServer(file, LlamaSettings(slots=1), context=64)
    address = await server.start()
    try:
        for text in TEXTS:
            theirs = await asyncio.to_thread(tokens_of, address, text)
            assert list(unpack(model.encode(text, special=False))) == theirs
    finally:
        await server.stop()
