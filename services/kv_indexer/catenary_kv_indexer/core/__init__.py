"""The indexer's decisions: pure, time comes in as an argument."""
