"""A call that the token limit cut is run by no client that looks at how the answer ended, or at the arguments as text."""

from pathlib import Path

import pytest

from tests.conformance import loops
from tests.conformance.cut_calls import FLAGS, runs_it
from tests.conformance.running import CLIENTS
from tests.mesh.harness import running_mesh

KITS = {kit for kit, _ in loops.LOOPS}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_the_kits_only_one_that_looks_at_neither_runs_it(tmp_path: Path) -> None:
    with running_mesh(tmp_path, *FLAGS) as mesh:
        assert [str(one) for one in CLIENTS if one.name in KITS and runs_it(one, mesh)] == [
            "pydantic-ai messages whole"
        ]
