"""The future of one append of the asynchronous API: the outcome of its batch, and a slot in that.

Cheaper to make than the standard library's, and nothing has to be done with it when its record is
confirmed, unless somebody waits for it (`dlog.protocol.pending_batch`). It is one for asyncio: it
can be awaited, gathered, shielded, waited for and cancelled. Cancelling ends the waiting, not the
append.
"""

import asyncio
import contextvars
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any, Self

from dlog.errors import (
    AppendFailed,
    AppendOutcomeUnknown,
    LogClosed,
    LogSealed,
    LostOwnership,
)
from dlog.position import RecordId, RecordIds, Span
from dlog.protocol.packer import Part
from dlog.protocol.pending_batch import Outcome
from ledger.errors import LogError


class _Waiting:
    """What only a future has that somebody waits for."""

    __slots__ = ("blocking", "calls", "cancelled", "message", "watched")

    def __init__(self) -> None:
        self.blocking = False
        self.cancelled = False
        self.message: object = None
        self.watched = False
        self.calls: list[tuple[Callable[[Any], object], contextvars.Context]] = []


class AppendFuture(asyncio.Future[RecordId]):
    """Used on the loop of its log only, as every future of asyncio."""

    __slots__ = ("_home", "_outcome", "_slot")

    _waiting: _Waiting | None = None

    def __init__(self, outcome: Outcome, slot: int, loop: asyncio.AbstractEventLoop) -> None:
        # Instead of Future.__init__: nothing of the inherited state is used.
        self._outcome = outcome
        self._slot = slot
        self._home = loop

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._home

    def done(self) -> bool:
        return self._outcome.done or self.cancelled()

    def cancelled(self) -> bool:
        return self._waiting is not None and self._waiting.cancelled

    def cancel(self, msg: object = None) -> bool:
        """Stop waiting; the record is appended nevertheless."""
        if self.done():
            return False
        waiting = self._rare()
        waiting.cancelled, waiting.message = True, msg
        self._notify()
        return True

    def result(self) -> RecordId:
        self._check()
        return self._outcome.record_id(self._slot)

    def exception(self) -> BaseException | None:
        self._check()
        return self._outcome.tell(self._slot)

    def add_done_callback(
        self,
        fn: Callable[[Self], object],
        /,
        *,
        context: contextvars.Context | None = None,
    ) -> None:
        if self.done():
            self._home.call_soon(fn, self, context=context)
            return
        waiting = self._rare()
        waiting.calls.append((fn, context or contextvars.copy_context()))
        if not waiting.watched:
            waiting.watched = True
            self._outcome.watch(self._notify)

    def remove_done_callback(self, fn: Callable[[Self], object], /) -> int:
        if self._waiting is None:
            return 0
        before = self._waiting.calls
        self._waiting.calls = [call for call in before if call[0] != fn]
        return len(before) - len(self._waiting.calls)

    def __await__(self) -> Generator[Any, None, RecordId]:
        if not self.done():
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    __iter__ = __await__

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        return f"<{type(self).__name__} {state}>"

    @property
    def _asyncio_future_blocking(self) -> bool:  # how tasks know a future
        return self._waiting is not None and self._waiting.blocking

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, value: bool) -> None:
        self._rare().blocking = value

    def _rare(self) -> _Waiting:
        if self._waiting is None:
            self._waiting = _Waiting()
        return self._waiting

    def _check(self) -> None:
        waiting = self._waiting
        if waiting is not None and waiting.cancelled:
            raise asyncio.CancelledError(*(() if waiting.message is None else (waiting.message,)))
        if not self._outcome.done:
            raise asyncio.InvalidStateError("the append is not resolved yet")

    def _notify(self) -> None:
        waiting = self._rare()
        calls, waiting.calls = waiting.calls, []
        for call, context in calls:
            self._home.call_soon(call, self, context=context)


class ManyFuture(asyncio.Future[RecordIds]):
    """The future of an append of many; it says so when the application is given its error."""

    def __init__(self, told: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._told = told

    def result(self) -> RecordIds:
        self._tell()
        return super().result()

    def exception(self) -> BaseException | None:
        self._tell()
        error = super().exception()
        return None if error is None else error.with_traceback(None)  # as in `Outcome.tell`

    def __await__(self) -> Generator[Any, None, RecordIds]:
        if not self.done():
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    __iter__ = __await__

    def _tell(self) -> None:
        if self.done() and not self.cancelled() and super().exception() is not None:
            self._told()


def resolve_many(
    future: "asyncio.Future[RecordIds] | Future[RecordIds]", parts: Sequence[Part]
) -> None:
    """Resolve *future* once all *parts* of one append are: entries are confirmed in order."""

    def resolve() -> None:
        if future.done():
            return
        errors = [part.batch.error(part.slot) for part in parts]
        failed = [error for error in errors if error is not None]
        if not failed:
            future.set_result(RecordIds([_span(part) for part in parts]))
        elif len(failed) == len(parts) and not failed[0].outcome_unknown:
            future.set_exception(failed[0].with_traceback(None))  # none was sent
        else:
            unknown = next((e for e in failed if e.outcome_unknown), None)
            error = unknown or _partly(parts, failed[0])
            future.set_exception(error.with_traceback(None))

    parts[-1].batch.watch(resolve)


def _partly(parts: Sequence[Part], error: LogError) -> LogError:
    place = parts[0].batch.place
    assert place is not None, "entries are confirmed in order"
    log = (
        error.log if isinstance(error, AppendFailed | LogClosed | LogSealed | LostOwnership) else ""
    )
    return AppendOutcomeUnknown(log, place.first_offset + parts[0].slot, str(error))


def _span(part: Part) -> Span:
    place = part.batch.place
    assert place is not None
    first = place.first_offset + part.slot
    return Span(first, place.segment, place.entry, part.slot, part.count)
