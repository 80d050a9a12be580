"""The warm standby for threads: the names of `dlog.aio.Standby`, calls that block.

with Standby.open("orders", apply) as standby:
    log = standby.promote()
    while standby.is_leader:
        ...
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Self

from dlog import aio
from dlog.aio.standby import leader_of as awaited_leader
from dlog.position import Record, Start
from dlog.settings import LogSettings
from dlog.sync.log import Log
from dlog.sync.loop_thread import BlockingHandle, LoopThread
from leader import Candidate, LeaderInfo
from ledger.values import Duration, duration_or_none


def leader_of(log: str, *, uri: str | None = None) -> LeaderInfo | None:
    """See `dlog.aio.leader_of`."""
    return LoopThread.get().run(awaited_leader(log, uri=uri))


class Standby(BlockingHandle[aio.Standby]):
    """Made by `Standby.open`; a context manager. See `dlog.aio.Standby`.

    *apply* runs on one thread of its own, so it may take its time; guard what it shares with
    other threads. Not to be used across a fork (`UsedAfterFork`)."""

    def __init__(self, standby: aio.Standby, pool: ThreadPoolExecutor, thread: LoopThread) -> None:
        super().__init__(standby, thread, standby.name)
        self._pool = pool

    @classmethod
    def open(
        cls,
        name: str,
        apply: Callable[[Sequence[Record]], None],
        *,
        uri: str | None = None,
        start: Start = "start",
        create: bool = True,
        settings: LogSettings | None = None,
        candidate: Candidate | str = "",
        lease_s: Duration | None = None,
        lifeline_host: str | None = "127.0.0.1",
    ) -> Self:
        """See `dlog.aio.Standby.open`."""
        thread = LoopThread.get()
        pool = ThreadPoolExecutor(1, f"dlog-apply-{name}")

        async def apply_on_thread(batch: Sequence[Record]) -> None:
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
        return self._inner.name

    @property
    def position(self) -> int:
        """Offset after the last record that was applied here; not counting own appends."""
        return self._inner.position

    @property
    def is_leader(self) -> bool:
        """The local view, without asking anybody: False means do not serve."""
        return self._inner.is_leader

    @property
    def epoch(self) -> int | None:
        """The epoch of the log while this leads: usable as a fencing token."""
        return self._inner.epoch

    @property
    def is_lost(self) -> bool:
        """True iff leadership was won and then lost: stop serving, close, open a new one."""
        return self._inner.lost.is_set()

    @property
    def lost_reason(self) -> str:
        return self._inner.lost_reason

    def wait_lost(self, *, timeout_s: Duration | None = None) -> bool:
        """Wait until leadership is lost; return False if it was not within *timeout_s*."""
        return self._run(self._wait_lost(duration_or_none(timeout_s, "timeout_s")))

    def promote(self, *, timeout_s: Duration | None = None) -> Log:
        """See `dlog.aio.Standby.promote`. The log may be used by several threads."""
        log = self._run(self._inner.promote(timeout_s=timeout_s))
        return Log(log, log.writer, self._thread)

    def resign(self) -> None:
        """See `dlog.aio.Standby.resign`. Appends of other threads must have ended."""
        self._run(self._inner.resign())

    def close(self) -> None:
        """See `dlog.aio.Standby.close`. Idempotent."""
        self._check_process()  # before the pool, whose locks a fork may have left taken
        try:
            super().close()
        finally:
            self._pool.shutdown(wait=False)

    async def _wait_lost(self, timeout_s: float | None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._inner.lost.wait()
        return self._inner.lost.is_set()
