"""How fast work goes, and when it will be done, from what was done lately. Pure.

Over a window, not over all of the time: a throttle that is changed, or a bookie that stops, shows
within it."""

from collections import deque
from typing import Final

WINDOW_S: Final = 60.0
STEP_S: Final = 1.0
"""Samples are that far apart, so that a window has a bounded number."""


class Estimate:
    """Fed with amounts that only grow; or that only shrink, then the rate is what goes away."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        assert window_s > 0
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque()
        self._latest: tuple[float, float] | None = None

    def note(self, amount: float, now: float) -> None:
        """Take note that it is *amount* at *now*, in seconds of a clock that does not go back."""
        self._latest = (now, amount)
        if not self._samples or now >= self._samples[-1][0] + STEP_S:
            self._samples.append((now, amount))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window_s:
            self._samples.popleft()

    @property
    def per_s(self) -> float:
        """Amount per second over the window, never negative; 0 if nothing is known."""
        if self._latest is None:
            return 0.0
        (began, first), (now, last) = self._samples[0], self._latest
        return abs(last - first) / (now - began) if now > began else 0.0

    def left_s(self, left: float) -> float | None:
        """Return after how many seconds *left* will be done too; None if that cannot be said."""
        if left <= 0:
            return 0.0
        return left / self.per_s if self.per_s > 0 else None
