"""The engine contract, on a stand-in of each version."""

from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from catenary_worker.engines.base import Engine
from catenary_worker.engines.contract import EngineContract
from catenary_worker.engines.trtllm import TrtEngine, TrtSettings
from catenary_worker.engines.trtllm.standin import Version, standin


class OnStandIn(EngineContract):
    version: Version

    @pytest.fixture(autouse=True)
    def gpu(self) -> Iterator[None]:
        with standin(self.version):
            yield

    def make(self) -> Engine:
        return TrtEngine(Path("model"), TrtSettings(), eos=(2, 3), context=2048, on_phase=lambda _: None)

    def prompt(self, length: int, seed: int = 0) -> "array[int]":
        return array("I", [100 + (seed * 7919 + at * 31) % 900 for at in range(length)])


class TestOn11(OnStandIn):
    version: Version = "1.1"


class TestOn12(OnStandIn):
    version: Version = "1.2"


class TestOn14(OnStandIn):
    version: Version = "1.4"
