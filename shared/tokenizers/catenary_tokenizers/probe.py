"""What a template is like, found out at load by rendering small conversations.

Every probe asks one question: does the template take this, and is the text that went in also in what came out? Texts
are told apart by words that stand nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from catenary_tokenizers.answers import CLOSE_THINK
from catenary_tokenizers.chat import ChatTemplate
from catenary_tokenizers.errors import PromptError, TemplateLimitError
from catenary_tokenizers.safety import Shield
from catenary_tokenizers.shape import shape_messages
from catenary_tokenizers.template import Engine, Jinja2Engine, MiniJinjaEngine
from catenary_tokenizers.traits import Traits

__all__ = ["open_template"]

Message = dict[str, Any]

_NOW = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Finds <it> & 'that', naïvely.",
        "parameters": {
            "type": "object",
            "properties": {
                "key": {"type": "string", "description": "what", "enum": ["a", "b"]},
                "deep": {"type": "array", "items": {"type": "integer"}, "default": [1, 2.5, None, True]},
            },
            "required": ["key"],
        },
    },
}
_BARE_TOOL: Mapping[str, Any] = {"type": "function", "function": {"name": "look_up"}}
_ID = "000000000"
_KIMI_CALL = "<|tool_call_argument_begin|>"


def open_template(
    source: str, variables: Mapping[str, object], sandbox: Callable[[str], Engine] = Jinja2Engine
) -> ChatTemplate:
    """A template on minijinja where that equals jinja2's sandbox on every probe, else on jinja2.

    Args:
        source: the Jinja text.
        variables: texts of the special tokens.
        sandbox: opens jinja2's sandbox; give one that stands in a process with a deadline, and a hostile template ends
            there.

    Raises:
        ValueError: the source is not Jinja, or takes steps without end for a small conversation.
    """
    try:
        return _opened(source, variables, sandbox(source))
    except TemplateLimitError as error:
        raise ValueError(f"a small conversation is too much for it: {error}") from error


def _opened(source: str, variables: Mapping[str, object], reference: Engine) -> ChatTemplate:
    try:
        bounded: Engine | None = MiniJinjaEngine(source)
    except ValueError:
        bounded = None
    if bounded and not all(_agree(bounded, reference, {**variables, **context}) for context in _contexts()):
        bounded = None
    engine = bounded or reference
    traits = _Prober(source, engine, variables).traits()
    return ChatTemplate(source, engine, variables, traits, needs_process=bounded is None)


def _agree(bounded: Engine, reference: Engine, context: Mapping[str, object]) -> bool:
    return _render(bounded, context) == _render(reference, context)


def _render(engine: Engine, context: Mapping[str, object]) -> str | None:
    """The rendered text; None for a refusal, whose wording may differ between engines."""
    try:
        return engine.render(context, _NOW)
    except PromptError:
        return None


def _user(content: object = "Zebra") -> Message:
    return {"role": "user", "content": content}


def _assistant(content: object = "Yak", **fields: object) -> Message:
    return {"role": "assistant", "content": content, **fields}


def _system(content: object = "Xerus") -> Message:
    return {"role": "system", "content": content}


def _result(content: object = "Wombat") -> Message:
    return {"role": "tool", "content": content, "tool_call_id": _ID, "name": "look_up"}


def _call(arguments: object, id_: str = _ID, **fields: object) -> Message:
    function = {"name": "look_up", "arguments": arguments}
    return _assistant("", tool_calls=[{"id": id_, "type": "function", "function": function}], **fields)


class _Prober:
    def __init__(self, source: str, engine: Engine, variables: Mapping[str, object]) -> None:
        self._source = source
        self._engine = engine
        self._variables = variables

    def traits(self) -> Traits:
        parts = self._parts()
        self._as_list = parts == "list"
        arguments = self._arguments()
        call, other = (_call({"key": v} if arguments == "object" else f'{{"key": "{v}"}}') for v in ("v", "Vervet"))
        both = {**call, "tool_calls": [*call["tool_calls"], *other["tool_calls"]]}
        thought = {"reasoning_content": "Vicuna", "thinking": "Vicuna"}
        tool_results = self._has("Wombat", [_user(), call, _result()], [_TOOL])
        found = Traits(
            reasoning=self._reasoning(call, thought),
            arguments=arguments,
            loose_arguments=arguments == "string" or self._has("Vole", [_user(), _call("Vole"), _result()], [_TOOL]),
            parts=parts,
            system=self._system(),
            systems_merge=not self._has("Viper", [_system(), _system("Viper"), _user()]),
            alternates=not self._has("Viper", [_user(), _user("Viper")]),
            opens_with_user=not self._has("Yak", [_assistant(), _user()]),
            tool_results=tool_results,
            lone_results=not tool_results or self._has("Wombat", [_user(), _result()], [_TOOL]),
            single_calls=self._has("Vervet", [_user(), other, _result()], [_TOOL])
            and not self._has("Vervet", [_user(), both, _result(), _result()], [_TOOL]),
            answers_results=tool_results
            and not self._has("Viper", [_user(), call, _result(), _user("Viper")], [_TOOL]),
            needs_user=not self._has("Xerus", [_system()], [_TOOL]),
            one_text=tool_results
            and not self._has("Wombat", [_user(), {**call, **thought, "content": "Yak"}, _result()], [_TOOL]),
            whole_tools=not self._has("look_up", [_user()], [_BARE_TOOL]) and self._has("look_up", [_user()], [_TOOL]),
            call_names=_KIMI_CALL in self._source,
        )
        return self._answers(found)

    def _text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> str | None:
        context = {"messages": messages, "tools": tools, "add_generation_prompt": messages[-1]["role"] != "assistant"}
        return _render(self._engine, {**self._variables, **context})

    def _has(self, word: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> bool:
        if self._as_list:
            messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
        return word in (self._text(messages, tools) or "")

    def _parts(self) -> str:
        plain = self._text([_user()])
        listed = self._text([_user([{"type": "text", "text": "Zebra"}])])
        if plain is None or "Zebra" not in plain:
            return "list" if listed and "Zebra" in listed else "text"
        return "either" if listed == plain else "text"

    def _arguments(self) -> str:
        text = self._text([_user(), _call({"key": "vole"}), _result()], [_TOOL])
        if text is None or "vole" not in text:
            text = self._text([_user(), _call({"key": "vole"})], [_TOOL])
        return "string" if text is None or "{'key'" in text else "object"

    def _reasoning(self, call: Message, thought: Message) -> str:
        looped = [_user(), {**call, **thought}, _result()]
        if self._has("Vicuna", looped, [_TOOL]) or self._has("Vicuna", [_user(), _assistant(**thought)]):
            return "field"
        return "inline" if CLOSE_THINK in self._source else "none"

    def _answers(self, found: Traits) -> Traits:
        """The first way in which nothing that an answer says is lost, and each thought stands before its own call."""
        first = _call({"key": "Viper"}, "first", reasoning_content="Vicuna")
        second = _call({"key": "Vole"}, "second", reasoning_content="Vaquita")
        results = [{**_result(word), "tool_call_id": id_} for word, id_ in (("Wombat", "first"), ("Walrus", "second"))]
        spoken, again = ({**call, "content": "Yak"} for call in (first, second))
        later, apart = [_user(), first, results[0], again, results[1]], replace(found, later_text=False)
        if (
            self._keeps(found, [_user(), spoken, results[0]], "Yak")
            and not self._keeps(found, later, "Yak")
            and self._keeps(apart, later, "Vaquita", "Yak", "Vole")
        ):
            found = apart
        for way in ("split", "list", "join"):
            found = replace(found, interleaved=way)
            if self._keeps(found, [_user(), first, second, *results], "Vicuna", "Viper", "Vaquita", "Vole", "Walrus"):
                break
        ended = [_user(), first, _assistant("Yak", reasoning_content="Vaquita"), results[0]]
        return replace(found, ends_early=self._keeps(found, ended, "Vicuna", "Viper", "Vaquita", "Yak", "Wombat"))

    def _keeps(self, traits: Traits, messages: Sequence[Message], *words: str) -> bool:
        """Whether these words come out, in this order."""
        text = self._text(shape_messages(messages, traits, Shield([])), [_TOOL]) or ""
        places = [text.find(word) for word in words]
        return -1 not in places and places == sorted(places)

    def _system(self) -> str:
        if not self._has("Xerus", [_system(), _user()]):
            return "never"
        return "anywhere" if self._has("Xerus", [_user(), _assistant(), _system(), _user()]) else "first"


def _contexts() -> Iterator[dict[str, object]]:
    """Conversations on which two engines have to agree."""
    system, user, answer = _system(" Be brief. "), _user(" Hi\n there, naïve <b> 'x' {{ y }} "), _assistant("Hello.\n")
    thought = _assistant("\nYes.", reasoning_content="I think\nso.", thinking="I think\nso.")
    result = _result('{"found": 1}')
    histories = [
        [user],
        [system, user],
        [system, user, answer, user],
        [user, thought, user],
        [user, answer],
        [system, system, user, user],
        [answer, user, system, user],
        [_user([{"type": "text", "text": "Zebra"}])],
    ]
    for arguments in ({"key": "ö", "deep": [1, None], "flag": True, "x": 1.5}, '{"key": "ö", "deep": [1, null]}'):
        call = _call(arguments)
        spoken = {**thought, "tool_calls": [*call["tool_calls"], *call["tool_calls"]]}
        histories += [[system, user, call, result], [user, spoken, result, result, answer, user]]
    for messages in histories:
        for tools in (None, [_TOOL, _TOOL]):
            yield {"messages": messages, "tools": tools, "add_generation_prompt": messages[-1]["role"] != "assistant"}
    for thinking in (False, True):
        yield {"messages": [user], "tools": [_TOOL], "add_generation_prompt": True, "enable_thinking": thinking}
