"""Decisions: pure, no bus, no clock."""
