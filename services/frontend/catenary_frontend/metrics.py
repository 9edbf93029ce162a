from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter(
    "catenary_requests_total", "Turns answered, by outcome (ok or an error code)", ["api", "model", "code"]
)
INFLIGHT = Gauge("catenary_inflight_turns", "Turns that are open at this frontend", ["api"])
FIRST_TOKEN = Histogram(
    "catenary_time_to_first_token_seconds",
    "From the request's last byte to the first token's write",
    ["api", "model"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
)
DURATION = Histogram(
    "catenary_turn_duration_seconds",
    "From the request's last byte to the answer's last write",
    ["api", "model"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
)
ATTACHED = Counter("catenary_attaches_total", "Times that missing events were asked for", ["why"])
RESUBMITTED = Counter("catenary_turns_resubmitted_total", "Turns given to another owner before any event came")
SLOW_READERS = Counter("catenary_slow_readers_total", "Streams cut because their client did not read")
CONNECTIONS_REFUSED = Counter("catenary_connections_refused_total", "Connections closed without a request", ["why"])
