"""Function and parameter tags with raw values, typed by the schema."""

from __future__ import annotations

from catenary_parsers.calls import JsonCalls
from catenary_parsers.grammar import Format, Writing
from catenary_parsers.tags import Tag, TagCalls

QWEN3_CODER = Format(
    name="qwen3_coder",
    aliases=("qwen3", "nemotron_nano"),
    open=("<tool_call>",),
    close=("</tool_call>",),
    bodies=(
        TagCalls(
            call=Tag("<function=", ">"),
            call_close=("</function>",),
            param=Tag("<parameter=", ">"),
            param_close=("</parameter>",),
            trim=True,
        ),
        JsonCalls(),
    ),
    writing=Writing(
        "<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>",
        between="\n",
        parameter="<parameter={key}>\n{value}\n</parameter>\n",
        schema_style="qwen_xml",
    ),
    markers=("<tool_call>", "</tool_call>"),
    signs=("<tool_call>", "<function=", "<parameter="),
    models=("Qwen3-Coder", "Qwen3.5", "Qwen3.6", "Nemotron 3"),
)

FORMATS = (QWEN3_CODER,)
