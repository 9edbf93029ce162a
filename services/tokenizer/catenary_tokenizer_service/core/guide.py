"""What constrains an engine's decoding. The rule: only what the request demands, so that a free answer stays free.

A required or named call is demanded by the tool choice. A schema of the answer binds where no call may come first.
"""

import json
from typing import Literal

from catenary_parsers import ToolSpec, structural_tag
from catenary_protocols.bus.messages import ModelCard
from catenary_protocols.conversation import Conversation

Thinking = Literal["none", "open", "closed"]


def guide_of(card: ModelCard, conversation: Conversation, answer_schema: str, thinking: Thinking) -> str:
    """A structural tag as JSON text, or "" when the model may say what it likes."""
    choice = conversation.tool_choice
    if conversation.tools and choice.mode in {"required", "named"}:
        tag = structural_tag(
            card.parser,
            [ToolSpec(tool.name, json.loads(tool.schema)) for tool in conversation.tools],
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
