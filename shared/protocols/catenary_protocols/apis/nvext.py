"""`nvext`: what a harness may tell the mesh beside any API's own fields.

Unknown keys are passed over, since a client may speak to older and newer meshes, and to others; `unknown_keys` names
them, since one may be a slip of the pen.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from catenary_protocols.apis.reading import read, wrong
from catenary_protocols.conversation import Hints, Tool, Within
from catenary_protocols.wire import Wire

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class AgentHints(Wire, frozen=True):
    """See `conversation.Hints`."""

    priority: Int32 | None = None
    strict_priority: Int32 | None = None
    osl: Tokens | None = None
    latency_sensitivity: Annotated[float, Meta(ge=0, le=1)] | None = None
    speculative_prefill: bool | None = None


class Routing(Wire, frozen=True):
    """Where a turn may run. Both empty: anywhere.

    Attributes:
        workers: names of those that may run it.
        tags: what its worker must have, all of them.
    """

    workers: list[str] = []
    tags: list[str] = []


class NvExt(Wire, frozen=True):
    """The extension object of a request.

    Attributes:
        run_tools: true: the mesh runs the calls of every declared tool it can; a list: of these tools.
        routing: which workers may run the turn.
        session_final: nobody comes back to this session: its KV blocks may go first.
        tool_dispatch: side events `tool_call_dispatch` and `tool_result` on the stream.
        restore_reasoning: false: thoughts that Chat Completions' messages leave out stay out of the prompt.
    """

    agent_hints: AgentHints | None = None
    run_tools: bool | list[str] | None = None
    routing: Routing | None = None
    session_final: bool | None = None
    tool_dispatch: bool | None = None
    restore_reasoning: bool | None = None

    @property
    def hints(self) -> Hints:
        """The hints, with defaults for what was not said."""
        said = self.agent_hints or AgentHints()
        return Hints(
            priority=said.priority or 0,
            strict_priority=said.strict_priority or 0,
            osl=said.osl,
            latency_sensitivity=said.latency_sensitivity,
            speculative_prefill=bool(said.speculative_prefill),
        )

    @property
    def within(self) -> Within:
        """Where the turn may run."""
        said = self.routing or Routing()
        return Within(workers=tuple(said.workers), tags=tuple(said.tags))

    def tools_to_run(self, tools: tuple[Tool, ...]) -> tuple[str, ...]:
        """Names of the tools to run; raises `RequestError` for one that the request does not declare."""
        if isinstance(self.run_tools, list):
            declared = {tool.name for tool in tools}
            for place, name in enumerate(self.run_tools):
                if name not in declared:
                    raise wrong(f"nvext.run_tools[{place}]", f"the request declares no tool {name!r}")
            return tuple(self.run_tools)
        return ("*",) if self.run_tools else ()


class _Extended(Wire, frozen=True):
    """What of a request is ours."""

    nvext: dict[str, Raw] | None = None


_extended = msgspec.json.Decoder(_Extended)
_object = msgspec.json.Decoder(dict[str, Raw] | None)
_OBJECTS: dict[str, type[Wire]] = {"agent_hints": AgentHints, "routing": Routing}


def unknown_keys(body: bytes) -> tuple[str, ...]:
    """Paths of the keys under `nvext`, in a request that was read, that nobody here knows."""
    if b'"nvext"' not in body:
        return ()
    return tuple(_unknown(read(_extended, body).nvext or {}, NvExt, "nvext"))


def _unknown(said: Mapping[str, Raw], known: type[Wire], path: str) -> Iterator[str]:
    for key, value in said.items():
        if key not in known.__struct_fields__:
            yield f"{path}.{key}"
        elif key in _OBJECTS:
            yield from _unknown(_object.decode(value) or {}, _OBJECTS[key], f"{path}.{key}")
