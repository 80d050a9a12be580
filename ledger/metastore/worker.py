"""Runs blocking calls on a thread of their own, for an event loop."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

_T = TypeVar("_T")


class Worker:
    """One daemon thread, which does calls one after another.

    A daemon, because a call on a dead disk may never return: that must keep neither the
    event loop nor the end of the program waiting."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def run(self, call: Callable[[], _T], *, timeout_s: float) -> _T:
        """Return what *call* returns. Raises `TimeoutError`; a call not begun is then dropped."""
        future: Future[_T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                future.set_exception(error)
            else:
                future.set_result(result)

        self._calls.put(work)
        # Not wait_for: before Python 3.12 that swallows a cancellation that comes with the result.
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(future)

    def stop(self) -> None:
        """End the thread when the calls before this one are done. Does not wait."""
        self._calls.put(None)

    def _run(self) -> None:
        while (work := self._calls.get()) is not None:
            work()
