"""`python -m catenary_worker`."""

import sys

from catenary_runtime.service import run

from catenary_worker.service import WorkerService
from catenary_worker.settings import WorkerSettings

if __name__ == "__main__":
    sys.exit(run(WorkerService, WorkerSettings))
