"""Exact, cached and injection-safe prompts: load, render, encode, detokenise, hash."""
