"""Runs case files: `python -m tests.cases FILES…`. A line for each id; what is not supported yet counts as failed."""

import asyncio
import importlib
import inspect
import json
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODULES = {
    "detok": "tokenizers",
    "tokcache": "tokenizers",
    "kv_index": "kv_index",
    "routing": "routing",
    "bus": "scenarios",
    "ops": "scenarios",
    "replay": "replay",
}


def module_of(case: dict[str, Any]) -> str:
    """The module of `tests.cases` that runs a case, by its kind, its API or its chunks."""
    if "kind" in case:
        return MODULES.get(case["kind"], str(case["kind"]))
    return "apis" if "api" in case else "parsers"


def read(files: list[str]) -> Iterator[dict[str, Any]]:
    for name in files:
        for line in Path(name).read_text(encoding="utf-8").splitlines():
            if line.strip():
                yield json.loads(line)


def run(case: dict[str, Any]) -> str:
    """Why it failed, "" when it passed."""
    name = f"tests.cases.{module_of(case)}"
    try:
        outcome = importlib.import_module(name).run(case)
        if inspect.isawaitable(outcome):
            asyncio.run(_wait(outcome))
    except ModuleNotFoundError as error:
        return f"{error.name} is not supported yet" if error.name == name else f"{error}"
    except AssertionError as error:
        return " ".join(str(error).split()) or traceback.format_exc(limit=-1).splitlines()[-2].strip()
    except Exception as error:  # noqa: BLE001  # the boundary around what is tested: any error of it is a failed case
        return f"{type(error).__name__}: {error} ({traceback.format_exc(limit=-1).splitlines()[1].strip()})"
    return ""


async def _wait(outcome: Any) -> None:
    await outcome


def main(files: list[str]) -> int:
    passed = failed = 0
    for case in read(files):
        why = run(case)
        print(f"FAIL {case['id']}: {why}" if why else f"ok {case['id']}", flush=True)
        passed, failed = passed + (not why), failed + bool(why)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
