"""A name and an object with bare keys and a quote token of its own."""

from __future__ import annotations

from catenary_parsers.calls import HeaderCalls
from catenary_parsers.grammar import Format, Writing
from catenary_parsers.values import Dialect

_GEMMA = Dialect("Gemma", quote='<|"|>', bare=True)

GEMMA4 = Format(
    name="gemma4",
    aliases=("gemma-4",),
    open=("<|tool_call>",),
    close=("<tool_call|>",),
    bodies=(
        HeaderCalls(
            lead=("call:",),
            dialect=_GEMMA,
        ),
    ),
    writing=Writing("<|tool_call>call:{name}{arguments}<tool_call|>", dialect=_GEMMA, schema_style="gemma"),
    reasoning="gemma4",
    ends_thinking=True,
    markers=("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    signs=("<|tool_call>",),
    models=("Gemma 4",),
)

FORMATS = (GEMMA4,)
