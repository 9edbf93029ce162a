"""Text that a client carries for us: it sends back what it was given, and cannot read, change or make up any."""

from typing import Protocol


class Sealed(Protocol):
    """Seals what a model thought, so that a client without memory of ours returns it whole with the next turn."""

    def seal(self, text: str) -> str:
        """The text as an opaque token of URL-safe ASCII characters."""

    def open(self, token: str) -> str | None:
        """The text in a token that was sealed here; None for any other string."""
