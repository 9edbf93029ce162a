"""What constrains an engine's decoding. The rule: only what the request demands, so that a free answer stays free.

A required or named call is demanded by the tool choice; a strict tool's schema binds any call of it that comes. A
schema of the answer binds where no call may come first. Where the engine cannot be held to anything, nothing is sent:
what was demanded is looked for when the turn ends.
"""

import json
from typing import Literal

from catenary_parsers import ToolSpec, structural_tag
from catenary_protocols.bus.messages import ModelCard
from catenary_protocols.conversation import Conversation, Tool

Thinking = Literal["none", "open", "closed"]


def guide_of(card: ModelCard, conversation: Conversation, answer_schema: str, thinking: Thinking) -> str:
    """A structural tag as JSON text, or "" when the model may say what it likes."""
    if not card.guides:
        return ""
    choice = conversation.tool_choice
    demanded = choice.mode in {"required", "named"}
    strict = choice.mode == "auto" and any(tool.strict for tool in conversation.tools)
    if conversation.tools and (demanded or strict):
        tag = structural_tag(
            card.parser,
            [_spec(tool, strict=demanded or tool.strict) for tool in conversation.tools],
            choice.name if choice.mode == "named" else choice.mode,
            parallel=conversation.parallel_calls,
            reasoning=card.reasoning,
            thinking=thinking,
        )
        return json.dumps(tag)
    if answer_schema and (not conversation.tools or choice.mode == "none"):
        answer = {"type": "json_schema", "json_schema": json.loads(answer_schema)}
        return json.dumps({"type": "structural_tag", "format": answer})
    return ""


def _spec(tool: Tool, *, strict: bool) -> ToolSpec:
    """Of a tool that is not strict, the arguments are an object, and no more is asked of them."""
    return ToolSpec(tool.name, json.loads(tool.schema) if strict else {"type": "object"})
