"""What a chat template wants, as data; found out by `probe.py`, kept by `shape.py` and `order.py`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Traits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a template wants.

    Attributes:
        reasoning: it prints the field `reasoning_content` ("field"), expects it in the text ("inline"), or knows none.
        interleaved: thoughts between the calls of one answer: each begins a message ("split"), they are a list in which
            the nth stands before the nth call ("list"), or one text before all calls ("join").
        ends_early: what an answer says after its last call may stand before the results; else it joins its last call.
        arguments: calls' arguments as JSON text ("string") or parsed ("object").
        loose_arguments: with "object", it also prints text that is no JSON object.
        parts: content as a list of parts ("list"), as text, or either.
        system: system messages stand anywhere, only first, or nowhere.
        systems_merge: several system messages at the start have to be one.
        alternates: two messages of one role in a row have to be one.
        opens_with_user: the first turn has to be the user's.
        tool_results: messages of role `tool` are printed; else they become the user's.
        lone_results: a result may stand without its call; else it becomes the user's.
        single_calls: an assistant's message holds one call at most; results follow each.
        answers_results: the assistant has to answer results before the user speaks again.
        needs_user: somewhere a user has to speak.
        later_text: text beside calls is printed wherever it stands; else beside the first calls only, later apart.
        one_text: a message with calls has reasoning or text, not both.
        whole_tools: every tool needs a description and parameters.
        call_names: calls' ids are `functions.<name>:<n>` (the model writes them itself).
    """

    reasoning: str = "field"
    interleaved: str = "split"
    ends_early: bool = True
    arguments: str = "object"
    loose_arguments: bool = True
    parts: str = "either"
    system: str = "anywhere"
    systems_merge: bool = False
    alternates: bool = False
    opens_with_user: bool = False
    tool_results: bool = True
    lone_results: bool = True
    single_calls: bool = False
    answers_results: bool = False
    needs_user: bool = False
    later_text: bool = True
    one_text: bool = False
    whole_tools: bool = False
    call_names: bool = False
