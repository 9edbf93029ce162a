"""The model's own way to write reasoning and calls."""

from collections.abc import Sequence

from catenary_parsers import UnknownFormat, format_named, reasoning_named
from catenary_protocols.errors import RequestError

from catenary_worker.engines.sim.speaker import Render, SpokenCall


def render_for(parser: str, reasoning: str) -> Render:
    """A writer for a call format whose calls are JSON objects. Raises `RequestError` for an unknown one."""
    try:
        calls_are = format_named(parser)
        thinks = reasoning_named(calls_are.reasoning if reasoning == "auto" else reasoning)
    except UnknownFormat as error:
        raise RequestError(str(error), code="unsupported", field="parser") from error

    def render(thought: str, text: str, calls: Sequence[SpokenCall]) -> str:
        written = f"{thinks.open[0]}\n{thought}\n{thinks.close[0]}\n\n" if thought and thinks.open else ""
        objects = (f'{{"name": "{call.name}", "arguments": {call.arguments}}}' for call in calls)
        blocks = (f"{calls_are.open[0]}\n{call}\n{calls_are.close[0]}" for call in objects)
        return written + text + "\n".join(blocks)

    return render
