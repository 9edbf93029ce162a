"""The router's decisions: pure, time comes in as an argument (Unix seconds)."""
