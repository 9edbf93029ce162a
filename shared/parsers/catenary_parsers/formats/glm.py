"""A bare name and key/value tags."""

from __future__ import annotations

from catenary_parsers.calls import JsonCalls
from catenary_parsers.grammar import Format, Writing
from catenary_parsers.tags import Tag, TagCalls


def _glm(name: str, newline: str, models: tuple[str, ...]) -> Format:
    return Format(
        name=name,
        open=("<tool_call>",),
        close=("</tool_call>",),
        bodies=(
            JsonCalls(),
            TagCalls(
                call=Tag("", ""),
                call_close=(),
                param=Tag("<arg_key>", "</arg_key>"),
                value_open=("<arg_value>",),
                param_close=("</arg_value>",),
            ),
        ),
        writing=Writing(
            f"<tool_call>{{name}}{newline}{{parameters}}</tool_call>",
            between=newline,
            parameter=f"<arg_key>{{key}}</arg_key>{newline}<arg_value>{{value}}</arg_value>{newline}",
            schema_style="glm_xml",
        ),
        markers=(
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ),
        signs=("<tool_call>", "<arg_key>", "<arg_value>") if newline else (),
        models=models,
    )


GLM45 = _glm("glm45", "\n", ("GLM-4.5", "GLM-4.6"))
GLM47 = _glm("glm47", "", ("GLM-4.7", "GLM-5"))

FORMATS = (GLM45, GLM47)
