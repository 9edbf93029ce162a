"""A mesh on a virtual clock: the cores of router and kv-indexer over simulated engines, without a bus."""
