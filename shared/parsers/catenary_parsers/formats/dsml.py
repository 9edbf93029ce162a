"""DeepSeek's markup language: invokes with parameters that say themselves whether they are strings."""

# ruff: noqa: RUF001 - the bars are wide in the models' vocabularies
from __future__ import annotations

import re

from catenary_parsers.grammar import Format, Writing
from catenary_parsers.tags import Tag, TagCalls

_HEAD = re.compile(r'(?P<name>[^"<>]*)"')
_PARAMETER = re.compile(r'(?P<name>[^"<>]*)"(?:\s+string="(?P<string>true|false)")?\s*')


def _dsml(name: str, block: str, gap: str, models: tuple[str, ...], *, ends_thinking: bool = True) -> Format:
    opening, closing = f"<｜DSML｜{gap}", f"</｜DSML｜{gap}"
    return Format(
        name=name,
        aliases=("deepseek-v4", "deepseekv4") if name == "deepseek_v4" else (),
        open=(f"{opening}{block}>",),
        close=(f"{closing}{block}>",),
        bodies=(
            TagCalls(
                call=Tag(f'{opening}invoke name="', ">", _HEAD),
                call_close=(f"{closing}invoke>",),
                param=Tag(f'{opening}parameter name="', ">", _PARAMETER),
                param_close=(f"{closing}parameter>",),
            ),
        ),
        writing=Writing(
            f'{opening}invoke name="{{name}}">\n{{parameters}}{closing}invoke>\n',
            block=f"{opening}{block}>\n{{calls}}{closing}{block}>",
            parameter=f'{opening}parameter name="{{key}}" string="{{string}}">{{value}}{closing}parameter>\n',
            schema_style="deepseek_v4_1_xml" if gap else "deepseek_xml",
        ),
        reasoning="deepseek_v4" if ends_thinking else "deepseek_r1",
        ends_thinking=ends_thinking,
        markers=("｜DSML｜",),
        signs=("｜DSML｜", block),
        models=models,
    )


DEEPSEEK_V3_2 = _dsml("deepseek_v3_2", "function_calls", "", ("DeepSeek-V3.2",), ends_thinking=False)
DEEPSEEK_V4 = _dsml("deepseek_v4", "tool_calls", "", ("DeepSeek-V4",))
DEEPSEEK_V41 = _dsml("deepseek_v41", "calls", " ", ("DeepSeek-V4.1",))

FORMATS = (DEEPSEEK_V3_2, DEEPSEEK_V4, DEEPSEEK_V41)
