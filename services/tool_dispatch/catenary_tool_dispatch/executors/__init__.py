"""One module per way to run a tool; `build` picks the one a spec asks for."""

from catenary_tool_dispatch.executors.base import Executor, Invocation, Outcome
from catenary_tool_dispatch.executors.command import CommandExecutor
from catenary_tool_dispatch.executors.http import HttpExecutor
from catenary_tool_dispatch.executors.python import PythonExecutor, resolve
from catenary_tool_dispatch.specs import ToolSpec

__all__ = ["Executor", "Invocation", "Outcome", "build"]


def build(spec: ToolSpec) -> Executor:
    """The executor of a tool; raises `ToolError` when its callable cannot be loaded."""
    if spec.command:
        return CommandExecutor(tuple(spec.command), spec.max_output_bytes)
    if spec.url:
        return HttpExecutor(
            spec.url, headers=spec.headers, private_host=spec.private_host, max_output=spec.max_output_bytes
        )
    return PythonExecutor(spec.name, resolve(spec.python), limit=spec.concurrency, max_output=spec.max_output_bytes)
