"""The engine contract, on llama.cpp itself."""

from array import array
from pathlib import Path

import pytest
from catenary_tokenizers import embedded_path, load
from catenary_worker.engines.base import Engine
from catenary_worker.engines.contract import EngineContract
from catenary_worker.engines.llamacpp import LlamaSettings
from catenary_worker.engines.llamacpp.engine import LlamaEngine
from catenary_worker.engines.llamacpp.testing import write_tiny_gguf


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


class TestLlamaCpp(EngineContract):
    file: Path

    @pytest.fixture(autouse=True)
    def model(self, gguf: Path) -> None:
        self.file = gguf

    def make(self) -> Engine:
        return LlamaEngine(self.file, load(embedded_path()), LlamaSettings(slots=4), context=1024)

    def prompt(self, length: int, seed: int = 0) -> "array[int]":
        return array("I", [300 + (seed * 7919 + at * 31) % 7000 for at in range(length)])
