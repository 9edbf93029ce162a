"""MiniMax's invokes: plain tags (M2), and tags behind a namespace token whose names are the parameters' (M3)."""

from __future__ import annotations

import re

from catenary_parsers.grammar import Format, Writing
from catenary_parsers.tags import Tag, TagCalls

_HEAD = re.compile(r'(?P<name>[^"<>]*)"\s*')
_NAMESPACE = "]<]minimax[>["

MINIMAX_M2 = Format(
    name="minimax_m2",
    open=("<minimax:tool_call>",),
    close=("</minimax:tool_call>",),
    bodies=(
        TagCalls(
            call=Tag('<invoke name="', ">", _HEAD),
            call_close=("</invoke>",),
            param=Tag('<parameter name="', ">", _HEAD),
            param_close=("</parameter>",),
        ),
    ),
    writing=Writing(
        '<invoke name="{name}">\n{parameters}</invoke>\n',
        block="<minimax:tool_call>\n{calls}</minimax:tool_call>",
        parameter='<parameter name="{key}">{value}</parameter>\n',
        schema_style="minimax_xml",
    ),
    reasoning="minimax_m2",
    ends_thinking=True,
    markers=("<minimax:tool_call>", "</minimax:tool_call>"),
    signs=("<minimax:tool_call>",),
    models=("MiniMax M2", "MiniMax M2.1", "MiniMax M2.5"),
)
MINIMAX_M3 = Format(
    name="minimax_m3",
    aliases=("minimax-m3", "minimax_m3_nom", "minimax-m3-nom"),
    open=(f"{_NAMESPACE}<tool_call>",),
    close=(f"{_NAMESPACE}</tool_call>",),
    bodies=(
        TagCalls(
            call=Tag(f'{_NAMESPACE}<invoke name="', ">", _HEAD),
            call_close=(f"{_NAMESPACE}</invoke>",),
            param=Tag(f"{_NAMESPACE}<", ">"),
            param_close=(f"{_NAMESPACE}</{{name}}>",),
        ),
    ),
    writing=Writing(
        f'{_NAMESPACE}<invoke name="{{name}}">{{parameters}}{_NAMESPACE}</invoke>\n',
        block=f"{_NAMESPACE}<tool_call>\n{{calls}}{_NAMESPACE}</tool_call>",
        parameter=f"{_NAMESPACE}<{{key}}>{{value}}{_NAMESPACE}</{{key}}>",
        schema_style="minimax_m3_xml",
    ),
    reasoning="minimax_m3",
    ends_thinking=True,
    markers=(_NAMESPACE,),
    signs=(_NAMESPACE,),
    models=("MiniMax M3",),
)

FORMATS = (MINIMAX_M2, MINIMAX_M3)
