"""Whether a client takes what is due to it fast enough. Pure."""

from typing import Final

TAKEN_BYTES: Final = 1024 * 1024
"""So much is to be taken, or all that is due, within `ClientLimits.slow_s_max`. A byte now and then
is not enough: it would hold what is due for ever."""


class Pace:
    """How one client does; asked every now and then."""

    def __init__(self, now: float) -> None:
        self.since = now
        """Since when it is waited for the next bytes,"""
        self._due_bytes = 0
        """and how many are to be taken then, of all that were sent."""

    def waits_s(self, now: float, *, sent_bytes: int, unsent_bytes: int) -> float:
        """Return for how long less than is asked for was taken. *sent_bytes*: since the beginning,
        *unsent_bytes* of them not taken yet."""
        taken_bytes = sent_bytes - unsent_bytes
        if not unsent_bytes or taken_bytes >= self._due_bytes:
            self._due_bytes = taken_bytes + min(unsent_bytes, TAKEN_BYTES)
            self.since = now
        return now - self.since
