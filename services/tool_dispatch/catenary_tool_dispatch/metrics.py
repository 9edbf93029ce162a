"""What tool-dispatch counts. `tool` is a registry name, never a name from the bus: labels stay bounded."""

from prometheus_client import Counter, Gauge, Histogram

_DISPATCH_BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)

SECONDS = Histogram("catenary_toolcall_seconds", "Run time of tool calls", ["tool", "outcome"])
DISPATCH_SECONDS = Histogram(
    "catenary_toolcall_dispatch_seconds", "From a call's publication to the start of its run", buckets=_DISPATCH_BUCKETS
)
RUNNING = Gauge("catenary_toolcalls_running", "Calls that run now", ["tool"])
ABANDONED = Gauge("catenary_tool_threads_abandoned", "Threads that did not come back in time", ["tool"])
VERDICTS = Counter("catenary_toolcall_verdicts_total", "What was done with deliveries", ["tool", "verdict"])
RESULTS = Counter("catenary_toolcall_results_total", "Results published", ["outcome"])
DEAD_LETTERS = Counter("catenary_toolcall_dead_letters_total", "Calls put aside as undeliverable")
