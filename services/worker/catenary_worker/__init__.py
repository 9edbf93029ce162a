"""Wraps one engine: runs turns, emits token frames, KV events and load beats."""
