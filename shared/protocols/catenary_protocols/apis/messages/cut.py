"""What is whole of JSON text that was cut: a member or an element that is half is left out, what is open is closed.

It is what Anthropic's own clients make of the pieces of a call that never became complete. A number at the very end
counts as whole, as it does for them.
"""

import re

_PIECE = re.compile(
    r"""\s*( [{}\[\],:]
           | "(?:[^"\\]|\\.)*"
           | -?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?(?![-+.0-9eE])
           | true | false | null )""",
    re.VERBOSE,
)


def whole_part(text: str) -> str:
    """JSON text of an object out of the beginning of one."""
    end, missing, closers = 0, "{}", ""
    is_value, at = True, 0
    while found := _PIECE.match(text, at):
        piece, at = found[1], found.end()
        if piece in {",", ":"}:
            is_value = piece == ":" or closers.startswith("]")
            continue
        if piece in {"{", "["}:
            closers = ("}" if piece == "{" else "]") + closers
            is_value = piece == "["
        elif piece in {"}", "]"}:
            closers = closers[1:]
        elif not is_value:
            continue  # a key is nothing without its value
        end, missing = at, closers
    return text[:end] + missing
