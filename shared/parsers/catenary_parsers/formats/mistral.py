"""[TOOL_CALLS] with a JSON list, or with a name and [ARGS]."""

from __future__ import annotations

from catenary_parsers.calls import HeaderCalls, JsonCalls
from catenary_parsers.grammar import Format, Writing

MISTRAL = Format(
    name="mistral",
    open=("[TOOL_CALLS]",),
    close=("[/TOOL_CALLS]",),
    bodies=(JsonCalls(), HeaderCalls(separators=("[ARGS]",), id_separators=("[CALL_ID]",))),
    writing=Writing(
        '{"name": "{name}", "arguments": {arguments}}',
        block="[TOOL_CALLS][{calls}]",
        between=", ",
    ),
    reasoning="mistral",
    ends_thinking=True,
    markers=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    signs=("[TOOL_CALLS]",),
    models=("Mistral 7B v0.3 and later", "Mistral Small", "Mistral Large", "Magistral", "Devstral"),
)

FORMATS = (MISTRAL,)
