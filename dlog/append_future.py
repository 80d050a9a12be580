"""The future of one append of the synchronous API, light enough to make one per record.

`concurrent.futures.Future` makes a lock and a condition for each future, which costs more than
appending the record. Here they are made when a thread really waits, under one lock for all.
Everything else is inherited, so `concurrent.futures.wait` and `asyncio.wrap_future` work.

Invariant: the state is changed either under `_LOCK` while there is no condition, or under the
condition once there is one; who makes the condition holds `_LOCK` and finds the state as it is.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING
from typing import Final

from dlog.position import RecordId

_LOCK: Final = threading.Lock()


class AppendFuture(Future[RecordId]):
    """An append cannot be taken back, so it cannot be cancelled."""

    def __init__(self) -> None:
        # Instead of Future.__init__, whose condition is what costs.
        self._state = PENDING
        self._result: RecordId | None = None
        self._exception: BaseException | None = None
        self._waiters = []
        self._done_callbacks: list[Callable[[Future[RecordId]], object]] = []
        self._lazy: threading.Condition | None = None

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        """Return the condition; from its first use on the inherited code does everything."""
        if self._lazy is None:
            with _LOCK:
                if self._lazy is None:
                    self._lazy = threading.Condition()
        return self._lazy

    def cancel(self) -> bool:
        return False

    def done(self) -> bool:
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> RecordId:
        if self._state == FINISHED and self._exception is None and self._result is not None:
            return self._result
        return super().result(timeout)

    def set_result(self, result: RecordId) -> None:
        with _LOCK:
            if self._lazy is None and self._state == PENDING:
                self._result = result
                self._state = FINISHED  # last: who sees it needs no lock
                return
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        with _LOCK:
            if self._lazy is None and self._state == PENDING:
                self._exception = exception
                self._state = FINISHED
                return
        super().set_exception(exception)
