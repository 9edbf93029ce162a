"""llama.cpp in a process of its own, so that what stops or breaks it stops and breaks nothing else.

A JSON object on standard input says how; the answer on standard output is `{"address": …}` or `{"error": …}`. It runs
until standard input ends, which it does when the worker is gone.
"""

import json
import os
import sys
from typing import Any

import xllamacpp


def main() -> None:
    """See the module."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever llama.cpp prints is a log
    try:
        server = xllamacpp.Server(_params(json.loads(sys.stdin.readline())))
    except Exception as error:  # noqa: BLE001 - the one boundary around foreign code
        print(json.dumps({"error": str(error)}), file=answers, flush=True)
        return
    print(json.dumps({"address": server.listening_address}), file=answers, flush=True)
    sys.stdin.read()
    os._exit(0)  # its own way to stop waits for connections


def _params(given: dict[str, Any]) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = given["file"]
    params.n_parallel = given["slots"]
    params.n_ctx = given["tokens"]
    params.n_batch = params.n_ubatch = given["batch"]
    params.n_gpu_layers = given["gpu_layers"]
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads, cpu.poll = given["threads"], 0  # polling takes the cores of everything else
    # A slot holds what our turns put there: nothing moves it, drops it or fills it by itself.
    params.kv_unified = params.cache_idle_slots = params.ctx_shift = params.fit_params = False
    params.cache_ram_mib = 0
    params.swa_full = True
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [given["key"]]
    params.ui = params.endpoint_slots = params.use_jinja = False
    params.n_threads_http = given["slots"] + 2
    params.sse_ping_interval = -1
    params.verbosity = 1  # errors
    return params


if __name__ == "__main__":
    main()
