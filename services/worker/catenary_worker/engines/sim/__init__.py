"""The simulator: an engine whose GPU is a clock and whose model is a small agent."""
