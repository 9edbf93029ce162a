"""A JSON object per call between <tool_call> tags, as Hermes and Qwen write it."""

from __future__ import annotations

from catenary_parsers.calls import JsonCalls
from catenary_parsers.grammar import Format, Writing

_WRITING = Writing(
    call='<tool_call>\n{"name": "{name}", "arguments": {arguments}}\n</tool_call>',
    between="\n",
)

HERMES = Format(
    name="hermes",
    aliases=("qwen25",),
    open=("<tool_call>",),
    close=("</tool_call>",),
    bodies=(JsonCalls(),),
    writing=_WRITING,
    markers=("<tool_call>", "</tool_call>"),
    signs=("<tool_call>", "arguments"),
    models=("Hermes 2 Pro and later", "Qwen2.5", "Qwen3 instruct"),
)
GRANITE4 = Format(
    name="granite4",
    open=("<tool_call>",),
    close=("</tool_call>",),
    bodies=(JsonCalls(),),
    writing=_WRITING,
    markers=("<tool_call>", "</tool_call>"),
    signs=("<tool_call>", "arguments", "<|start_of_role|>"),
    models=("Granite 4",),
)

FORMATS = (HERMES, GRANITE4)
