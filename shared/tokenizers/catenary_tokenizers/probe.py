"""What a template is like, found out at load by rendering small conversations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from catenary_tokenizers.errors import PromptError, TemplateLimitError
from catenary_tokenizers.template import ChatTemplate, Engine, Jinja2Engine, MiniJinjaEngine

__all__ = ["open_template"]

Message = dict[str, object]
_NOW = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
_TOOL: Mapping[str, object] = {
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


def open_template(source: str, variables: Mapping[str, object]) -> ChatTemplate:
    """A template on minijinja where that equals jinja2's sandbox on every probe, else on jinja2."""
    reference = Jinja2Engine(source)
    try:
        bounded: Engine = MiniJinjaEngine(source)
    except ValueError:
        return ChatTemplate(source, reference, variables, needs_process=True)
    same = all(
        _outcome(bounded, {**variables, **context}) == _outcome(reference, {**variables, **context})
        for context in _contexts()
    )
    return ChatTemplate(source, bounded if same else reference, variables, needs_process=not same)


def _outcome(engine: Engine, context: Mapping[str, object]) -> str | None:
    """The rendered text; None for any refusal, whose wording may differ between engines."""
    try:
        return engine.render(context, _NOW)
    except (PromptError, TemplateLimitError):
        return None


def _contexts() -> Iterator[dict[str, object]]:
    system: Message = {"role": "system", "content": " Be brief. "}
    user: Message = {"role": "user", "content": " Hi\n there, naïve <b> 'x' {{ y }} "}
    answer: Message = {"role": "assistant", "content": "Hello.\n"}
    thought: Message = {"role": "assistant", "content": "\nYes.", "reasoning_content": "I think\nso."}
    result: Message = {"role": "tool", "content": '{"found": 1}', "tool_call_id": "call12345", "name": "look_up"}
    histories = [[user], [system, user], [system, user, answer, user], [user, thought, user], [user, answer]]
    for arguments in ({"key": "ö", "deep": [1, None], "flag": True, "x": 1.5}, '{"key": "ö", "deep": [1, null]}'):
        call = {"id": "call12345", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
        silent: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        spoken: Message = {**thought, "tool_calls": [call, call]}
        histories += [[system, user, silent, result], [user, spoken, result, result, answer, user]]
    for messages in histories:
        for tools in (None, [_TOOL, _TOOL]):
            yield {"messages": messages, "tools": tools, "add_generation_prompt": messages[-1]["role"] != "assistant"}
    yield {"messages": [user], "tools": None, "add_generation_prompt": True, "enable_thinking": False}
    yield {"messages": [user], "tools": [_TOOL], "add_generation_prompt": False, "enable_thinking": True}
