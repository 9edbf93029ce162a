"""A custom tool's text out of the arguments of the function that the model knows, as they are made.

Rule: what was given out never changes, and together it is the text. Only an escape that is not whole yet is held back.
Arguments that do not begin with the one string `input` are read when they are complete.
"""

import json
import re

from catenary_protocols.apis.responses.tools import unwrapped

_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_MAY_BE_HEAD = re.compile(r'\s*(\{\s*("(i(n(p(ut?)?)?)?)?|"input"\s*(:\s*)?)?)?')
_WHOLE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*'
)
_HALF = re.compile(r"\\(u([0-9a-fA-F]{0,3}|[dD][89abAB][0-9a-fA-F]{2}(\\(u[0-9a-fA-F]{0,3})?)?)?)?")
_LONE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class Freeform:
    """The text of one call."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._rest = ""
        self._phase = "head"
        self._text: list[str] = []

    @property
    def text(self) -> str:
        """What was given out."""
        return "".join(self._text)

    def feed(self, arguments: str) -> str:
        """More of the arguments; the text that they bring."""
        self._arguments.append(arguments)
        self._rest += arguments
        if self._phase == "head":
            self._begin()
        return self._told(self._more()) if self._phase == "text" else ""

    def close(self) -> str:
        """The arguments are complete; the text that was not given out yet."""
        return self._told(unwrapped("".join(self._arguments))) if self._phase in {"head", "other"} else ""

    def _begin(self) -> None:
        if found := _HEAD.match(self._rest):
            self._rest = self._rest[found.end() :]
            self._phase = "text"
        elif not _MAY_BE_HEAD.fullmatch(self._rest):
            self._phase = "other"

    def _more(self) -> str:
        text = ""
        while True:
            found = _WHOLE.match(self._rest)
            whole = found[0] if found else ""
            text += str(json.loads(f'"{whole}"', strict=False))
            self._rest = self._rest[len(whole) :]
            if not self._rest or _HALF.fullmatch(self._rest):
                return text
            if not (lone := _LONE.match(self._rest)):
                self._phase = "done"  # its closing quote
                return text
            text += "\ufffd"
            self._rest = self._rest[lone.end() :]

    def _told(self, text: str) -> str:
        if text:
            self._text.append(text)
        return text
