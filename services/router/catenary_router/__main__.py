"""`python -m catenary_router`."""

import sys

from catenary_runtime.service import run

from catenary_router.service import Router
from catenary_router.settings import RouterSettings

if __name__ == "__main__":
    sys.exit(run(Router, RouterSettings))
