"""The barrier that linearizable reads of a replica pass, and the age of a state that follows.

A barrier asks where everything ends that was acknowledged to anybody (`acknowledged_end`), and
waits until that is applied here. Reads that come while one is under way share the next one.

Invariants:
    a read passes a barrier that began after the read did
    one barrier is under way at a time, however many reads wait
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from dlog.errors import LogClosed


class ReadBarrier:
    """Of one replica, on the running event loop. Requires `close`."""

    def __init__(self, log: str, reach_end: Callable[[], Awaitable[None]]) -> None:
        """*reach_end* returns once all that was acknowledged before its call is applied."""
        self._log, self._reach_end = log, reach_end
        self._loop: Final = asyncio.get_running_loop()
        self._readers: list[asyncio.Future[None]] = []
        """That wait for the next barrier."""
        self._passing: asyncio.Task[None] | None = None
        self._complete_at = -math.inf
        """When everything acknowledged until then was known to be applied here."""

    def age_s(self) -> float:
        """Return how long ago the last proof began that the state has all that was acknowledged."""
        return self._loop.time() - self._complete_at

    def prove(self, at_s: float) -> None:
        """Remember that all that was acknowledged until *at_s*, of the loop's clock, is applied."""
        self._complete_at = max(self._complete_at, at_s)

    async def wait(self) -> None:
        """Return once all that was acknowledged to anybody before this call is applied here. Raises
        what the barrier raises, and `LogClosed`."""
        reader: asyncio.Future[None] = self._loop.create_future()
        self._readers.append(reader)
        if self._passing is None:
            self._passing = asyncio.create_task(self._pass(), name="barriers")
        try:
            await reader
        except asyncio.CancelledError:
            with suppress(ValueError):  # unless its barrier is under way
                self._readers.remove(reader)
            raise

    async def close(self) -> None:
        """End the barrier that is under way: the reads that wait raise `LogClosed`."""
        if self._passing is not None:
            self._passing.cancel()
            await asyncio.wait({self._passing})

    async def _pass(self) -> None:
        """One barrier after the other, each for all reads that came before it began."""
        readers: list[asyncio.Future[None]] = []
        try:
            while self._readers:
                readers, self._readers = self._readers, []
                began = self._loop.time()
                error: Exception | None = None
                try:
                    await self._reach_end()
                    self.prove(began)
                except Exception as raised:  # noqa: BLE001 - the reads raise it
                    error = raised
                for reader in readers:
                    if reader.done():
                        continue
                    if error is None:
                        reader.set_result(None)
                    else:
                        reader.set_exception(error)
        finally:
            self._passing = None
            for reader in (*readers, *self._readers):
                if not reader.done():  # cancelled by `close`
                    reader.set_exception(LogClosed(self._log))
