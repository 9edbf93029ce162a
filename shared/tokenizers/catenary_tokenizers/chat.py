"""A model's chat template with what was found out about it at load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from catenary_tokenizers.errors import PromptError, TemplateLimitError
from catenary_tokenizers.safety import Shield
from catenary_tokenizers.shape import shape_messages, shape_tools
from catenary_tokenizers.template import Engine
from catenary_tokenizers.traits import Traits

__all__ = ["ChatTemplate"]

MOST_CHARACTERS = 64 << 20


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Renders conversations.

    Attributes:
        source: the Jinja text; `""` for a model without a template.
        engine: what renders it.
        variables: texts of the special tokens, which templates may print.
        traits: the shape of conversation it wants.
        needs_process: whether the engine cannot be stopped from inside, so that the caller has to put `render` into a
            process that can be killed.
    """

    source: str
    engine: Engine
    variables: Mapping[str, object]
    traits: Traits
    needs_process: bool

    def render(
        self,
        messages: Iterable[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]],
        shield: Shield,
        now: datetime | None,
        kwargs: Mapping[str, object],
    ) -> str:
        """The prompt with marks in it; see `ModelTokenizer.render`."""
        try:
            context = {
                "add_generation_prompt": True,
                **self.variables,
                **{key: shield.shield_option(value) for key, value in kwargs.items()},
                "messages": shape_messages(messages, self.traits, shield),
                "tools": shield.shield_constants(shape_tools(tools, self.traits)) or None,
            }
        except RecursionError as error:
            raise PromptError("messages or tools are nested too deeply") from error
        text = self.engine.render(context, now)
        if len(text) > MOST_CHARACTERS:
            raise TemplateLimitError(f"the prompt has {len(text)} characters, {MOST_CHARACTERS} at most")
        return text
