"""Where what was thought in a turn stands among its calls.

Chat Completions has one text for all of it; the ids of the calls tell where to cut it (`call_ids`).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise, zip_longest

from catenary_protocols.call_ids import thought_before
from catenary_protocols.conversation import CallPart, ReasoningPart, TextPart

Part = ReasoningPart | TextPart | CallPart


def tell_of_thoughts(calls: Iterable[CallPart]) -> bool:
    """Whether the ids of these calls say that something was thought before them."""
    return any(thought_before(call.id) for call in calls)


def in_place(reasoning: str, said: Sequence[TextPart], calls: Sequence[CallPart]) -> tuple[Part, ...]:
    """An answer's parts: each thought before its own call, the text after the last thought."""
    return interleaved(_apart(reasoning, calls), said, calls)


def interleaved(thoughts: Sequence[str], said: Sequence[TextPart], calls: Sequence[CallPart]) -> tuple[Part, ...]:
    """The same for thoughts that were cut before: the nth stands before the nth call."""
    parts: list[Part] = []
    thoughts = thoughts or ("",)
    for n, (thought, call) in enumerate(zip_longest(thoughts, calls), 1):
        parts += [ReasoningPart(text=thought)] if thought else []
        parts += said if n == len(thoughts) else ()
        parts += [call] if call else []
    return tuple(parts)


def _apart(reasoning: str, calls: Sequence[CallPart]) -> list[str]:
    """What was thought before each call, and after the last one, where the ids of the calls tell."""
    edges = [thought_before(call.id) for call in calls]
    known = [edge for edge in edges if edge is not None]
    if len(known) < len(edges) or known != sorted(known) or not known or known[-1] > len(reasoning):
        return [reasoning]
    thoughts = [reasoning[start:end] for start, end in pairwise([0, *known, len(reasoning)])]
    while thoughts and not thoughts[-1]:
        thoughts.pop()
    return thoughts
