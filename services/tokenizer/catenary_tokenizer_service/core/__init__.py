"""Decisions of the tokenizer: pure, no bus, no clock."""
