"""Python tools, and the text they return: every way foreign code can go wrong is an outcome."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from catenary_protocols.errors import ToolError
from catenary_tool_dispatch.executors.base import Invocation, Outcome, bounded, clean
from catenary_tool_dispatch.executors.python import PythonExecutor, resolve
from hypothesis import given
from hypothesis import strategies as st


def invocation(**values: Any) -> Invocation:
    return Invocation("turn-0-0", values, json.dumps(values).encode())


async def run(function: Callable[..., object], *, seconds: float = 5, limit: int = 2, **values: Any) -> Outcome:
    return await PythonExecutor("t", function, limit=limit, max_output=100).run(invocation(**values), seconds)


async def async_add(a: int, b: int) -> int:
    return a + b


async def async_forever() -> None:
    await asyncio.Event().wait()


async def async_exit() -> None:
    sys.exit(1)


def refuse() -> None:
    raise ToolError("no such city")


def fail() -> None:
    raise OSError("the password is hunter2")


@pytest.mark.parametrize(
    ("returned", "output"),
    [("text", "text"), (None, ""), (b"a\xff", "a\ufffd"), ({"a": [1, "ø"]}, '{"a":[1,"ø"]}'), ("\ud800x", "\ufffdx")],
)
async def test_what_a_function_returns_becomes_text(returned: object, output: str) -> None:
    assert await run(lambda: returned) == Outcome(output)


async def test_coroutine_functions_run_on_the_loop() -> None:
    assert await run(async_add, a=1, b=2) == Outcome("3")
    assert (await run(async_forever, seconds=0.01)).code == "timeout"


async def test_a_tool_error_speaks_to_the_model_and_other_errors_keep_their_secrets() -> None:
    assert await run(refuse) == Outcome("no such city", "failed", "the tool refused the call")
    assert await run(fail) == Outcome("", "failed", "the tool raised OSError")
    assert (await run(object)).code == "failed", "an object is not JSON"
    assert (await run(refuse, surplus=1)).message == "the tool raised TypeError"


async def test_what_json_cannot_say_and_an_exit_are_failures() -> None:
    assert (await run(lambda: float("nan"))).message == "the tool raised ValueError"
    assert (await run(sys.exit)).message == "the tool raised SystemExit"
    assert (await run(async_exit)).message == "the tool raised SystemExit"


async def test_long_output_is_cut() -> None:
    outcome = await run(lambda: "é" * 100)
    assert (outcome.output, outcome.truncated) == ("é" * 50, True)


async def test_threads_that_hang_cost_their_own_tool_only_until_they_return() -> None:
    go = threading.Event()
    executor = PythonExecutor("t", go.wait, limit=2, max_output=100)
    hung = await asyncio.gather(*(executor.run(invocation(), 0.02) for _ in range(2)))
    assert [one.code for one in hung] == ["timeout", "timeout"]
    assert (await executor.run(invocation(), 0.02)).code == "overloaded"
    assert await run(lambda: "others go on") == Outcome("others go on")
    back = asyncio.Event()
    came_back = executor._came_back

    def note() -> None:
        came_back()
        if not executor.abandoned:
            back.set()

    executor._came_back = note  # type: ignore[method-assign]  # to hear of it without polling
    go.set()
    await back.wait()
    assert await executor.run(invocation(), 5) == Outcome("true")


@pytest.mark.parametrize("target", ["nothing", "os:nope", "no_such_module_anywhere:x", "os:sep", ":", "os:"])
def test_a_target_that_is_no_callable_is_refused(target: str) -> None:
    with pytest.raises(ToolError):
        resolve(target)


def test_a_target_may_be_an_attribute_of_an_attribute() -> None:
    assert resolve("os:path.join") is os.path.join


@given(st.binary(max_size=40), st.integers(1, 30))
def test_bounded_text_is_a_prefix_within_the_limit(data: bytes, limit: int) -> None:
    text, truncated = bounded(data, limit)
    assert len(text.encode()) <= limit
    whole = data.decode("utf-8", "replace")
    assert whole.startswith(text)
    assert truncated == (text != whole)


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_clean_text_can_be_encoded_and_valid_text_is_kept(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    try:
        text.encode()
    except UnicodeEncodeError:
        assert cleaned != text
    else:
        assert cleaned == text
