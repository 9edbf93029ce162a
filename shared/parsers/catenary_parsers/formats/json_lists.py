"""A JSON list of calls behind or between markers."""

from __future__ import annotations

from catenary_parsers.calls import JsonCalls
from catenary_parsers.grammar import Format, Writing

_CALL = '{"name": "{name}", "arguments": {arguments}}'

NEMOTRON_DECI = Format(
    name="nemotron_deci",
    open=("<TOOLCALL>",),
    close=("</TOOLCALL>",),
    bodies=(JsonCalls(),),
    writing=Writing(_CALL, block="<TOOLCALL>[{calls}]</TOOLCALL>", between=", "),
    signs=("<TOOLCALL>",),
    models=("Llama Nemotron Super and Ultra",),
)
DEFAULT = Format(
    name="default",
    open=("<TOOLCALL>", "<|python_tag|>"),
    close=("</TOOLCALL>",),
    bodies=(JsonCalls(),),
    writing=Writing(_CALL, block="<TOOLCALL>[{calls}]</TOOLCALL>", between=", "),
    markers=("<|python_tag|>",),
    models=("models nobody knows a better format for",),
)
PHI4 = Format(
    name="phi4",
    open=(),
    close=(),
    implicit=("functools[",),
    bodies=(JsonCalls(),),
    writing=Writing(_CALL, block="functools[{calls}]", between=", "),
    signs=("<|tool|>", "<|/tool|>"),
    models=("Phi-4 mini",),
)
JAMBA = Format(
    name="jamba",
    open=("<tool_calls>",),
    close=("</tool_calls>",),
    bodies=(JsonCalls(),),
    writing=Writing(_CALL, block="<tool_calls>[{calls}]</tool_calls>", between=", "),
    signs=("<tool_calls>",),
    models=("Jamba 1.5 and later",),
)
GRANITE = Format(
    name="granite",
    open=("<|tool_call|>", "<tool_call>"),
    close=("</tool_call>",),
    bodies=(JsonCalls(),),
    writing=Writing(_CALL, block="<|tool_call|>[{calls}]", between=", "),
    reasoning="granite",
    ends_thinking=True,
    markers=("<|tool_call|>",),
    signs=("<|tool_call|>", "<|start_of_role|>"),
    models=("Granite 3",),
)

FORMATS = (NEMOTRON_DECI, DEFAULT, PHI4, JAMBA, GRANITE)
