"""Answers whose calls cannot be read as they were meant are counted and told, their text only where that is allowed."""

import pytest
from catenary_tokenizer_service.core.odd import odd

MARKS = ("<tool_call>", "[TOOL_CALLS]")


@pytest.mark.parametrize(
    ("raw", "called", "malformed", "what"),
    [
        ("Just text.", False, False, ""),
        ("<tool_call>{}</tool_call>", True, False, ""),
        ("<tool_call>{", False, False, "no_call"),
        ("of another format: [TOOL_CALLS]", False, False, "no_call"),
        ("<tool_call>{}</tool_call><tool_call>?</tool_call>", True, True, "markup_shown"),
        ("</tool_call>", False, True, "markup_shown"),
    ],
)
def test_what_is_odd(raw: str, called: bool, malformed: bool, what: str) -> None:
    assert odd(raw, MARKS, called=called, malformed=malformed) == what
