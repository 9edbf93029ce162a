"""What llama.cpp's slots hold, and which one a turn gets.

Rule: a slot is said to hold a token only when llama.cpp has computed it. A slot keeps what its last turn left there,
and goes on from the longest prefix a new turn shares with it; nothing is shared between slots. So the adapter chooses
the slot, knows its content token by token, and tells it as blocks: one that two slots hold is stored once, and removed
when the last of them loses it.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from catenary_tokenizers import block_hashes

from catenary_worker.engines.base import KvEvent, Removed, Retention, Stored


class Slot:
    """One of llama.cpp's sequences.

    Attributes:
        number: llama.cpp's name for it.
        busy: a turn runs in it.
        tokens: what its KV cache holds.
        salt: under which these were computed.
        kept: priority and end (monotonic seconds) of its retention.
        session: whose turn used it last.
        told: retention that was told of it while its turn was ending.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.busy = False
        self.tokens = array("I")
        self.salt = ""
        self.names: list[int] = []
        self.used_at = 0.0
        self.kept = (0, 0.0)
        self.session = ""
        self.told: Retention | None = None

    def shared(self, ids: "array[int]", salt: str) -> int:
        """Leading tokens that these ids have in common with what it holds."""
        return common(self.tokens, ids) if salt == self.salt else 0

    def worth(self, now: float) -> tuple[bool, int, float]:
        """What would be lost with it: emptiness first, then retention, then age."""
        priority, until = self.kept
        return bool(self.tokens), priority if now < until else min(0, priority), self.used_at

    def keep(self, retention: Retention, now: float) -> None:
        """It is kept so long from now on."""
        self.kept = (retention.priority, now + retention.seconds)


class Slots:
    """See the module. Times are monotonic seconds."""

    def __init__(self, count: int, block_size: int) -> None:
        self.all = tuple(map(Slot, range(count)))
        self._block_size = block_size
        self._holders: Counter[int] = Counter()
        self._events: list[KvEvent] = []

    def free(self) -> bool:
        """Whether a turn could begin."""
        return not all(slot.busy for slot in self.all)

    def take(self, ids: "array[int]", salt: str, now: float) -> tuple[Slot, int]:
        """A slot for a turn, and how many of its leading tokens are there.

        The one that shares most, if most of what it holds is shared; else the one that is worth least.
        """
        idle = [slot for slot in self.all if not slot.busy]
        shared = {slot: slot.shared(ids, salt) for slot in idle}
        going_on = [slot for slot in idle if 2 * shared[slot] > len(slot.tokens)]
        slot = max(going_on, key=shared.__getitem__) if going_on else min(idle, key=lambda one: one.worth(now))
        slot.busy, slot.told = True, None
        self.cut(slot, shared[slot])
        slot.salt = salt
        return slot, shared[slot]

    def retain(self, session: str, retention: Retention, now: float) -> None:
        """What the session left is kept so long from now on, or from when its slot is free."""
        for slot in self.all:
            if slot.session == session:
                slot.told = retention if slot.busy else None
                slot.keep(retention, now)

    def release(self, slot: Slot, now: float, retention: Retention) -> None:
        """The slot's turn has ended; what it left stays."""
        slot.busy = False
        slot.used_at = now
        slot.keep(slot.told or retention, now)

    def cut(self, slot: Slot, length: int) -> None:
        """The slot holds no more than that many tokens."""
        del slot.tokens[length:]
        whole = length // self._block_size
        lost = slot.names[whole:]
        if lost:
            del slot.names[whole:]
            self._holders.subtract(lost)
            gone = tuple(name for name in reversed(lost) if not self._holders[name])
            for name in gone:
                del self._holders[name]
            if gone:
                self._events.append(Removed(gone))

    def add(self, slot: Slot, ids: Sequence[int]) -> None:
        """The slot holds these tokens too."""
        slot.tokens.extend(ids)
        size, known = self._block_size, len(slot.names)
        if len(slot.tokens) < (known + 1) * size:
            return
        parent = slot.names[-1] if slot.names else None
        fresh = slot.tokens[known * size : len(slot.tokens) // size * size]
        packed = block_hashes(fresh.tobytes(), size, salt=slot.salt, parent=parent)
        names = array("Q", packed)
        slot.names += names
        self._holders.update(names)
        held = sum(1 for _ in takewhile(lambda name: self._holders[name] > 1, names))
        if held < len(names):
            before = names[held - 1] if held else parent
            self._events.append(Stored(before, tuple(names[held:]), fresh[held * size :], slot.salt))

    def drain(self) -> list[KvEvent]:
        """What changed since the last call."""
        events, self._events = self._events, []
        return events

    def used_blocks(self) -> int:
        """Blocks that running turns hold."""
        return sum(-(-len(slot.tokens) // self._block_size) for slot in self.all if slot.busy)


def common(one: "array[int]", other: "array[int]") -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
