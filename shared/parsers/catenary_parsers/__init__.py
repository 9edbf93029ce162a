"""Streaming parser of model output: text in, events out, for reasoning and tool calls together."""

from __future__ import annotations

from catenary_parsers.constrain import UnknownTool, structural_tag
from catenary_parsers.detect import detect
from catenary_parsers.engine import Parser, Thinking, markers_of, open_parser
from catenary_parsers.events import (
    ArgumentsDelta,
    CloseReason,
    Event,
    Json,
    Malformed,
    ReasoningDelta,
    TextDelta,
    ToolCallBegun,
    ToolCallComplete,
    ToolCallCut,
)
from catenary_parsers.grammar import Format, Reasoning, ToolSpec
from catenary_parsers.registry import FORMATS, REASONING, UnknownFormat, format_named, reasoning_named
from catenary_parsers.render import Call, render_call, render_turn

__all__ = [
    "FORMATS",
    "REASONING",
    "ArgumentsDelta",
    "Call",
    "CloseReason",
    "Event",
    "Format",
    "Json",
    "Malformed",
    "Parser",
    "Reasoning",
    "ReasoningDelta",
    "TextDelta",
    "Thinking",
    "ToolCallBegun",
    "ToolCallComplete",
    "ToolCallCut",
    "ToolSpec",
    "UnknownFormat",
    "UnknownTool",
    "detect",
    "format_named",
    "markers_of",
    "open_parser",
    "reasoning_named",
    "render_call",
    "render_turn",
    "structural_tag",
]
