"""A session as its owner sees it: proven alive by answers, lost by its own clock.

A store that has heard nothing for a whole session timeout ends the session. The owner steps
down before that: it calls the session lost two thirds of the timeout after it *sent* the
last request that was answered. The timer runs on the event loop, so also when the
store's threads hang; a process that was stopped finds it overdue when it wakes.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from ledger.metastore.port import Session

_TRUSTED_SHARE: Final = 2 / 3


def trusted_s(session_timeout_s: float) -> float:
    """Return how long after its last proof a session is believed in."""
    return session_timeout_s * _TRUSTED_SHARE


class Lease:
    """One session. *on_lost* is called once, when it ends in any way."""

    def __init__(
        self, session_id: str, *, proven_at: float, timeout_s: float, on_lost: Callable[[], None]
    ) -> None:
        self.session = Session(session_id)
        self._loop = asyncio.get_running_loop()
        self._proven_at = proven_at
        self._trusted_s = trusted_s(timeout_s)
        self._on_lost = on_lost
        self._timer = self._loop.call_at(proven_at + self._trusted_s, self._check)

    def prove(self, sent_at: float) -> None:
        """Take an answer to what was sent at *sent_at* on the monotonic clock."""
        self._proven_at = max(self._proven_at, sent_at)

    def end(self) -> None:
        """The session has ended. Idempotent."""
        self._timer.cancel()
        if not self.session.lost.is_set():
            self.session.lost.set()
            self._on_lost()

    def _check(self) -> None:
        due = self._proven_at + self._trusted_s
        if self._loop.time() >= due:
            self.end()
        else:
            self._timer = self._loop.call_at(due, self._check)
