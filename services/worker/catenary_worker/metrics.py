"""What a worker counts."""

from prometheus_client import Counter, Gauge, Histogram

KV_BLOCKS = Gauge("catenary_kv_blocks", "KV blocks", ["state"])
KV_REFUSED = Counter("catenary_kv_events_refused_total", "KV events of the engine that nobody could place", ["reason"])
TURNS = Gauge("catenary_worker_turns", "Turns at this worker: running, waiting, kept (ended, not confirmed)", ["state"])
TOKENS = Counter("catenary_worker_tokens_total", "Tokens: prompt, cached (of the prompt), generated", ["kind"])
STEP = Histogram(
    "catenary_worker_step_seconds",
    "Time of an engine step",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)
ENDED = Counter("catenary_worker_ended_total", "Attempts that ended", ["finish"])
CANCELLED = Counter("catenary_worker_cancelled_total", "Attempts that were cancelled, by reason", ["reason"])
REFUSED = Counter("catenary_worker_refused_total", "Attempts that were refused, by error code", ["code"])
