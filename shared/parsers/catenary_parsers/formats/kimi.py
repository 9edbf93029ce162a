"""Kimi's token frames (K2) and its own markup (K3)."""

from __future__ import annotations

import re

from catenary_parsers.calls import HeaderCalls
from catenary_parsers.grammar import Format, Writing
from catenary_parsers.tags import Tag, TagCalls

_K2_MARKERS = (
    "<|tool_calls_section_begin|>",
    "<|tool_call_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_K2_BODY = HeaderCalls(
    opens=("<|tool_call_begin|>",),
    close=("<|tool_call_end|>",),
    separators=("<|tool_call_argument_begin|>",),
    header=re.compile(r"(?:functions\.)?(?P<name>[^<>|]+?)(?P<id>:[0-9]+)?"),
)


def _k2(name: str, reasoning: str, models: tuple[str, ...]) -> Format:
    return Format(
        name=name,
        open=_K2_MARKERS[:2],
        close=_K2_MARKERS[2:4],
        bodies=(_K2_BODY,),
        writing=Writing(
            "<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
            block="<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>",
        ),
        reasoning=reasoning,
        ends_thinking=True,
        markers=_K2_MARKERS,
        signs=("<|tool_calls_section_begin|>", "<think>")
        if reasoning == "kimi_k25"
        else ("<|tool_calls_section_begin|>",),
        models=models,
    )


KIMI_K2 = _k2("kimi_k2", "kimi_k2", ("Kimi K2", "Kimi K2 Thinking"))
KIMI_K25 = _k2("kimi_k25", "kimi_k25", ("Kimi K2.5", "Kimi K2.6"))
KIMI_K3 = Format(
    name="kimi_k3",
    aliases=("kimi-k3",),
    open=("<|open|>tools<|sep|>",),
    close=("<|close|>tools<|sep|>",),
    drops=(
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ),
    bodies=(
        TagCalls(
            call=Tag(
                '<|open|>call tool="',
                "<|sep|>",
                re.compile(r'(?P<name>[^"<>|]*)"(?:\s+index="[0-9]*")?\s*'),
            ),
            call_close=("<|close|>call<|sep|>",),
            param=Tag(
                '<|open|>argument key="',
                "<|sep|>",
                re.compile(r'(?P<name>[^"]*)"(?:\s+type="(?P<string>[^"]*)")?\s*'),
            ),
            param_close=("<|close|>argument<|sep|>",),
            json_open=("<|open|>json<|sep|>",),
            json_close=("<|close|>json<|sep|>",),
        ),
    ),
    writing=Writing(
        '<|open|>call tool="{name}" index="{count}"<|sep|>{parameters}<|close|>call<|sep|>',
        block="<|open|>tools<|sep|>{calls}<|close|>tools<|sep|>",
        parameter='<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>',
        text="<|open|>response<|sep|>{text}<|close|>response<|sep|>",
        schema_style="kimi_k3_xml",
    ),
    reasoning="kimi_k3",
    ends_thinking=True,
    markers=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    signs=("<|open|>", "<|sep|>"),
    models=("Kimi K3",),
)

FORMATS = (KIMI_K2, KIMI_K25, KIMI_K3)
