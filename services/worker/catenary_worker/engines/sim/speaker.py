"""What the simulated model says when nobody tells it: a small agent.

| the prompt | it says |
| --- | --- |
| offers tools, the user spoke last | reasoning, one call of the tool the words fit, then 40-80 tokens of text |
| ends with tool results | reasoning, and an answer that contains them |
| anything else | reasoning and a short answer |

It reads the prompt alone, plus what constrains a real engine's decoding: a JSON schema, a tool choice, one call only.
It knows no client, tool or test by name. All it says is a function of the prompt and the seed.
"""

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from catenary_parsers.render import Call
from catenary_tokenizers import ControlToken

from catenary_worker.engines.base import EngineTurn
from catenary_worker.engines.sim.codec import Codec, content
from catenary_worker.engines.sim.constraints import Constraint, read_constraint
from catenary_worker.engines.sim.instance import arguments_for, value_for
from catenary_worker.engines.sim.offers import Offer
from catenary_worker.engines.sim.phrases import Dice
from catenary_worker.engines.sim.prompt import PromptView, read_prompt
from catenary_worker.engines.sim.words import gist, stems
from catenary_worker.engines.sim.writing import Render

_AFTER_CALL = 44
"""Tokens of text after a call, at least; a sentence has fewer than 36, so there are never more than 80."""
_LONGEST_RESULT = 2000
_PROBE = "\ufdd1"


@dataclass(frozen=True, slots=True)
class _Reasoning:
    """How this format thinks: what opens and closes it. Both empty: it does not."""

    opens: str
    closes: str

    def in_prompt(self, tail: str) -> tuple[bool, bool]:
        """Whether the prompt already (opened, closed) thinking."""
        opens, closes, end = self.opens.strip(), self.closes.strip(), tail.rstrip()
        if not opens:
            return False, False
        return end.endswith(opens), bool(closes) and end.endswith(closes) and opens in end


class Speaker:
    """Speaks in one model's format."""

    def __init__(self, codec: Codec, render: Render) -> None:
        self._codec = codec
        self._render = render
        self._sentences: dict[str, list[tuple[int, ...]]] = {}
        before, _, after = render(_PROBE, "", ()).partition(_PROBE)
        self._reasoning = _Reasoning(before, after) if before else _Reasoning("", "")

    def speak(
        self, turn: EngineTurn, parts: Sequence[str | ControlToken], dice: Dice, end: int | None
    ) -> Iterator[tuple[int, ...]]:
        """All steps (of one id) of the turn from its first on; endless where the end of sequence is ignored."""
        said = _steps(self._codec.write(self._say(turn, read_prompt(parts), dice)))
        yield from said
        count, position = len(said), 0
        while turn.ignore_eos or count < turn.min_tokens:
            more = self._sentence(dice.sentence("more", position))
            position += 1
            least = len(more) if turn.ignore_eos else turn.min_tokens - count
            yield from more[:least]
            count += len(more)
        if end is not None:
            yield (end,)

    def _sentence(self, text: str) -> list[tuple[int, ...]]:
        """Steps of one of the few sentences that follow others; made once."""
        steps = self._sentences.get(text)
        if steps is None:
            steps = self._sentences[text] = _steps(self._codec.write(f" {text}"))
        return steps

    def _say(self, turn: EngineTurn, view: PromptView, dice: Dice) -> str:
        constraint = read_constraint(turn.options)
        if constraint.schema is not None:
            return self._written("", json.dumps(value_for(constraint.schema, view.user), ensure_ascii=False), view)
        offer = _chosen(view, constraint)
        if offer is not None:
            return self._call(offer, view, dice, more=not constraint.one_call)
        if view.results:
            result = content("\n".join(view.results)[:_LONGEST_RESULT])
            text = f"Here is what came back: {result}\n{dice.sentence('answer', 0)}"
            return self._written(f"The result is there. {dice.sentence('think', 0)}", text, view)
        about = gist(view.user)
        text = " ".join(dice.sentence("answer", number) for number in range(2))
        if about:
            text = f"About {content(about)}: {text}"
        return self._written(f"No tool is needed for this. {dice.sentence('think', 0)}", text, view)

    def _call(self, offer: Offer, view: PromptView, dice: Dice, *, more: bool) -> str:
        words = "" if self._codec.spells_control(view.user) else view.user
        call = Call(offer.name, arguments_for(offer.parameters, words))
        reasoning = f"The words fit the tool {offer.name}. {dice.sentence('think', 0)}"
        said = self._written(reasoning, "", view, (call,))
        return f"{said}\n{self._render('', self._while_it_runs(dice), ())}" if more else said

    def _while_it_runs(self, dice: Dice) -> str:
        sentences: list[str] = []
        count = 0
        while count < _AFTER_CALL:
            sentences.append(dice.sentence("meanwhile", len(sentences)))
            count += len(self._sentence(sentences[-1]))
        return " ".join(sentences)

    def _written(self, reasoning: str, text: str, view: PromptView, calls: Sequence[Call] = ()) -> str:
        opened, closed = self._reasoning.in_prompt(view.tail)
        if closed or not self._reasoning.opens:
            return self._render("", text, calls)
        if not reasoning:
            return (self._reasoning.closes if opened else "") + self._render("", text, calls)
        written = self._render(reasoning, text, calls)
        return written.removeprefix(self._reasoning.opens) if opened else written


def _steps(ids: "array[int]") -> list[tuple[int, ...]]:
    return [(token,) for token in ids]


def _chosen(view: PromptView, constraint: Constraint) -> Offer | None:
    """The tool whose words fit the user's best, of those that may be called; None for no call."""
    offers = [offer for offer in view.tools if constraint.allows(offer.name)]
    if not offers or not constraint.may_call or (view.results and not constraint.must_call):
        return None
    said = set(stems(view.user))
    return max(offers, key=lambda offer: _fit(offer, said))


def _fit(offer: Offer, said: set[str]) -> float:
    properties = offer.parameters.get("properties")
    parameters = " ".join(properties) if isinstance(properties, dict) else ""
    score = 0.0
    for text, weight in ((offer.name, 3.0), (offer.description, 1.0), (parameters, 1.0)):
        score += weight * len(said & set(stems(text.replace("_", " "))))
    return score
