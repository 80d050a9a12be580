"""How fast logs are, and what they cost: `python -m benchmarks.logs`."""
