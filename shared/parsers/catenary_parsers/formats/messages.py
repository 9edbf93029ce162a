"""Formats whose output is a sequence of messages: the header says what the body is."""

from __future__ import annotations

import re

from catenary_parsers.calls import JsonCalls
from catenary_parsers.grammar import Format, Messages, Route, Writing
from catenary_parsers.tags import Tag, TagCalls

_ATEM_HEAD = re.compile(r'(?P<name>[^"<>]*)"\s*')

HARMONY = Format(
    name="harmony",
    open=(),
    close=(),
    bodies=(),
    writing=Writing(
        "<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>",
        text="<|start|>assistant<|channel|>final<|message|>{text}<|end|>",
    ),
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
        words=re.compile(r"(?:\s|(?:assistant|analysis|commentary|final|json|code|to=\S+)\b)*"),
    ),
    drops=("<|constrain|>",),
    reasoning="gpt_oss",
    ends_thinking=True,
    markers=(
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
    ),
    signs=("<|channel|>", "<|message|>"),
    models=("gpt-oss-20b", "gpt-oss-120b"),
)
INKLING = Format(
    name="inkling",
    open=(),
    close=(),
    bodies=(JsonCalls(arguments_keys=("args", "arguments")),),
    writing=Writing(
        '<|message_model|>{name}<|content_invoke_tool_json|>{"name": "{name}", "args": {arguments}}<|end_message|>',
        text="<|message_model|><|content_text|>{text}<|end_message|>",
    ),
    messages=Messages(
        start=("<|message_model|>",),
        body=("<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>"),
        end=("<|end_message|>",),
        routes=(
            Route(re.compile(r"<\|content_invoke_tool_json\|>"), "call"),
            Route(re.compile(r"<\|content_thinking\|>"), "reasoning"),
        ),
        words=re.compile(r"\s*\S*\s*"),
    ),
    reasoning="inkling",
    ends_thinking=True,
    markers=(
        "<|message_model|>",
        "<|content_thinking|>",
        "<|content_text|>",
        "<|content_invoke_tool_json|>",
        "<|end_message|>",
    ),
    signs=("<|content_invoke_tool_json|>",),
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
    writing=Writing(
        '<|start|>assistant to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n'
        "{parameters}</atem:invoke>\n</atem:function_calls><|eot|>",
        parameter='<atem:parameter name="{key}">{value}</atem:parameter>\n',
        text="<|start|>assistant to=user<|message|>{text}<|eom|>",
        schema_style="minimax_xml",
    ),
    messages=Messages(
        start=("<|start|>",),
        bare_start=("to=",),
        body=("<|message|>",),
        end=("<|eom|>", "<|eot|>"),
        routes=(Route(re.compile(r"\bto=self\b"), "reasoning"),),
        words=re.compile(r"(?:\s|(?:assistant|to=\S+)\b)*"),
    ),
    reasoning="muse",
    ends_thinking=True,
    markers=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    signs=("<atem:function_calls>",),
    models=("Muse", "Muse Glimmer"),
)

FORMATS = (HARMONY, INKLING, MUSE)
