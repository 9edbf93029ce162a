"""No fix of an adapter can go unnoticed."""

import asyncio
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("adapter", ["trtllm", "llamacpp", "paged"])
async def test_every_probe_and_every_fix_has_a_test_that_fails_without_it(adapter: str) -> None:
    script = Path(__file__).with_name("engine_mutants.py")
    run = await asyncio.create_subprocess_exec(sys.executable, str(script), adapter, stdout=asyncio.subprocess.PIPE)
    told, _ = await run.communicate()
    assert run.returncode == 0, told.decode()
