"""Streaming parser of model output: reasoning, text and tool calls. Standard library only."""
