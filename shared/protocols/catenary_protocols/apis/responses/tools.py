"""Declared tools of every kind → functions for the model, and back: which item a call of one becomes.

A custom tool is shown as a function with one string, `input`. Tools of a namespace stand among the others, under their
own name, or under `namespace__name` where that is taken. Tools of other kinds are not shown.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from catenary_protocols.apis.reading import lacking, read, wrong
from catenary_protocols.apis.responses.request import TOOLS, ChosenTool, CustomToolIn, FunctionToolIn, ToolKind
from catenary_protocols.apis.tools import tool_of
from catenary_protocols.conversation import Tool, ToolChoice

_kind = msgspec.json.Decoder(ToolKind)
_decoders = {kind: msgspec.json.Decoder(type_) for kind, type_ in TOOLS.items()}
_INPUT = '{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}'


@dataclass(frozen=True, slots=True)
class Declared:
    """A tool as its client knows it. `custom`: it takes text instead of arguments."""

    name: str
    namespace: str | None = None
    custom: bool = False


class Toolbox:
    """The tools of a request.

    Attributes:
        tools: as the model sees them.
    """

    def __init__(self, declared: Sequence[Raw]) -> None:
        self._of: dict[str, Declared] = {}
        self._shown: dict[Declared, Tool] = {}
        for place, raw in enumerate(declared):
            for tool, path, namespace in _flat(raw, f"tools[{place}]"):
                self._add(tool, path, namespace)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """As the model sees them, in the order of their declaration."""
        return tuple(self._shown.values())

    def declared(self, shown: str) -> Declared:
        """What the client calls the tool that the model calls `shown`; the same for one that nobody declared."""
        return self._of.get(shown) or Declared(shown)

    def shown(self, name: str, namespace: str | None, *, custom: bool) -> str:
        """What the model calls a tool; the same for one that is not declared any more."""
        tool = self._shown.get(Declared(name, namespace, custom))
        return tool.name if tool else name

    def choice(self, choice: str | ChosenTool | None) -> tuple[ToolChoice, tuple[Tool, ...]]:
        """The choice, and the tools among which it is; raises `RequestError`."""
        if isinstance(choice, ChosenTool):
            if choice.type == "allowed_tools":
                return self._among(choice)
            return ToolChoice(mode="named", name=self._named(choice, "tool_choice").name), self.tools
        if choice == "required" and not self._shown:
            raise wrong("tool_choice", "a call is required, but the request declares no tools")
        return (
            ToolChoice(mode="none" if choice == "none" else "required")
            if choice in {"none", "required"}
            else ToolChoice()
        ), self.tools

    def _among(self, choice: ChosenTool) -> tuple[ToolChoice, tuple[Tool, ...]]:
        allowed = tuple(
            self._named(tool, f"tool_choice.tools[{place}]")
            for place, tool in enumerate(choice.tools or ())
            if tool.type in {"function", "custom"}
        )
        if choice.mode == "required" and not allowed:
            raise wrong("tool_choice.tools", "a call is required, but no tool is allowed")
        return ToolChoice(mode=choice.mode or "auto"), allowed

    def _named(self, choice: ChosenTool, path: str) -> Tool:
        if choice.type not in {"function", "custom"}:
            raise wrong(f"{path}.type", f"this server has no tool of type {choice.type!r}", code="unsupported")
        if choice.name is None:
            raise lacking(f"{path}.name")
        for declared, tool in self._shown.items():
            if declared.name == choice.name and declared.custom == (choice.type == "custom"):
                return tool
        raise wrong(f"{path}.name", f"the request declares no {choice.type} tool {choice.name!r}")

    def _add(self, tool: FunctionToolIn | CustomToolIn, path: str, namespace: str | None) -> None:
        custom = isinstance(tool, CustomToolIn)
        declared = Declared(tool.name, namespace, custom)
        shown = tool.name if tool.name not in self._of or not namespace else f"{namespace}__{tool.name}"
        if shown in self._of:
            raise wrong(f"{path}.name", f"a tool {tool.name!r} was declared before")
        self._of[shown] = declared
        self._shown[declared] = _custom(tool, shown) if isinstance(tool, CustomToolIn) else _function(tool, shown, path)


def _flat(
    raw: Raw, path: str, namespace: str | None = None
) -> Iterator[tuple[FunctionToolIn | CustomToolIn, str, str | None]]:
    kind = read(_kind, bytes(raw), within=path).type
    if kind not in _decoders:
        return
    tool = read(_decoders[kind], bytes(raw), within=path)
    if isinstance(tool, FunctionToolIn | CustomToolIn):
        yield tool, path, namespace
        return
    for place, inner in enumerate(tool.tools):
        yield from _flat(inner, f"{path}.tools[{place}]", tool.name)


def _function(tool: FunctionToolIn, shown: str, path: str) -> Tool:
    return tool_of(shown, tool.description, tool.parameters, strict=tool.strict, path=f"{path}.parameters")


def _custom(tool: CustomToolIn, shown: str) -> Tool:
    about = tool.description or ""
    if tool.format and tool.format.definition:
        about = (
            f"{about}\n\n`input` must match this {tool.format.syntax or ''} grammar:\n{tool.format.definition}".strip()
        )
    return Tool(name=shown, description=about, schema=_INPUT)


def wrapped(text: str) -> str:
    """A custom tool's input as the arguments of the function that the model knows."""
    return json.dumps({"input": text}, ensure_ascii=False)


class _Wrapped(msgspec.Struct):
    input: str


_wrapped = msgspec.json.Decoder(_Wrapped)


def unwrapped(arguments: str) -> str:
    """The text in such arguments; arguments that are no such thing stand for themselves."""
    try:
        return _wrapped.decode(arguments).input
    except msgspec.DecodeError:
        return arguments
