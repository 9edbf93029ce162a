"""The cases that are told in words name tests that exist; they run with the tests, and by `make cases`."""

import ast
from functools import cache

import pytest

from tests.cases.scenarios import ROOT, TESTS


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("case", TESTS)
def test_a_case_names_tests_that_exist(case: str) -> None:
    for test in TESTS[case]:
        file, _, name = test.partition("::")
        assert name in functions(file), test


def test_every_number_has_its_tests() -> None:
    assert set(TESTS) == {f"ops-{number:03}" for number in range(1, 21)} | {
        f"bus-{number:03}" for number in range(1, 11)
    }
