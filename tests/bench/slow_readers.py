"""What clients that hardly read cost the others: seconds of a short turn beside 50 of them and beside 50 that read.

The engine talks as fast as it can, so that all of them fill their buffers at once; those that do not read are cut.
"""

import asyncio
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from catenary_tokenizers import embedded_path

from tests.mesh import ops
from tests.mesh.harness import RunningMesh, running_mesh
from tests.mesh.slow_readers import SLOW, beside, cut, reading, sipping

TURNS = 12


def measure() -> dict[str, Any]:
    """Medians and maxima."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = ("--config", str(ops.config(folder, embedded_path())))
        with running_mesh(folder, *flags, environment=ops.ENVIRONMENT) as mesh:
            return {"load": os.getloadavg()[0], **asyncio.run(_phases(mesh))}


async def _phases(mesh: RunningMesh) -> dict[str, Any]:
    async with mesh.client() as client:
        await beside(client)
        alone = [await beside(client) for _ in range(TURNS)]
        async with reading(client):
            readers = [await beside(client) for _ in range(TURNS)]
        await ops.until_idle(mesh)
        before, uncut = await cut(mesh), []
        async with sipping(mesh):
            while await cut(mesh) < before + SLOW:
                uncut.append(await beside(client))
            after = [await beside(client) for _ in range(TURNS)]
    seconds = {"alone": alone, "beside_readers": readers, "beside_slow_readers": uncut, "once_they_are_cut": after}
    return {
        name: {"turns": len(took), "median_s": round(statistics.median(took), 3), "most_s": round(max(took), 3)}
        for name, took in seconds.items()
    }
