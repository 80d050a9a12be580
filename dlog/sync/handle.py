"""What every handle of the blocking API is: something of `dlog.aio`, used from other threads."""

from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from dlog.sync.loop_thread import LoopThread
from ledger.errors import LogError


class _Closable(Protocol):
    def close(self) -> Coroutine[Any, Any, None]: ...


Inner = TypeVar("Inner", bound=_Closable)
T = TypeVar("T")


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
