"""A prompt at some lengths: enough to tell how far two begin alike, few enough to keep.

The rule: each length is a sixteenth more than the one before, so a prompt of any length has some hundred; since a
sequence hash covers all that comes before it, two prompts that agree at one length agree at all shorter ones.
"""

from collections.abc import Iterator, Sequence

Mark = tuple[int, int]
"""So many leading blocks, and the sequence hash of the last of them."""


def marks_of(hashes: Sequence[int]) -> list[Mark]:
    """Shortest first."""
    return [(end, hashes[end - 1]) for end in _lengths(len(hashes))]


def _lengths(blocks: int) -> Iterator[int]:
    end = 1
    while end <= blocks:
        yield end
        end += max(1, end // 16)
