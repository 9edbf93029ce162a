"""What a user's words hold that a tool can use: quoted values, sums, numbers, names, and the words themselves."""

import re
from collections.abc import Iterator

_QUOTED = re.compile(r"```.*?```|`([^`\n]+)`|\"([^\"\n]+)\"|“([^”\n]+)”|(?<!\w)'([^'\n]+)'(?!\w)", re.DOTALL)
_SUM = re.compile(r"(?<![\w.])[-(]{0,4}\d[\d.]*(?: ?\)* ?[-+*/%^]{1,2} ?[-(]{0,4}\d[\d.]*)+\)*")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")
_NAME = re.compile(r"(?<![.!?]\s)(?<!^)\b[A-Z][\w'-]*(?:\s+[A-Z][\w'-]*)*")
_WORD = re.compile(r"[^\W\d_]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_COMMON_TEXT = """
a about after all also an and any are as at be but by can could do does for from get give has have how i if in into is
it its just like make me my need now of on one or our out please should show so some such tell than that the their them
then there these they this to up us use using want was we what when where which who will with would you your
"""
_COMMON = frozenset(_COMMON_TEXT.split())


def quoted(text: str) -> list[str]:
    """Values in backticks or quotes, in order; of one in another the innermost, as clients quote what users wrote."""
    values: list[str] = []
    for match in _QUOTED.finditer(text):
        for value in filter(None, match.groups()):
            values += quoted(value) or [value]
    return values


def numbers(text: str) -> list[float]:
    """Numbers, in order."""
    return [float(match[0]) for match in _NUMBER.finditer(text)]


def sums(text: str) -> list[str]:
    """Arithmetic, as it is written."""
    return [match[0].strip() for match in _SUM.finditer(text)]


def names(text: str) -> list[str]:
    """Capitalised words that do not begin a sentence."""
    return [match[0] for match in _NAME.finditer(text)]


def stems(text: str) -> Iterator[str]:
    """The words that carry meaning, lower case, without plural s; identifiers are taken apart."""
    for word in _WORD.findall(_CAMEL.sub(" ", text)):
        lower = word.lower()
        if lower not in _COMMON and len(lower) > 1:
            yield lower[:-1] if lower.endswith("s") and len(lower) > 3 and not lower.endswith("ss") else lower


def gist(text: str, most: int = 8) -> str:
    """The last line's words, `most` at most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-1].split()[:most]).rstrip(".,;:?!") if lines else ""
