"""What `/metrics` tells of the router."""

from prometheus_client import Counter, Gauge, Histogram

DECISIONS = Counter("catenary_route_decisions_total", "Turns placed", ["policy", "reason"])
REFUSALS = Counter("catenary_route_refusals_total", "Turns refused", ["code"])
PREDICTED_HIT = Histogram(
    "catenary_route_predicted_hit_ratio",
    "Share of a placed prompt's tokens expected in the worker's cache",
    buckets=[i / 10 for i in range(11)],
)
WAITED = Histogram(
    "catenary_route_wait_seconds",
    "From a turn's coming to the router to its placement",
    buckets=[0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1, 2.5, 5, 10, 30, 60, 120],
)
QUEUE_DEPTH = Gauge("catenary_route_queue_depth", "Turns that wait for room")
OVERLAP_QUERIES = Counter("catenary_route_overlap_queries_total", "Questions to the kv-indexer", ["result"])
