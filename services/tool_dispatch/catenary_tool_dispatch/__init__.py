"""Runs registered tool calls off the bus and publishes their results."""
