"""The warm standby for threads: the names of `dlog.aio.Standby`, calls that block.

with Standby.open("orders", apply) as standby:
    log = standby.promote()
    while standby.is_leader:
        ...
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Self

from dlog import aio
from dlog.errors import UsedAfterFork
from dlog.position import Record, Start
from dlog.settings import LogSettings
from dlog.sync.log import Log
from dlog.sync.loop_thread import LoopThread
from ledger.errors import LogError


class Standby:
    """Made by `Standby.open`; a context manager. See `dlog.aio.Standby`.

    *apply* runs on one thread of its own, so it may take its time; guard what it shares with
    other threads. Not to be used across a fork (`UsedAfterFork`)."""

    def __init__(self, standby: aio.Standby, pool: ThreadPoolExecutor, thread: LoopThread) -> None:
        self._standby = standby
        self._pool = pool
        self._thread = thread

    @classmethod
    def open(
        cls,
        name: str,
        apply: Callable[[list[Record]], None],
        *,
        uri: str | None = None,
        start: Start = "start",
        create: bool = True,
        settings: LogSettings | None = None,
        candidate: str = "",
        lease_s: float | None = None,
        lifeline_host: str | None = "127.0.0.1",
    ) -> Self:
        """See `dlog.aio.Standby.open`."""
        thread = LoopThread.get()
        pool = ThreadPoolExecutor(1, f"dlog-apply-{name}")

        async def apply_on_thread(batch: list[Record]) -> None:
            applying = asyncio.get_running_loop().run_in_executor(pool, apply, batch)
            try:
                await asyncio.shield(applying)
            except asyncio.CancelledError:
                await asyncio.wait({applying})  # nothing is applied any more after a close
                raise

        try:
            standby = thread.run(
                aio.Standby.open(
                    name,
                    apply_on_thread,
                    uri=uri,
                    start=start,
                    create=create,
                    settings=settings,
                    candidate=candidate,
                    lease_s=lease_s,
                    lifeline_host=lifeline_host,
                )
            )
        except BaseException:
            pool.shutdown(wait=False)
            raise
        return cls(standby, pool, thread)

    @property
    def name(self) -> str:
        return self._standby.name

    @property
    def position(self) -> int:
        """Offset after the last record that was applied here; not counting own appends."""
        return self._standby.position

    @property
    def is_leader(self) -> bool:
        """The local view, without asking anybody: False means do not serve."""
        return self._standby.is_leader

    @property
    def epoch(self) -> int | None:
        """The epoch of the log while this leads: usable as a fencing token."""
        return self._standby.epoch

    @property
    def is_lost(self) -> bool:
        """True iff leadership was won and then lost: stop serving, close, begin anew."""
        return self._standby.lost.is_set()

    @property
    def lost_reason(self) -> str:
        return self._standby.lost_reason

    def wait_lost(self, *, timeout_s: float | None = None) -> bool:
        """Wait until leadership is lost; return False if it was not within *timeout_s*."""
        self._check_process()
        return self._thread.run(self._wait_lost(timeout_s))

    def promote(self, *, timeout_s: float | None = None) -> Log:
        """See `dlog.aio.Standby.promote`. The log may be used by several threads."""
        self._check_process()
        log = self._thread.run(self._standby.promote(timeout_s=timeout_s))
        return Log(log, log.writer, self._thread)

    def resign(self) -> None:
        """See `dlog.aio.Standby.resign`. Appends of other threads must have ended."""
        self._check_process()
        self._thread.run(self._standby.resign())

    def close(self) -> None:
        """See `dlog.aio.Standby.close`. Idempotent."""
        self._check_process()
        try:
            self._thread.run(self._standby.close())
        finally:
            self._pool.shutdown(wait=False)

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

    async def _wait_lost(self, timeout_s: float | None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._standby.lost.wait()
        return self._standby.lost.is_set()

    def _check_process(self) -> None:
        if self._thread.pid != os.getpid():
            raise UsedAfterFork(self.name)
