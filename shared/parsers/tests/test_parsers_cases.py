from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from catenary_parsers import FORMATS
from catenary_parsers.testing import run_case

_CASES = Path(__file__).with_name("cases")
_TOOLS = yaml.safe_load((_CASES / "tools.yaml").read_text())


def _load(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = yaml.safe_load((_CASES / f"{name}.yaml").read_text())
    for case in cases:
        text = case.pop("text")
        case["chunks"] = [text[i : i + 3] for i in range(0, len(text), 3)]
        case["family"] = name
        case.setdefault("tools", _TOOLS)
    return cases


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_case_of_a_format_ends_the_same_in_every_way_of_cutting(name: str) -> None:
    failures = []
    for case in _load(name):
        try:
            run_case(case, by_tokens=True, step=7)
        except AssertionError as deviation:
            failures.append(f"{case['id']}: {deviation}")
    assert not failures, "\n".join(failures)


def test_case_ids_are_unique_and_say_their_format() -> None:
    ids = [(name, case["id"]) for name in FORMATS for case in _load(name)]
    assert len({identity for _, identity in ids}) == len(ids)
    assert all(identity.startswith(f"{name}-") for name, identity in ids)
