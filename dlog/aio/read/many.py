"""Several logs as one stream: fair, and together no hungrier than a reader of one.

Each log has a reader of its own with its share of the read-ahead. Logs that have records take
turns, one batch (one entry) each, so a log under load delays the others by an entry and not
for ever. There is no order between logs; inside each it is the log's.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from dlog.aio.port import Ledgers
from dlog.aio.read.chunks import PATIENCE_S
from dlog.aio.read.places import start_offset, stop_offset
from dlog.aio.read.reader import READ_AHEAD_BYTES, Reader
from dlog.aio.store import ManifestNode
from dlog.errors import LogClosed, TooManyLogs
from dlog.names import check_name
from dlog.position import BeyondEnd, Position, Record, Start
from ledger.values import Duration, duration_or_none

LOGS_MAX: Final = 1000
"""Logs in one reader; each costs a long poll and a watch."""
SHARE_BYTES_MIN: Final = 64 * 1024
OPENING_MAX: Final = 16
"""Logs that are opened at once."""

LogRecord = tuple[str, Record]
"""A log's name and a record of it."""


class ManyReader:
    """Made by `Log.tail_many`. Used by one task at a time; an async context manager.

    If a log fails (`Trimmed`, `NoSuchLog`, ...) every read raises that until the log is taken
    out by `remove`; the others go on from where they were."""

    def __init__(self, ledgers: Ledgers, *, follow: bool, sharers: int, owns_ledgers: bool) -> None:
        self._ledgers = ledgers
        self._owns_ledgers = owns_ledgers
        self._follow = follow
        self._sharers = sharers
        """Among how many logs the read-ahead is divided."""
        self._news = asyncio.Event()
        """Set when some reader may have become ready, or the logs changed."""
        self._turns: deque[Reader] = deque()
        """Who still reads, next in turn first."""
        self._positions: dict[str, int] = {}
        self._incarnations: dict[str, str | None] = {}
        """Of the logs that have positions, and of those that were removed."""
        self._log = ""
        self._records: Iterator[Record] = iter(())
        self._end = 0
        """Offset after the last of `_records`, which are of `_log`."""
        self._closed = False

    @classmethod
    async def open(
        cls,
        ledgers: Ledgers,
        names: Iterable[str],
        *,
        start: Start | Mapping[str, Start],
        follow: bool,
        owns_ledgers: bool,
        beyond_end: BeyondEnd = "raise",
    ) -> Self:
        """See `dlog.aio.Log.tail_many`."""
        logs = [check_name(name) for name in dict.fromkeys(names)]
        many = cls(ledgers, follow=follow, sharers=len(logs), owns_ledgers=owns_ledgers)
        slots = asyncio.Semaphore(OPENING_MAX)

        async def add(log: str) -> None:
            async with slots:
                at = start.get(log, "start") if isinstance(start, Mapping) else start
                await many.add(log, start=at, beyond_end=beyond_end)

        try:
            async with asyncio.TaskGroup() as group:
                for log in logs:
                    group.create_task(add(log))
        except BaseExceptionGroup as failed:
            await many._close_readers()
            raise failed.exceptions[0] from None
        except BaseException:
            await many._close_readers()
            raise
        many._turns = deque(sorted(many._turns, key=lambda each: logs.index(each.log)))
        return many

    @property
    def logs(self) -> tuple[str, ...]:
        """The logs that are read, also those that were read to their end."""
        return tuple(self._positions)

    @property
    def positions(self) -> Mapping[str, Position]:
        """The position of each log that is read next: where to start again."""
        return {log: self.position_at(log, offset) for log, offset in self._positions.items()}

    def position_at(self, log: str, offset: int) -> Position:
        """Return *offset* as a position of *log*, which is or was read."""
        return Position(offset, self._incarnations[log])

    async def add(
        self, name: str, *, start: Start = "start", beyond_end: BeyondEnd = "raise"
    ) -> None:
        """Read *name* too, from *start* on. Nothing happens if it is read already.

        Other tasks may call it while a read waits. Raises as `Log.tail`, and `TooManyLogs`."""
        check_name(name)
        if not self._is_new(name):
            return
        node = ManifestNode(self._ledgers.store, name)
        first = await start_offset(self._ledgers, node, start, beyond_end=beyond_end)
        end = await stop_offset(self._ledgers, node, None, follow=self._follow)
        if not self._is_new(name):  # any more
            return
        self._positions[name] = first
        self._incarnations[name] = node.followed
        self._turns.append(
            Reader(
                self._ledgers,
                node,
                first,
                stop=end,
                incarnation=node.followed,
                patience_s=None if self._follow else PATIENCE_S,
                read_ahead_bytes=self._share_bytes,
                news=self._news,
            )
        )
        self._share_among(max(self._sharers, len(self._turns)))
        self._news.set()

    @property
    def _share_bytes(self) -> int:
        return max(READ_AHEAD_BYTES // max(self._sharers, 1), SHARE_BYTES_MIN)

    def _share_among(self, sharers: int) -> None:
        if sharers != self._sharers:
            self._sharers = sharers
            for reader in self._turns:
                reader.limit_ahead(self._share_bytes)

    def _is_new(self, name: str) -> bool:
        if self._closed:
            raise LogClosed(name)
        if name not in self._positions and len(self._positions) >= LOGS_MAX:
            raise TooManyLogs(LOGS_MAX)
        return name not in self._positions

    async def remove(self, name: str) -> int | None:
        """Read *name* no more; return the offset that would have been read next.

        None if it was not read. Other tasks may call it while a read waits."""
        position = self._positions.pop(name, None)
        if self._log == name:
            self._log, self._records = "", iter(())
        for reader in [each for each in self._turns if each.log == name]:
            self._turns.remove(reader)
            self._share_among(len(self._turns))
            await reader.close()
        self._news.set()
        return position

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LogRecord:
        while True:
            for record in self._records:
                self._positions[self._log] = record.offset + 1
                return self._log, record
            reader = await self._next_reader()
            if reader is None:
                raise StopAsyncIteration
            records = await reader.read_batch()
            self._log, self._records = reader.log, iter(records)
            self._end = records[-1].offset + 1

    async def read_batch(
        self, *, timeout_s: Duration | None = None
    ) -> tuple[str, Sequence[Record]] | None:
        """Return a log and its records that are next in line, some hundreds or thousands.

        Waits up to *timeout_s* (None: for ever). None if nothing came in time, or if all logs
        were read to their ends: then `at_end` is true."""
        wait_s = duration_or_none(timeout_s, "timeout_s")
        records: Sequence[Record] = list(self._records)
        if not records:
            try:
                async with asyncio.timeout(wait_s):
                    reader = await self._next_reader()
            except TimeoutError:
                return None
            if reader is None:
                return None
            self._log, records = reader.log, await reader.read_batch()
        self._records = iter(())
        self._positions[self._log] = self._end = records[-1].offset + 1
        return self._log, records

    @property
    def at_end(self) -> bool:
        """True iff every log was read to its end."""
        ended = all(reader.at_end for reader in self._turns)
        return ended and self._positions.get(self._log, self._end) == self._end

    async def close(self) -> None:
        """Stop reading ahead and free what was opened. Idempotent."""
        await self._close_readers()
        if self._owns_ledgers:
            self._owns_ledgers = False
            await self._ledgers.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _next_reader(self) -> Reader | None:
        """Return whose turn it is, which then reads without waiting; None: all have ended.

        Takes nothing, so a cancelled read changes nothing."""
        while True:
            if self._closed:
                raise LogClosed(", ".join(self._positions) or "reader")
            self._news.clear()
            for _ in range(len(self._turns)):
                reader = self._turns[0]
                if not reader.is_ready:
                    self._turns.rotate(-1)
                elif reader.at_end:
                    self._turns.popleft()
                else:
                    if reader.error is None:
                        self._turns.rotate(-1)
                    return reader
            if not self._turns:
                return None
            await self._news.wait()

    async def _close_readers(self) -> None:
        self._closed = True
        self._records = iter(())
        self._news.set()
        await asyncio.gather(*(reader.close() for reader in self._turns))
