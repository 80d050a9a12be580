"""Applies a log to an application's state, batch after batch, as long as that is wanted; lets one
call at a time use that state.

Invariants:
    each record from the start on is applied once, in order, whatever ends the following meanwhile
    nothing is applied of another life of the log than the state is made of
    what failed is never begun again: a batch may have been applied in part
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, Never, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential

from dlog.aio.port import Ledgers
from dlog.aio.read import handles
from dlog.aio.read.reader import Reader
from dlog.errors import NoSuchLog
from dlog.position import Record
from ledger.errors import LogError
from ledger.log_events import get_logger

Apply = Callable[[Sequence[Record]], Awaitable[None] | None]
"""Takes the next records into the state; a function or a coroutine function."""

R = TypeVar("R")

BACKOFF_S: Final = 0.05
BACKOFF_S_MAX: Final = 5.0

_log = get_logger(__name__)


class Following:
    """Begins at once, with *reader*. Requires `stop` in the end."""

    def __init__(self, ledgers: Ledgers, reader: Reader, apply: Apply, *, incarnation: str) -> None:
        self.log = reader.log
        self.position: int = reader.position
        """Offset after the last record that was applied, or need not be."""
        self.end: int | None = None
        """Where it ends by itself; None: never."""
        self._ledgers = ledgers
        self._apply = apply
        self._incarnation = incarnation
        """The life of the log that the state is made of."""
        self.task = asyncio.create_task(self._follow(reader), name=f"standby of {self.log}")

    def check_life(self, incarnation: str | None) -> None:
        """Raise `NoSuchLog` if that is not the life of the log that the state was made of."""
        if incarnation != self._incarnation:
            raise NoSuchLog(self.log, "it was deleted, and another one has its name")

    def check(self) -> None:
        """Raise what ended it, if that was an error."""
        if self.task.done():
            self.task.result()

    async def go_on(self) -> None:
        """Go on at `position`, unless it goes on or has failed."""
        task = self.task
        if task.cancelling():
            await asyncio.wait({task})
        if task.done() and (task.cancelled() or task.exception() is None):
            self.task = asyncio.create_task(self._again(), name=f"standby of {self.log}")

    async def stop(self) -> None:
        """End it; nothing is applied any more when this returns."""
        self.task.cancel()
        await asyncio.wait({self.task})

    async def _again(self) -> None:
        opening = AsyncRetrying(
            retry=retry_if_exception(_may_pass),
            wait=wait_exponential(BACKOFF_S, BACKOFF_S_MAX),
            before_sleep=self._postponed,
            reraise=True,
        )
        await self._follow(await opening(self._reader))

    async def _reader(self) -> Reader:
        at = int(self.position)
        return await handles.tail(self.log, start=at, beyond_end="wait", client=self._ledgers)

    def _postponed(self, state: RetryCallState) -> None:
        assert state.outcome is not None
        _log.warning("following_postponed", log=self.log, error=str(state.outcome.exception()))

    async def _follow(self, reader: Reader) -> None:
        async with reader:
            while self.end is None or self.position < self.end:
                batch = await reader.read_batch()
                if not batch:
                    return  # the log was sealed for good
                self.check_life(reader.incarnation)
                applied = self._apply(batch)
                if inspect.isawaitable(applied):
                    await applied
                self.position = reader.position


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, LogError) and error.retryable


class StateTurns:
    """Lets one call at a time use a state: on the event loop, or on the given executor."""

    def __init__(self, executor: Executor | None) -> None:
        self._executor = executor
        self._turn = asyncio.Lock()
        self._user: int | None = None
        """The thread that uses the state now."""

    @property
    def on_loop(self) -> bool:
        """Whether a call that does not wait has the state for itself."""
        return self._executor is None

    async def use(self, work: Callable[[], R]) -> R:
        """Do *work* with the state, alone. It ends even if this is cancelled. Raises what *work*
        raises, which checks the state."""
        if self._executor is None:
            return work()
        async with self._turn:
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._executor, self._settle, work)
            outcome = await whole(running)
        return outcome()

    async def ended(self) -> None:
        """Return once the call that is under way has ended."""
        async with self._turn:
            pass

    def is_user(self) -> bool:
        """Return whether the caller is called by *work*, on the executor: there it must not wait
        for what waits for it."""
        return self._user == threading.get_ident()

    def _settle(self, work: Callable[[], R]) -> Callable[[], R]:
        """Do *work*, on the executor; return what returns or raises the same.

        A future does not take each error: `StopIteration` would leave it pending permanently."""
        self._user = threading.get_ident()
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            return partial(_raise, error)
        finally:
            self._user = None
        return lambda: result


async def whole(future: asyncio.Future[R]) -> R:
    """Return the result of *future*, which ends however often this is cancelled; then this is."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return future.result()


def _raise(error: BaseException) -> Never:
    raise error
