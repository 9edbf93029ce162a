"""`make audit`: known vulnerabilities in what is installed to serve, as pip-audit finds them.

Exit codes: 0 none, 1 some, 75 when the source of advisories could not be asked about all of it. pip-audit itself ends
well when it could ask about nothing.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_RUN = 75


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(ROOT / "requirements.txt")]
    options = ["--require-hashes", "--disable-pip", "--no-deps", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        print(f"NOT RUN audit: {(done.stderr.strip().splitlines() or ['pip-audit said nothing'])[-1]}")
        return NOT_RUN
    found = [(one, each) for one in packages for each in one.get("vulns", ())]
    skipped = [one for one in packages if "skip_reason" in one]
    for one, each in found:
        print(
            f"{one['name']} {one['version']}: {each['id']}, mended in {', '.join(each['fix_versions']) or 'nothing yet'}"
        )
    if skipped:
        print(f"NOT RUN audit: {len(skipped)} of {len(packages)} packages; {skipped[0]['skip_reason']}")
    print(f"{len(packages) - len(skipped)} packages asked about, {len(found)} vulnerabilities")
    return 1 if found else NOT_RUN if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
