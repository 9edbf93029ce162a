"""Chat templates: a conversation to one text, in bounded steps.

Two engines render the same Jinja: minijinja counts its steps and stops at a bound; jinja2's sandbox is Hugging Face's
own and cannot be stopped from inside. Which one a model gets is decided at load (`probe.py`); `needs_process` says
that the caller has to put a deadline around `render`, in a process that can be killed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import jinja2
import minijinja
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from catenary_tokenizers.errors import PromptError, TemplateLimitError
from catenary_tokenizers.safety import Shield

__all__ = ["ChatTemplate", "Engine", "Jinja2Engine", "MiniJinjaEngine", "to_json"]

FUEL = 50_000_000  # steps; a 50,000-token conversation takes some 20,000
_NAME = "chat_template"
_OUT_OF_FUEL = "ran out of fuel"
_GENERATION = re.compile(r"(\{%[-+]?)\s*(end)?generation\s*([-+]?%\})")


class Engine(Protocol):
    """Renders one template."""

    def render(self, context: Mapping[str, object], now: datetime | None) -> str:
        """The rendered text.

        Raises:
            PromptError: the template refuses this conversation.
            TemplateLimitError: too many steps.
        """
        ...


class _RefusedError(Exception):
    """A template's `raise_exception`."""


class _Clock:
    """The date a template may ask for; given from outside."""

    def __init__(self) -> None:
        self.now: datetime | None = None

    def strftime(self, form: str) -> str:
        if self.now is None:
            raise _RefusedError("the template asks for the date: pass `now`")
        return self.now.strftime(form)


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter that chat templates are written for: plain `json.dumps`, nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> str:
    raise _RefusedError(message)


class MiniJinjaEngine:
    """minijinja under fuel. `ValueError` at construction if it cannot parse the template."""

    def __init__(self, source: str) -> None:
        self._clock = _Clock()
        self._environment = minijinja.Environment(
            filters={"tojson": to_json},
            globals={"raise_exception": _refuse, "strftime_now": self._clock.strftime},
            fuel=FUEL,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        try:
            self._environment.add_template(_NAME, _without_generation_tags(source))
        except minijinja.TemplateError as error:
            raise ValueError(error.message) from error

    def render(self, context: Mapping[str, object], now: datetime | None) -> str:
        """See `Engine.render`."""
        self._clock.now = now
        try:
            text: str = self._environment.render_template(_NAME, **context)
        except _RefusedError as refusal:
            raise PromptError(str(refusal)) from None
        except minijinja.TemplateError as error:
            kind = TemplateLimitError if _OUT_OF_FUEL in str(error) else PromptError
            raise kind(error.message) from error
        return text


class Jinja2Engine:
    """jinja2's sandbox, set up as Hugging Face does. `ValueError` at construction if it cannot parse the template."""

    def __init__(self, source: str) -> None:
        self._clock = _Clock()
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = self._clock.strftime
        try:
            self._template = environment.from_string(_without_generation_tags(source))
        except jinja2.TemplateError as error:
            raise ValueError(error.message) from error

    def render(self, context: Mapping[str, object], now: datetime | None) -> str:
        """See `Engine.render`."""
        self._clock.now = now
        try:
            return self._template.render(**context)
        except _RefusedError as refusal:
            raise PromptError(str(refusal)) from None
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise PromptError(f"the template failed: {error}") from error


def _without_generation_tags(source: str) -> str:
    """The tag that marks assistant text for training renders what it holds."""
    return _GENERATION.sub(lambda tag: f"{tag[1]} {'endif' if tag[2] else 'if true'} {tag[3]}", source)


class ChatTemplate:
    """A model's template, with what was found out about it at load.

    Attributes:
        source: the Jinja text; `""` for a model without a template.
        needs_process: whether it runs in the engine that cannot be stopped from inside.
    """

    def __init__(self, source: str, engine: Engine, variables: Mapping[str, object], *, needs_process: bool) -> None:
        self.source = source
        self.needs_process = needs_process
        self._engine = engine
        self._variables = variables

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]],
        shield: Shield,
        now: datetime | None,
        kwargs: Mapping[str, object],
    ) -> str:
        """The prompt with marks in it; see `ModelTokenizer.render`."""
        context = {
            "add_generation_prompt": True,
            **self._variables,
            **kwargs,
            "messages": [shield_message(message, shield) for message in messages],
            "tools": [shield.shield_value(tool) for tool in tools] or None,
        }
        return self._engine.render(context, now)


def shield_message(message: Mapping[str, object], shield: Shield) -> dict[str, object]:
    """A message whose every text is shielded; the role is the template's own word."""
    return {key: value if key == "role" else shield.shield_value(value) for key, value in message.items()}
