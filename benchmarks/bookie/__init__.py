"""How fast one bookie is, and what it costs: `python -m benchmarks.bookie`."""
