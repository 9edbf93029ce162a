"""`make clients`: unmodified agents and SDKs go through a tool loop, each against the same mesh.

`python -m tests.conformance codex openai` drives these alone. A line for each client and API: `ok`, `FAILED` with the
folder of what it wrote, or `NOT RUN` with what is missing.
"""

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.conformance.install import CACHE, NotRunError
from tests.conformance.running import CLIENTS, Client, tool_loop
from tests.mesh.harness import RunningMesh, running_mesh


def main(names: list[str]) -> int:
    unknown = set(names) - {client.name for client in CLIENTS}
    if unknown:
        known = ", ".join(sorted({client.name for client in CLIENTS}))
        print(f"unknown: {', '.join(sorted(unknown))}; there is {known}", file=sys.stderr)
        return 2
    shutil.rmtree(CACHE / "runs", ignore_errors=True)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, running_mesh(Path(folder), "--time-scale", "0") as mesh:
        for client in CLIENTS:
            if not names or client.name in names:
                counts[drive(client, mesh)] += 1
    missing = f", {counts['NOT RUN']} NOT RUN" if counts["NOT RUN"] else ""
    print(f"{counts['ok']} passed, {counts['FAILED']} failed{missing}")
    return 1 if counts["FAILED"] else 0


def drive(client: Client, mesh: RunningMesh) -> str:
    """Print a line; its first word."""
    try:
        outcome = tool_loop(client, mesh)
    except NotRunError as missing:
        print(f"NOT RUN {client}: {missing}", flush=True)
        return "NOT RUN"
    if outcome.why:
        print(f"FAILED  {client}: {outcome.why}; kept in {outcome.folder}", flush=True)
        return "FAILED"
    shutil.rmtree(outcome.folder, ignore_errors=True)
    print(f"ok      {client} ({outcome.turns} turns, {outcome.seconds:.1f} s)", flush=True)
    return "ok"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
