"""The future of one append of the synchronous API, light enough to make one per record.

`concurrent.futures.Future` makes a lock, a condition and two lists for each future, which costs
more than appending the record. Here they are made when a thread really waits for this one record.
Until then the future is its entry's outcome and a slot (`dlog.outcome`). Everything else is
inherited, so `concurrent.futures.wait` and `asyncio.wrap_future` work.

Its twin in `dlog.aio.write.append_future` has the same name, as the two `Log` have: who changes
from one API to the other changes an import. They share no base: what each inherits is its point.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures._base import PENDING
from contextlib import suppress
from typing import Final

from dlog.outcome import Outcome
from dlog.position import RecordId

_LOCK: Final = threading.Lock()


class AppendFuture(Future[RecordId]):
    """An append cannot be taken back, so it cannot be cancelled."""

    __slots__ = ("_lazy", "_outcome", "_slot")

    def __init__(self) -> None:
        # Instead of Future.__init__, whose work is done by `_condition`.
        self._lazy: threading.Condition | None = None
        self._outcome: Outcome | None = None

    def attach(self, outcome: Outcome, slot: int) -> None:
        """Tell on which outcome this depends. To be called once."""
        self._slot = slot
        self._outcome = outcome
        if self._lazy is not None:
            outcome.watch(self._finish)

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        """Return the condition; from its first use on the inherited code does everything."""
        if self._lazy is None:
            with _LOCK:
                if self._lazy is None:
                    self._state = PENDING
                    self._result: RecordId | None = None
                    self._exception: BaseException | None = None
                    self._waiters = []
                    self._done_callbacks: list[Callable[[Future[RecordId]], object]] = []
                    self._lazy = threading.Condition()
            if self._outcome is not None:
                self._outcome.watch(self._finish)
        return self._lazy

    def cancel(self) -> bool:
        return False

    def done(self) -> bool:
        outcome = self._outcome
        return outcome is not None and outcome.done

    def result(self, timeout: float | None = None) -> RecordId:
        outcome = self._outcome
        if outcome is not None and outcome.done:
            return outcome.record_id(self._slot)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        outcome = self._outcome
        if outcome is not None and outcome.done:
            return outcome.error(self._slot)
        return super().exception(timeout)

    def _finish(self) -> None:
        outcome = self._outcome
        assert outcome is not None
        with suppress(InvalidStateError):  # reported twice: see `Outcome`
            error = outcome.error(self._slot)
            if error is None:
                self.set_result(outcome.record_id(self._slot))
            else:
                self.set_exception(error)
