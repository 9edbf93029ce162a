"""Numbered frames: a link is one sender's frames to one receiver, numbered from 1 in each incarnation of the sender.

A number that is skipped shows a loss at the next frame; the tail that a beat tells shows the loss of the last ones. A
tail that is ahead must be seen in two beats running, since a beat may overtake a frame that is still in a callback's
queue.
"""

from catenary_protocols.bus.messages import LinkTail


class LinkSender:
    """Numbers outgoing frames by receiver."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def next(self, to: str) -> int:
        """The number of the next frame to this receiver."""
        number = self._last[to] = self._last.get(to, 0) + 1
        return number

    def tails(self) -> tuple[LinkTail, ...]:
        """What a beat says of all links."""
        return tuple(LinkTail(to=to, number=number) for to, number in self._last.items())

    def forget(self, to: str) -> None:
        """The receiver is gone."""
        self._last.pop(to, None)

    def restart(self) -> None:
        """A new incarnation numbers anew."""
        self._last.clear()


class LinkReceiver:
    """Watches the numbers of incoming frames by sender."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        self._behind: dict[str, int] = {}

    def arrived(self, sender: str, incarnation: int, number: int) -> bool:
        """Note a frame; True when frames before it are missing. Frames of an older incarnation change nothing."""
        known, last = self._seen.get(sender, (0, 0))
        if incarnation < known:
            return False
        if incarnation > known:
            last = 0
        self._seen[sender] = (incarnation, max(last, number))
        return number > last + 1

    def tail_lost(self, sender: str, incarnation: int, tail: int) -> bool:
        """Note a beat's tail; True when it was ahead of what arrived already at the beat before."""
        known, last = self._seen.get(sender, (0, 0))
        if incarnation != known:
            last = 0
        if tail <= last:
            self._behind.pop(sender, None)
            return False
        lost = 0 < self._behind.get(sender, 0) <= tail and self._behind[sender] > last
        self._behind[sender] = tail
        if lost:
            self._seen[sender] = (incarnation, tail)
            self._behind.pop(sender, None)
        return lost

    def forget(self, sender: str) -> None:
        """The sender is gone."""
        self._seen.pop(sender, None)
        self._behind.pop(sender, None)
