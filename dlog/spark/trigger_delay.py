"""How long a micro-batch is held back so that more records come together. Pure.

The delay counts from when the source first saw that something waits, so no record waits longer
than that for its batch to begin, whatever came before. A query that starts again counts anew.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class TriggerDelay:
    """Used by one stream."""

    records_min: int
    delay_s: float
    _waiting_since: float | None = None

    def enough(self, waiting: int) -> bool:
        """Return whether *waiting* records need not wait for others."""
        return waiting >= self.records_min

    def left_s(self, now: float) -> float:
        """Return how long what waits may still be held back."""
        if self._waiting_since is None:
            return self.delay_s
        return max(0.0, self._waiting_since + self.delay_s - now)

    def holds(self, waiting: int, now: float) -> bool:
        """Return whether the batch is held back; else it begins now, and the next one anew."""
        if waiting > 0 and self._waiting_since is None:
            self._waiting_since = now
        if waiting == 0 or self.enough(waiting) or self.left_s(now) == 0.0:
            self._waiting_since = None
            return False
        return True
