"""Stop strings on visible text. The rule: hold back only what may still become a stop string, and nothing more."""


class StopMatcher:
    """Finds the earliest of some stop strings in a text that comes in pieces.

    Attributes:
        matched: the stop string found, or None.
    """

    __slots__ = ("_held", "_stops", "matched")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that may be shown now; after a match, what came before it, then nothing."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = min(((at, -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0), default=None)
        if found is not None:
            self.matched = found[2]
            self._held = ""
            return text[: found[0]]
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
