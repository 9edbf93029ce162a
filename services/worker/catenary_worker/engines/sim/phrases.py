"""Plain sentences, and a choice among them that depends on nothing but a key and a position."""

from array import array
from hashlib import blake2b

from catenary_tokenizers import pack

SENTENCES = (
    "The next step follows from what is already known.",
    "Each part was looked at once, in the order in which it came.",
    "Nothing here depends on guesses that cannot be checked.",
    "The numbers agree with the text above.",
    "A short look at the details is enough to go on.",
    "What remains open can be settled in a later step.",
    "The same rule holds for the other parts as well.",
    "It helps to name the goal before the means.",
    "Small steps make it easy to see where something changes.",
    "The outcome will be compared with what was asked for.",
    "If a value is missing, the default is used and named.",
    "The order of the items does not matter here.",
    "Two of the points belong together and are handled as one.",
    "There is no need to repeat work that is done.",
    "Once the answer is there, it can be put into plain words.",
    "The first case is the common one, the others are rare.",
    "A second source would make this more certain.",
    "The limits given above are kept.",
    "This takes a moment, and then the rest is quick.",
    "The plan stays the same unless the result says otherwise.",
)


class Dice:
    """Choices that are a function of the prompt and the seed.

    Args:
        prompt: ids of the original prompt.
        seed: the request's; None is 0.
    """

    def __init__(self, prompt: "array[int]", seed: int | None) -> None:
        self._key = blake2b(pack(prompt), digest_size=16, salt=_salt(seed)).digest()

    def choose(self, what: str, position: int, among: int) -> int:
        """A number below `among`, the same whenever it is asked for."""
        digest = blake2b(f"{what}:{position}".encode(), digest_size=8, key=self._key).digest()
        return int.from_bytes(digest, "little") % among

    def sentence(self, what: str, position: int) -> str:
        """One of `SENTENCES`."""
        return SENTENCES[self.choose(what, position, len(SENTENCES))]


def _salt(seed: int | None) -> bytes:
    return ((seed or 0) & (2**64 - 1)).to_bytes(8, "little")
