"""Where `catenary chat` shows a turn: reasoning dim, calls in colour, on a terminal that can."""

import sys
from dataclasses import dataclass, field
from typing import Any

from catenary_cli.timeline import Turn

DIM, CALL, PLAIN = "\033[2m", "\033[36m", "\033[0m"


@dataclass(slots=True)
class Screen:
    """Prints what is new in a turn."""

    colour: bool = field(default_factory=lambda: sys.stdout.isatty())  # noqa: PLW0108  # asked now, not at the import
    _style: str = ""

    def show(self, turn: Turn, before: tuple[int, int]) -> None:
        """What came since the turn had `before` characters of reasoning and text."""
        self._put(DIM, turn.reasoning[before[0] :])
        self._put("", turn.text[before[1] :])

    def call(self, call: dict[str, Any], result: str) -> None:
        """A whole call, and what it returned."""
        self.line()
        self._put(CALL, f"{call['function']['name']}({call['function']['arguments']}) = {result}\n")

    def line(self) -> None:
        """Begin a new one."""
        self._put(self._style, "\n")

    def _put(self, style: str, text: str) -> None:
        if not text:
            return
        changed = style != self._style and text != "\n"
        between = "\n\n" if changed and self._style == DIM else ""
        codes = f"{PLAIN}{style}" if self.colour and changed else ""
        sys.stdout.write(f"{codes}{between}{text}{PLAIN if self.colour and text.endswith(chr(10)) else ''}")
        sys.stdout.flush()
        self._style = "" if text.endswith("\n") else style
