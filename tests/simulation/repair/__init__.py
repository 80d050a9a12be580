"""The simulator of repair: auditors, workers and decommissions beside writers and recoverers."""
