"""What the tokenizer takes beyond the common settings."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from catenary_runtime.config import Settings, option

RUN_CONTEXT = r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"
"""How a client begins what it tells of the run: a user message that is always the last, also after a tool's result."""


def _check_patterns(patterns: Iterable[str]) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSettings(Settings):
    """Owner of turns."""

    max_turns: int = option(4096, "Live turns; more are refused with a 503.")
    max_moves: int = option(5, "How often a turn may be placed again before it fails.")
    no_model_s: float = option(30.0, "Seconds a request waits for its model to be loaded.")
    no_router_s: float = option(10.0, "Seconds a turn waits for a live router.")
    tool_deadline_s: float = option(120.0, "Seconds a published call has to be answered.")
    resumable_s: float = option(30.0, "Seconds a resumable turn's log is kept after its end.")
    turn_memory_mb: int = option(64, "Bound of generated ids kept for each model, to go into later prompts; 0: off.")
    turn_memory_off: tuple[str, ...] = option((), "Models, by name, whose generated ids are not kept.")
    thoughts_mb: int = option(
        32, "Bound of thoughts kept for each model, to go back into prompts whose clients leave them out; 0: off."
    )
    thoughts_off: tuple[str, ...] = option((), "Models, by name, whose thoughts are not kept and not put back.")
    unshielded: tuple[str, ...] = option(
        (), "Models, by name, in whose prompts a control token that a caller spells is one, as with Hugging Face."
    )
    volatile: tuple[str, ...] = option(
        (),
        "Regular expressions of what changes in system texts without meaning, and is taken out of them.",
        check=_check_patterns,
    )
    moved_along: tuple[str, ...] = option(
        (RUN_CONTEXT,),
        "Regular expressions of what a user message begins with that a client moves behind all others each turn: it "
        "is rendered behind the user message before it. Empty: none is.",
        check=_check_patterns,
    )
    prompt_watch_mb: int = option(64, "Bound of last prompts kept to tell where a session's next one leaves them.")
    log_content: bool = option(False, "Write what a model said into the log when it could not be read as it was meant.")
    log_mb: int = option(256, "Bound of all event logs of ended turns together.")
