"""Names that travel: turn ids, turn keys, call keys.

A turn id sorts by time, has 26 characters and no dots (it is a subject token). A call key is `<turn>-<choice>-<index>`:
it is ours, stays the same when a turn moves or is submitted again, and so makes a call unique on the bus.
"""

from catenary_protocols.errors import RequestError
from catenary_protocols.wire import Wire

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
_DIGITS = 26
RESUBMIT_STEP = 1_000
"""A resubmitted turn starts its attempts this much higher, so that its attempts never meet the old owner's."""


class TurnKey(Wire, frozen=True):
    """One placement of a turn.

    Attributes:
        turn_id: 26 characters.
        attempt: counts the placements of the turn; the highest one that a receiver has seen is the current one.
    """

    turn_id: str
    attempt: int = 0


def new_turn_id(now_ms: int, entropy: bytes) -> str:
    """A sortable id from a Unix time in milliseconds and 10 random bytes."""
    number = (now_ms << 80) | int.from_bytes(entropy[:10], "big")
    return "".join(_CROCKFORD[(number >> shift) & 31] for shift in range(125, -1, -5))


def began_at(turn_id: str) -> float:
    """The Unix time in a turn id, in seconds; raises `RequestError` for what is none."""
    digits = [_CROCKFORD.find(one) for one in turn_id]
    if len(digits) != _DIGITS or min(digits) < 0:
        raise RequestError(f"{turn_id!r} is no turn id", field="turn")
    return (sum(digit << (5 * place) for place, digit in enumerate(reversed(digits))) >> 80) / 1000


def call_key(turn_id: str, choice: int, index: int) -> str:
    """The key of the call number `index` (from 0) of a choice of a turn."""
    return f"{turn_id}-{choice}-{index}"


def turn_of_call(key: str) -> str:
    """The turn id inside a call key."""
    return key.rsplit("-", 2)[0]
