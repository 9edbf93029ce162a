"""What this package raises.

TokenizerError
├── ModelDirectoryError    a model directory lacks a file or holds one that cannot be used
├── PromptError            this conversation cannot be rendered by this model's template (the caller's to mend)
└── TemplateLimitError     the template ran past its bound of steps or of output size
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["ModelDirectoryError", "PromptError", "TemplateLimitError", "TokenizerError"]


class TokenizerError(Exception):
    """The root of this package's errors."""


class ModelDirectoryError(TokenizerError):
    """A model directory cannot be loaded.

    Attributes:
        path: the file or directory at fault.
        reason: what is wrong with it.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class PromptError(TokenizerError):
    """The template refuses the conversation, in its own words or in the engine's."""


class TemplateLimitError(TokenizerError):
    """The template would take too many steps or write too much."""
