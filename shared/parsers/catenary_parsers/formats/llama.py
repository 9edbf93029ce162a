"""Llama's two ways: JSON objects with or without a marker, and Python calls in a list."""

from __future__ import annotations

from catenary_parsers.calls import JsonCalls, PythonCalls
from catenary_parsers.grammar import Format, Writing
from catenary_parsers.values import PYTHON

LLAMA3_JSON = Format(
    name="llama3_json",
    open=("<|python_tag|>",),
    close=(),
    implicit=("{", "["),
    drops=("<|eom_id|>", "<|eot_id|>"),
    bodies=(JsonCalls(name_keys=("name", "function"), arguments_keys=("parameters", "arguments")),),
    writing=Writing(
        '{"name": "{name}", "parameters": {arguments}}',
        block="<|python_tag|>{calls}",
        between="; ",
    ),
    ends_thinking=True,
    markers=("<|python_tag|>", "<|eom_id|>", "<|eot_id|>"),
    signs=("<|python_tag|>",),
    models=("Llama 3.1", "Llama 3.2", "Llama 3.3"),
)
PYTHONIC = Format(
    name="pythonic",
    open=("<|python_start|>",),
    close=("<|python_end|>",),
    implicit=("[",),
    bodies=(PythonCalls(),),
    writing=Writing("{name}({arguments})", block="[{calls}]", between=", ", dialect=PYTHON),
    ends_thinking=True,
    markers=("<|python_start|>", "<|python_end|>"),
    signs=("<|python_start|>",),
    models=("Llama 4", "ToolACE", "Llama 3.2 small"),
)

FORMATS = (LLAMA3_JSON, PYTHONIC)
