import sys

from catenary_runtime.service import run

from catenary_frontend.service import Frontend
from catenary_frontend.settings import FrontendSettings

if __name__ == "__main__":
    sys.exit(run(Frontend, FrontendSettings))
