"""Metrics that every service has. Names: `catenary_*`, base units, `_total` on counters only, no ids in labels."""

from prometheus_client import Counter, Gauge, Info

BUS_UNDECODABLE = Counter("catenary_bus_undecodable_total", "Messages that could not be decoded", ["channel"])
BUS_DROPPED = Counter("catenary_bus_dropped_total", "Messages dropped while cut off, because too many were held")
BUS_LOST = Counter("catenary_bus_lost_total", "Messages that came faster than they were read", ["channel"])
LINK_GAPS = Counter("catenary_link_gaps_total", "Frames found missing and asked for again", ["link"])
INCARNATIONS = Counter("catenary_incarnations_total", "Incarnations this instance has taken")
PEERS = Gauge("catenary_peers", "Live peers", ["service"])
TASKS = Gauge("catenary_tasks", "Tasks that have not ended")
BUILD = Info("catenary_build", "Version of this service")
