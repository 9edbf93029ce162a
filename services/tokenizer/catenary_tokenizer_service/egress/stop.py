"""Stop strings on visible text. The rule: hold back only what may still become a stop string, and nothing more.

The stop string that is complete first wins, the longer of two that end together: so it does not matter how text is cut.
"""


class StopMatcher:
    """Finds the first of some stop strings in a text that comes in pieces.

    Args:
        stops: the strings; empty ones never match.
        include: whether the stop string found is shown.

    Attributes:
        matched: the stop string found, or None.
    """

    __slots__ = ("_held", "_include", "_stops", "matched")

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that may be shown now; after a match, what came before it, then nothing."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = min(((at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0), default=None)
        if found is not None:
            end, start, self.matched = found
            self._held = ""
            return text[: end if self._include else start]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back: it will not become a stop string any more."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`, shorter than `stop` itself."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
