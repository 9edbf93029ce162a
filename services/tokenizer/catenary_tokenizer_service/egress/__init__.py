"""From tokens to turn events."""
