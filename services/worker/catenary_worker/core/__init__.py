"""What a worker decides: pure, without bus, loop or clock."""
