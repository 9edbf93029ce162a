"""`python -m catenary_kv_indexer`."""

import sys

from catenary_runtime.service import run

from catenary_kv_indexer.service import KvIndexer
from catenary_kv_indexer.settings import KvIndexerSettings

if __name__ == "__main__":
    sys.exit(run(KvIndexer, KvIndexerSettings))
