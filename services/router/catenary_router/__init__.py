"""Places each turn on the worker where it finishes first."""
