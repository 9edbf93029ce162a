"""`make bench`: measures and prints JSON. `python -m tests.bench mesh` measures one thing alone."""

import importlib
import json
import sys

MODULES = (
    "mesh",
    "calls",
    "router",
    "policies",
    "routing",
    "kv_index",
    "tokenizers",
    "long_prompt",
    "mesh_prompt",
    "parsers",
    "overload",
    "slow_readers",
    "retention",
    "reuse",
    "headers",
    "faults",
)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in MODULES]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there is {', '.join(MODULES)}", file=sys.stderr)
        return 2
    results = {name: importlib.import_module(f"tests.bench.{name}").measure() for name in names or MODULES}
    print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
