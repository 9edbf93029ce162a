"""Styles of thinking."""

from __future__ import annotations

from catenary_parsers.grammar import Reasoning

BASIC = Reasoning(
    name="basic",
    aliases=("qwen3",),
    open=("<think>",),
    close=("</think>",),
    markers=("<think>", "</think>"),
)
NONE = Reasoning(name="none")

STYLES = (BASIC, NONE)
