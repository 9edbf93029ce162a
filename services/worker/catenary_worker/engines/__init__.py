"""Engines: `base` is what the worker sees, `contract` what each must keep, `paged` and `sim` the simulator."""
