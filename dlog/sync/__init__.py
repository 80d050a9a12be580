"""The log for threads: calls that block."""
