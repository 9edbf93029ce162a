"""No fix of the TensorRT-LLM adapter can go unnoticed."""

import asyncio
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_probe_and_every_fix_has_a_test_that_fails_without_it() -> None:
    script = Path(__file__).with_name("trtllm_mutants.py")
    run = await asyncio.create_subprocess_exec(sys.executable, str(script), stdout=asyncio.subprocess.PIPE)
    told, _ = await run.communicate()
    assert run.returncode == 0, told.decode()
