"""Wall-clock time, for stamps only: no protocol decision depends on it (rule 89)."""

import time


def now_ms() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
