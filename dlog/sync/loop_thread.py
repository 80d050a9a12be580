"""The event loop of the synchronous API: one private daemon thread per process.

Made on first use, and again in a child after a fork: threads do not survive one, and nothing
of the parent's loop may be touched there. Every handle of the blocking API is something of
`dlog.aio` that is used from other threads.
"""

import asyncio
import atexit
import os
import threading
import warnings
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

from dlog.errors import UsedAfterFork
from ledger.errors import LogError

_EXIT_S: Final = 2.0
EXIT_FLUSH_S: Final = 10.0
"""How long the end of a program waits for appends of logs that it did not close."""
T = TypeVar("T")


class Unclosed(Protocol):
    """A log that was not closed yet."""

    @property
    def name(self) -> str: ...

    @property
    def pending_records(self) -> int:
        """Appends that are not confirmed."""

    async def drain(self, timeout_s: float) -> None:
        """Confirm what was appended, as far as that is done in time. Raises nothing."""

    def publish(self) -> None:
        """Let readers have at once what is confirmed. On the loop."""


class Forks:
    """Counts the forks between the first process and this one; cheaper than asking for a pid."""

    def __init__(self) -> None:
        self.generation = 0


forks: Final = Forks()


class LoopThread:
    _lock: ClassVar = threading.Lock()
    _current: ClassVar["LoopThread | None"] = None

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.generation = forks.generation
        self.unclosed: dict[Unclosed, None] = {}
        """Held until they are closed, as their appends are under way even if nothing else does."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dlog", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    @classmethod
    def get(cls) -> "LoopThread":
        """Return the thread of this process; start it if there is none yet."""
        current = cls._current
        if current is None or current.pid != os.getpid():
            with cls._lock:
                current = cls._current
                if current is None or current.pid != os.getpid():
                    current = cls._current = cls()
        return current

    def run(self, work: Coroutine[Any, Any, T], *, handle: str | None = None) -> T:
        """Run *work* on the loop and return its result; cancel it if this thread is interrupted.

        *handle* names who asks in errors."""
        try:
            self.check_process(handle)
            self.check_caller()
        except BaseException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def check_process(self, handle: str | None = None) -> None:
        """Raise `UsedAfterFork` in a child of the process that this thread belongs to."""
        if self.generation != forks.generation:
            raise UsedAfterFork(handle)

    def check_caller(self) -> None:
        """Raise RuntimeError on this thread, where nobody may wait for what it does."""
        if self.is_current():
            raise RuntimeError("the synchronous API was called on its own loop; use dlog.aio")

    def is_current(self) -> bool:
        """Return whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _stop(self) -> None:
        if self.pid == os.getpid():
            self._flush()
            asyncio.run_coroutine_threadsafe(self._wind_up(), self.loop)
            self._thread.join(_EXIT_S)

    def _flush(self) -> None:
        """Confirm the appends of logs that were not closed, and say how many there were.

        Those that are not confirmed in time are reported by `dlog.aio.write.writer`."""
        pending = [log for log in tuple(self.unclosed) if log.pending_records]
        if not pending:
            return
        for log in pending:
            warnings.warn(
                f"log {log.name!r} was not closed: {log.pending_records:,} appends were pending "
                "when the program ended. Use 'with Log.open(...)', close() or flush()",
                ResourceWarning,
                stacklevel=1,
                source=log,
            )
        drains = asyncio.run_coroutine_threadsafe(_drain(pending), self.loop)
        with suppress(TimeoutError):
            drains.result(EXIT_FLUSH_S + _EXIT_S)

    async def _wind_up(self) -> None:
        """Publish what is confirmed, cancel what handles that were not closed left behind, stop."""
        for log in tuple(self.unclosed):
            log.publish()
        await asyncio.sleep(0)  # what cannot leave at once leaves at the end of a turn
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self.loop.stop()


async def _drain(logs: Iterable[Unclosed]) -> None:
    await asyncio.gather(*(log.drain(EXIT_FLUSH_S) for log in logs))


def _after_fork() -> None:
    # The lock may have been held by a thread that does not exist here.
    forks.generation += 1
    LoopThread._lock = threading.Lock()  # noqa: SLF001 - own class
    LoopThread._current = None  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork)


class _Closable(Protocol):
    def close(self) -> Coroutine[Any, Any, None]: ...


Inner = TypeVar("Inner", bound=_Closable)


class BlockingHandle(Generic[Inner]):
    """A context manager; belongs to the process that opened it (`UsedAfterFork`).

    A blocking twin adds only what it does differently from its asynchronous *inner* one; *what*
    names it in errors."""

    def __init__(self, inner: Inner, thread: LoopThread, what: str) -> None:
        self._inner = inner
        self._thread = thread
        self._what = what

    def close(self) -> None:
        """See `close` of the twin in `dlog.aio`. Idempotent."""
        self._run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is None:
            self.close()
            return
        with suppress(LogError):  # the error on its way says more
            self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* on the loop, and return its result."""
        return self._thread.run(work, handle=self._what)

    def _check_process(self) -> None:
        """Raise `UsedAfterFork` in a child of the process that opened this."""
        self._thread.check_process(self._what)

    def _check_caller(self) -> None:
        """As `_check_process`, before a wait that `_run` knows nothing of."""
        self._check_process()
        self._thread.check_caller()
