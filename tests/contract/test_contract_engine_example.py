"""The engine that the documents show keeps the contract, and is registered as they say."""

import re
import tomllib
from array import array
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest
from catenary_worker.engines.base import GROUP, Engine, EngineSetup, EngineTurn
from catenary_worker.engines.contract import EngineContract

from tests.contract.workspace import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "engine.py"
PAGE = (ROOT / "docs" / "how-to" / "write-an-engine.md").read_text()


def example() -> ModuleType:
    spec = spec_from_file_location("engine_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestExample(EngineContract):
    def make(self) -> Engine:
        made: Engine = example().echo(EngineSetup(ROOT))
        return made

    def prompt(self, length: int, seed: int = 0) -> "array[int]":
        return array("I", [seed + at for at in range(length)])

    @pytest.mark.parametrize(("least", "said"), [(0, 1), (5, 11)])
    async def test_a_stop_token_counts_from_the_least_number_of_tokens_on(self, least: int, said: int) -> None:
        async with self.running() as seen:
            turn = EngineTurn("a", self.prompt(10), max_tokens=20, min_tokens=least, stop_token_ids=(0,))
            last = await seen.until_end(seen.submit(turn))
            assert (last.finish, last.stop_token, len(seen.tokens[turn.key])) == ("stop", True, said)


def test_the_page_registers_it_in_the_group_of_engines() -> None:
    (block,) = re.findall(r"^```toml\n(\[project.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    points = tomllib.loads(block)["project"]["entry-points"][GROUP]
    module, _, name = points["echo"].partition(":")
    assert module.rpartition(".")[2] == EXAMPLE.stem
    assert callable(getattr(example(), name))


def test_the_page_shows_the_contract_as_it_is_used() -> None:
    (block,) = re.findall(r"^```python\n(.*?EngineContract.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for name in re.findall(r"def (\w+)", block):
        assert hasattr(EngineContract, name)
