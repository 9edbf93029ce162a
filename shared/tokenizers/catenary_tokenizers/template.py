"""Chat templates: a conversation to one text, in bounded steps.

Two engines render the same Jinja: minijinja counts its steps and stops at a bound; jinja2's sandbox is Hugging Face's
own and cannot be stopped from inside. Which one a model gets is decided at load (`probe.py`); `needs_process` says
that the caller has to put a deadline around `render`, in a process that can be killed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Protocol

import jinja2
import minijinja
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from catenary_tokenizers.errors import PromptError, TemplateLimitError
from catenary_tokenizers.safety import Constant

__all__ = ["Engine", "Jinja2Engine", "MiniJinjaEngine", "Unrendered", "to_json"]

FUEL = 20_000_000  # steps, about a second; an agent's 200 messages take 20,000 to 270,000, by template
_NAME = "chat_template"
_OUT_OF_FUEL = "ran out of fuel"
_write = json.JSONEncoder(ensure_ascii=False).encode
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


class Unrendered:
    """In the place of the sandbox for those who load a model and render nothing: no template's code is run at all."""

    def __init__(self, source: str) -> None:
        self.source = source

    def render(self, context: Mapping[str, object], now: datetime | None) -> str:
        """See `Engine.render`; refuses."""
        raise PromptError(f"{len(context)} variables for a template that was loaded without an engine, at {now}")


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
    if ensure_ascii or sort_keys or indent is not None or separators is not None:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if type(value) is not Constant:
        return _write(value)
    try:
        return value.json
    except AttributeError:
        value.json = _write(value)
        return value.json


def _is_iterable(value: object) -> bool:
    """As in jinja2, where nothing is not iterable."""
    return isinstance(value, Iterable)


def _refuse(message: str) -> str:
    raise _RefusedError(message)


class MiniJinjaEngine:
    """minijinja under fuel. `ValueError` at construction if it cannot parse the template."""

    def __init__(self, source: str) -> None:
        self._clock = _Clock()
        self._environment = minijinja.Environment(
            filters={"tojson": to_json},
            tests={"iterable": _is_iterable},
            globals={"raise_exception": _refuse, "strftime_now": self._clock.strftime},
            fuel=FUEL,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        try:
            self._environment.add_template(_NAME, _prepared(source))
        except minijinja.TemplateError as error:
            raise ValueError(error.message) from error

    def render(self, context: Mapping[str, object], now: datetime | None) -> str:
        """See `Engine.render`."""
        self._clock.now = now
        return _rendered(lambda: self._environment.render_template(_NAME, **context))


class Jinja2Engine:
    """jinja2's sandbox, set up as Hugging Face does. `ValueError` at construction if it cannot parse the template."""

    def __init__(self, source: str) -> None:
        self._clock = _Clock()
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = self._clock.strftime
        try:
            self._template = environment.from_string(_prepared(source))
        except jinja2.TemplateError as error:
            raise ValueError(error.message) from error

    def render(self, context: Mapping[str, object], now: datetime | None) -> str:
        """See `Engine.render`."""
        self._clock.now = now
        return _rendered(lambda: self._template.render(**context))


def _rendered(render: Callable[[], str]) -> str:
    """The boundary around foreign code: whatever a template raises is its refusal of this conversation."""
    try:
        return render()
    except _RefusedError as refusal:
        raise PromptError(str(refusal)) from None
    except minijinja.TemplateError as error:
        kind = TemplateLimitError if _OUT_OF_FUEL in str(error) else PromptError
        raise kind(error.message) from error
    except Exception as error:
        raise PromptError(f"the template failed: {error}") from error


def _prepared(source: str) -> str:
    """Line ends as jinja2 reads them; the tag that marks assistant text for training renders what it holds."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    return _GENERATION.sub(lambda tag: f"{tag[1]} {'endif' if tag[2] else 'if true'} {tag[3]}", source)
