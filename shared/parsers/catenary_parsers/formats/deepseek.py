"""DeepSeek's token frames: a name, and JSON in a fence (V3) or bare (V3.1)."""

# ruff: noqa: RUF001 - the bars are wide in the models' vocabularies
from __future__ import annotations

from catenary_parsers.calls import HeaderCalls
from catenary_parsers.grammar import Format, Writing

_MARKERS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)
_BEGIN, _END, _CALL, _CALL_END, _SEPARATOR = _MARKERS
_BODY = HeaderCalls(
    opens=(_CALL,),
    close=(_CALL_END,),
    lead=(f"function{_SEPARATOR}",),
    separators=(_SEPARATOR,),
)

DEEPSEEK_V3 = Format(
    name="deepseek_v3",
    open=(_BEGIN,),
    close=(_END,),
    bodies=(_BODY,),
    writing=Writing(
        f"{_CALL}function{_SEPARATOR}{{name}}\n```json\n{{arguments}}\n```{_CALL_END}",
        block=f"{_BEGIN}{{calls}}{_END}",
        between="\n",
    ),
    reasoning="deepseek_r1",
    ends_thinking=True,
    markers=_MARKERS,
    signs=("<｜tool▁calls▁begin｜>", "```json"),
    models=("DeepSeek-V3", "DeepSeek-R1"),
)
DEEPSEEK_V3_1 = Format(
    name="deepseek_v3_1",
    open=(_BEGIN,),
    close=(_END,),
    bodies=(_BODY,),
    writing=Writing(
        f"{_CALL}{{name}}{_SEPARATOR}{{arguments}}{_CALL_END}",
        block=f"{_BEGIN}{{calls}}{_END}",
    ),
    reasoning="deepseek_r1",
    ends_thinking=True,
    markers=_MARKERS,
    signs=("<｜tool▁calls▁begin｜>",),
    models=("DeepSeek-V3.1",),
)

FORMATS = (DEEPSEEK_V3, DEEPSEEK_V3_1)
