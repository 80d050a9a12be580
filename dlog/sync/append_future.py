"""The future of one append of the synchronous API, light enough to make one per record.

`concurrent.futures.Future` makes a lock, a condition and two lists for each future, which costs
more than appending the record. Here they are made when a thread really waits for this one record.
Until then the future is a gathering and an index, which say its entry's outcome and a slot there
(`dlog.protocol.pending_batch`, `dlog.outcome`). Everything else is
inherited, so `concurrent.futures.wait` and `asyncio.wrap_future` work.

Its twin in `dlog.aio.write.append_future` has the same name, as the two `Log` have: who changes
from one API to the other changes an import. They share no base: what each inherits is its point.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures._base import PENDING
from contextlib import suppress
from functools import partial
from typing import Final, Self, TypeVar

from dlog.outcome import Outcome
from dlog.position import RecordId, RecordIds
from dlog.protocol.pending_batch import Gathering
from dlog.sync.loop_thread import LoopThread
from ledger.errors import LogError

_LOCK: Final = threading.Lock()
_Result = TypeVar("_Result")


class _LogOrder(Future[_Result]):
    """Its callbacks run on dlog's own thread, one after the other, in the order of the log."""

    def add_done_callback(self, fn: Callable[[Future[_Result]], object]) -> None:
        """Let *fn* be called with this future once the outcome is known, as soon as those of the
        records before it have been.

        In log order, if the callbacks of all threads are added in that order: hold a lock over
        `append_async` and this. *fn* must be quick, as nothing else goes on meanwhile, and must
        not call this log's blocking methods."""
        super().add_done_callback(partial(_on_own_thread, fn))


def _on_own_thread(call: Callable[[Future[_Result]], object], future: Future[_Result]) -> None:
    """Run *call* now on dlog's own thread, else soon: those before it may be under way there."""
    thread = LoopThread.get()
    if thread.is_current():
        call(future)
    else:
        thread.loop.call_soon_threadsafe(call, future)


class AppendFuture(_LogOrder[RecordId]):
    """An append cannot be taken back, so it cannot be cancelled."""

    __slots__ = ("_gathering", "_index")

    _lazy: threading.Condition | None = None

    def __init__(self, gathering: Gathering, index: int) -> None:
        # Instead of Future.__init__, whose work is done by `_condition`.
        self._gathering = gathering
        self._index = index

    @classmethod
    def refused(cls, error: LogError) -> Self:
        """Return the future of a record that was never taken."""
        return cls(Gathering.placed(Outcome.refused(error)), 0)

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
            self._gathering.watch(self._index, self._finish)
        return self._lazy

    def cancel(self) -> bool:
        return False

    def done(self) -> bool:
        return self._found() is not None

    def result(self, timeout: float | None = None) -> RecordId:
        found = self._found()
        if found is None:
            super().exception(timeout)  # waits
            found = self._found()
            assert found is not None, "whoever waits is woken by the outcome"
        return found[0].record_id(found[1])

    def exception(self, timeout: float | None = None) -> BaseException | None:
        found = self._found()
        if found is None:
            super().exception(timeout)  # waits
            found = self._found()
            assert found is not None, "whoever waits is woken by the outcome"
        return found[0].tell(found[1])

    def wait(self) -> None:
        """Wait until the outcome is known; asks for none of it."""
        if self._found() is None:
            super().exception()

    def _found(self) -> tuple[Outcome, int] | None:
        """Return the outcome and the slot, once the outcome is known."""
        found = self._gathering.find(self._index)
        return found if found is not None and found[0].done else None

    def _finish(self) -> None:
        found = self._found()
        assert found is not None
        outcome, slot = found
        with suppress(InvalidStateError):  # reported twice: see `Outcome`
            error = outcome.error(slot)
            if error is None:
                self.set_result(outcome.record_id(slot))
            else:
                self.set_exception(error)


class ManyFuture(_LogOrder[RecordIds]):
    """The future of an append of many; it says so when the application is given its error."""

    def __init__(self, told: Callable[[], None]) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # an append cannot be taken back
        self._told = told

    def result(self, timeout: float | None = None) -> RecordIds:
        self.exception(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        if error is not None:
            self._told()
        return error

    def wait(self) -> None:
        """Wait until the outcome is known; asks for none of it."""
        super().exception()
