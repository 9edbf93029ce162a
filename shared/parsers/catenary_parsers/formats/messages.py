"""Formats whose output is a sequence of messages: the header says what the body is."""

from __future__ import annotations

import re

from catenary_parsers.calls import JsonCalls
from catenary_parsers.grammar import Format, Messages, Route
from catenary_parsers.tags import Tag, TagCalls

_ATEM_HEAD = re.compile(r'(?P<name>[^"]*)"\s*')

HARMONY = Format(
    name="harmony",
    open=(),
    close=(),
    bodies=(),
    messages=Messages(
        start=("<|start|>", "<|channel|>"),
        bare_start=("to=functions.",),
        body=("<|message|>",),
        end=("<|end|>", "<|call|>", "<|return|>"),
        routes=(
            Route(re.compile(r"\bto=(?!user\b|assistant\b|all\b)(?:functions\.)?(?P<name>[^\s<]+)"), "call"),
            Route(re.compile(r"<\|channel\|>\s*analysis"), "reasoning"),
            Route(re.compile(r""), "text"),
        ),
    ),
    drops=("<|constrain|>",),
    reasoning="gpt_oss",
    markers=(
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
    ),
    models=("gpt-oss-20b", "gpt-oss-120b"),
)
INKLING = Format(
    name="inkling",
    open=(),
    close=(),
    bodies=(JsonCalls(arguments_keys=("args", "arguments")),),
    messages=Messages(
        start=("<|message_model|>",),
        body=("<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>"),
        end=("<|end_message|>",),
        routes=(
            Route(re.compile(r"<\|content_invoke_tool_json\|>"), "call"),
            Route(re.compile(r"<\|content_thinking\|>"), "reasoning"),
        ),
    ),
    reasoning="inkling",
    markers=(
        "<|message_model|>",
        "<|content_thinking|>",
        "<|content_text|>",
        "<|content_invoke_tool_json|>",
        "<|end_message|>",
    ),
    models=("Inkling",),
)
MUSE = Format(
    name="muse",
    aliases=("muse_glimmer",),
    open=("<atem:function_calls>",),
    close=("</atem:function_calls>",),
    bodies=(
        TagCalls(
            call=Tag('<atem:invoke name="', ">", _ATEM_HEAD),
            call_close=("</atem:invoke>",),
            param=Tag('<atem:parameter name="', ">", _ATEM_HEAD),
            param_close=("</atem:parameter>",),
        ),
    ),
    messages=Messages(
        start=("<|start|>",),
        body=("<|message|>",),
        end=("<|eom|>", "<|eot|>"),
        routes=(Route(re.compile(r"\bto=self\b"), "reasoning"),),
    ),
    reasoning="muse",
    markers=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    models=("Muse", "Muse Glimmer"),
)

FORMATS = (HARMONY, INKLING, MUSE)
