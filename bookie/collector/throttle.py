"""Pure: how long to wait so that so many bytes per second are moved, and no more."""

from typing import Final

_BURST_S: Final = 0.1


class Throttle:
    """A token bucket that goes into debt: what was done is paid for afterwards."""

    def __init__(self, bytes_per_s: float, *, now: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._burst_bytes = bytes_per_s * _BURST_S
        self._tokens = self._burst_bytes
        self._at = now

    def take(self, size_bytes: int, now: float) -> float:
        """Take note of *size_bytes* done; return how many seconds to wait before the next."""
        if self._bytes_per_s <= 0:
            return 0.0
        earned = max(0.0, now - self._at) * self._bytes_per_s
        self._at = max(self._at, now)
        self._tokens = min(self._burst_bytes, self._tokens + earned) - size_bytes
        return max(0.0, -self._tokens / self._bytes_per_s)
