"""Readers for threads: the names of `dlog.aio`, calls that block.

Made by `Log.tail`, `Log.tail_many` and `Log.consumer` of `dlog`. A call that is interrupted
(Ctrl-C) loses nothing: what it had read is the next call's.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from dlog import aio
from dlog.aio.read.tails import BARRIER_S
from dlog.chunk import Chunk
from dlog.errors import InvalidPosition
from dlog.position import Position, Record, Start
from dlog.sync.loop_thread import BlockingHandle, LoopThread
from ledger.values import Duration


class Reader(BlockingHandle[aio.Reader]):
    """A reader of a log. Used by one thread at a time; an iterator and a context manager."""

    def __init__(self, reader: aio.Reader, thread: LoopThread) -> None:
        super().__init__(reader, thread, reader.log)
        self._fetched: deque[Chunk | None] = deque()
        """What was read; an interrupted call leaves it to the next one. None: nothing came."""
        self._chunk: Chunk | None = None
        self._records: Iterator[Record] = iter(())
        """Of `_chunk`."""
        self._position: int = reader.position

    @property
    def position(self) -> Position:
        """Offset of the record that is read next, and of which incarnation of the log."""
        return Position(self._position, self._inner.incarnation)

    @property
    def at_end(self) -> bool:
        """True iff the stop was reached and every record before it was read."""
        return self._inner.at_end and self._position == self._inner.position

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        for record in self._records:
            self._position = record.offset + 1
            return record
        chunk = self._fetch(None)
        if chunk is None:
            raise StopIteration
        self._chunk, self._records = chunk, iter(chunk)
        return next(self)

    def read_batch(self, *, timeout_s: Duration | None = None) -> Sequence[Record]:
        """Return the records that are next in line; see `dlog.aio.Reader.read_batch`."""
        return self._take(timeout_s) or ()

    def read_batches(self) -> Iterator[Chunk]:
        """Yield what follows as chunks; see `dlog.aio.Reader.read_batches`."""
        while (chunk := self._take(None)) is not None:
            yield chunk

    def barrier(self, *, timeout_s: Duration = BARRIER_S) -> int:
        """Return the offset after every record that was acknowledged before this call.

        See `dlog.aio.Reader.barrier`; `read_until` it to read them all."""
        return self._run(self._inner.barrier(timeout_s=timeout_s))

    def read_until(self, offset: int) -> Iterator[Record]:
        """Yield the records from here up to, not with, *offset*; wait for them if need be."""
        while self._position < offset:
            try:
                record = next(self)
            except StopIteration:
                return
            yield record

    def _take(self, timeout_s: Duration | None) -> Chunk | None:
        """Return what is left of the present chunk, or else the next one."""
        chunk = self._chunk
        if chunk is None or chunk.end == self._position:
            chunk = self._fetch(timeout_s)
            if chunk is None:
                return None
        else:
            chunk = chunk.since(self._position)
        self._chunk, self._records = None, iter(())
        self._position = chunk.end
        return chunk

    def _fetch(self, timeout_s: Duration | None) -> Chunk | None:
        self._check_process()
        if not self._fetched:
            self._run(self._read(timeout_s))
        return self._fetched.popleft()

    async def _read(self, timeout_s: Duration | None) -> None:
        self._fetched.append(await self._inner.read_chunk(timeout_s=timeout_s))


class Consumer(Reader):
    """A named consumer: a `Reader` with `commit`; see `dlog.aio.Consumer`."""

    def __init__(self, consumer: aio.Consumer, thread: LoopThread) -> None:
        super().__init__(consumer, thread)
        self._consumer = consumer

    @property
    def name(self) -> str:
        return self._consumer.name

    @property
    def committed(self) -> int:
        """Every record below this offset was processed, as far as this handle knows."""
        return self._consumer.committed

    @property
    def epoch(self) -> int:
        """Grows with each exclusive open and each reset; usable as a fencing token."""
        return self._consumer.epoch

    @property
    def skipped(self) -> int:
        """How many records had been trimmed before they were processed (with "skip")."""
        return self._consumer.skipped

    def commit(self, offset: int | None = None) -> int:
        """Remember that every record below *offset* (None: all that were read) was processed.

        See `dlog.aio.Consumer.commit`."""
        wanted = self._position if offset is None else offset
        if wanted > self._position:
            reason = f"this consumer has read up to {self._position}"
            raise InvalidPosition(self._consumer.log, wanted, reason)
        return self._run(self._consumer.commit(wanted))

    def lag(self) -> int:
        """Return how many readable records were not committed yet."""
        return self._run(self._consumer.lag())


class ManyReader(BlockingHandle[aio.ManyReader]):
    """A reader of several logs. Used by one thread at a time; see `dlog.aio.ManyReader`."""

    def __init__(self, many: aio.ManyReader, thread: LoopThread) -> None:
        super().__init__(many, thread, ", ".join(many.logs))
        self._fetched: deque[tuple[str, Sequence[Record]] | None] = deque()
        """Batches that were read; an interrupted call leaves its batch to the next one."""
        self._log = ""
        self._records: Iterator[Record] = iter(())
        self._end = 0
        """Offset after the last of `_records`, which are of `_log`."""
        self._positions: dict[str, int] = dict(many.positions)

    @property
    def logs(self) -> tuple[str, ...]:
        """The logs that are read, also those that were read to their end."""
        return self._inner.logs

    @property
    def positions(self) -> Mapping[str, Position]:
        """The position of each log that is read next: where to start again."""
        at = self._inner.position_at
        return {log: at(log, offset) for log, offset in self._positions.items()}

    @property
    def at_end(self) -> bool:
        """True iff every log was read to its end."""
        read = self._positions.get(self._log, self._end) == self._end
        return self._inner.at_end and read and not any(self._fetched)

    def add(self, name: str, *, start: Start = "start") -> None:
        """Read *name* too, from *start* on; see `dlog.aio.ManyReader.add`."""
        self._run(self._inner.add(name, start=start))
        self._positions.setdefault(name, self._inner.positions[name])

    def remove(self, name: str) -> int | None:
        """Read *name* no more; return the offset that would have been read next."""
        self._run(self._inner.remove(name))
        if self._log == name:
            self._records = iter(())
        self._fetched = deque(each for each in self._fetched if each is None or each[0] != name)
        return self._positions.pop(name, None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, Record]:
        for record in self._records:
            self._positions[self._log] = record.offset + 1
            return self._log, record
        batch = self._fetch(None)
        if batch is None:
            raise StopIteration
        self._log, records = batch
        self._records = iter(records)
        self._end = records[-1].offset + 1
        return next(self)

    def read_batch(
        self, *, timeout_s: Duration | None = None
    ) -> tuple[str, Sequence[Record]] | None:
        """Return a log and its next records; see `dlog.aio.ManyReader.read_batch`."""
        left = list(self._records)
        batch = (self._log, left) if left else self._fetch(timeout_s)
        if batch is not None:
            self._positions[batch[0]] = self._end = batch[1][-1].offset + 1
        return batch

    def _fetch(self, timeout_s: Duration | None) -> tuple[str, Sequence[Record]] | None:
        self._check_process()
        if not self._fetched:
            self._run(self._read(timeout_s))
        return self._fetched.popleft()

    async def _read(self, timeout_s: Duration | None) -> None:
        self._fetched.append(await self._inner.read_batch(timeout_s=timeout_s))
