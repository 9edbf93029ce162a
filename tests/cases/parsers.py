"""Parser cases: `parser_*.jsonl` and any other file in that form."""

from __future__ import annotations

from catenary_parsers.testing import run_case as run

__all__ = ["run"]
