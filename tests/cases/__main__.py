"""Runs case files: `python -m tests.cases FILES…`. A line for each id; what is not supported yet counts as failed.

Many run through real processes: one that failed is run once more, and one that passes then is named `UNSTEADY`.
"""

import asyncio
import importlib
import inspect
import json
import sys
import traceback
from collections import Counter
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
    counts: Counter[str] = Counter()
    for case in read(files):
        why = run(case)
        outcome = "ok" if not why else "FAIL" if run(case) else "UNSTEADY"
        print(f"{outcome} {case['id']}" + (f": {why}" if why else ""), flush=True)
        counts[outcome] += 1
    unsteady = f", {counts['UNSTEADY']} of them at the second try" if counts["UNSTEADY"] else ""
    print(f"{counts['ok'] + counts['UNSTEADY']} passed{unsteady}, {counts['FAIL']} failed")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
