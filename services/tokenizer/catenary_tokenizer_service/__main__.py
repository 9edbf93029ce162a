"""`python -m catenary_tokenizer_service`."""

import sys

from catenary_runtime.service import run

from catenary_tokenizer_service.service import TokenizerService
from catenary_tokenizer_service.settings import TokenizerSettings

if __name__ == "__main__":
    sys.exit(run(TokenizerService, TokenizerSettings))
