"""How long to wait: before the next try, and so that a rate is kept. Pure.

Pure: how long to wait so that so much per second is done, and no more; the clock an argument.

How long to wait before the next try: delays that double up to a bound; pure.
"""

from typing import Final

_BURST_S: Final = 0.1


class Backoff:
    """Returns *first_s*, twice that, and so on, but never more than *max_s* seconds."""

    __slots__ = ("_first_s", "_max_s", "_next_s")

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s, self._max_s = first_s, max_s
        self._next_s = first_s

    def next(self) -> float:
        """Return the seconds to wait before the next try."""
        delay_s = min(self._next_s, self._max_s)
        self._next_s = 2 * delay_s
        return delay_s

    def reset(self) -> None:
        """Begin again with the first delay: a try has succeeded."""
        self._next_s = self._first_s


class Throttle:
    """A token bucket that goes into debt: what was done is paid for afterwards.

    Amounts are bytes, or calls. Kept as the moment until which all is paid, so that a new rate
    holds for what is done from then on: a debt is worked off in the time that it was made for."""

    def __init__(self, per_s: float, *, now: float) -> None:
        """*per_s*: amount per second; 0 or less is no limit."""
        self._per_s = per_s
        self._at = now
        self._paid_until = now - _BURST_S

    @property
    def per_s(self) -> float:
        return self._per_s

    def set_rate(self, per_s: float) -> None:
        """Let *per_s* hold for all that is taken from now on; without a limit no debt is left."""
        self._per_s = per_s
        if per_s <= 0:
            self._paid_until = self._at - _BURST_S

    def take(self, amount: float, now: float) -> float:
        """Take note of *amount* done; return how many seconds to wait before the next.

        Time that was not used is saved up for a tenth of a second only. A clock that goes back
        makes nothing faster."""
        self._at = now = max(self._at, now)
        if self._per_s <= 0:
            return 0.0
        self._paid_until = max(self._paid_until, now - _BURST_S) + amount / self._per_s
        return self.wait_s(now)

    def wait_s(self, now: float) -> float:
        """Return how many seconds are left to wait, nothing being done."""
        return max(0.0, self._paid_until - max(self._at, now))
