"""A process that tails a log, from anywhere, until it has read the end."""

import asyncio
from typing import Final

from dlog.aio.log import Log
from dlog.aio.read.reader import Reader
from dlog.errors import InvalidPosition, NoSuchLog, OffsetOutOfRange, Trimmed
from dlog.position import BeyondEnd, Start, Txid
from ledger.errors import LogError
from tests.simulation.logs.oracle import LogHistory, Reading, Seen
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import LogProfile

POLL_S: Final = 0.5
RETRY_S: Final = 0.3
BARRIERS: Final = 0.15
"""How probably a reader asks for a barrier between two batches."""
BARRIER_S: Final = 2.0


class Tailer:
    def __init__(self, process: Process, name: str, profile: LogProfile) -> None:
        self.process = process
        self.name = name
        self.finishing = False
        """Set once nothing is appended any more: read up to the end, then stop."""
        self.fixed_start: Start | None = None
        self.reading: Reading | None = None
        self._from_txid: int | None = None
        self._barrier = 0
        """How far this reading must come, by what it was given."""
        self._profile = profile
        self._random = process.world.scheduler.random

    @property
    def wanted(self) -> str:
        """Say what is missing, for a run that does not finish."""
        at = "nowhere" if self.reading is None else str(self.reading.next_offset)
        return f"{self.process.name} at {at} in {self.name}"

    async def run(self) -> None:
        while True:
            start = self._start() if self.fixed_start is None else self.fixed_start
            history = self.process.world.logs.current.get(self.name)
            seen_end = 0 if history is None else history.end
            beyond_end: BeyondEnd = self._random.choice(("raise", "wait"))
            try:
                reader = await Log.tail(
                    self.name, start=start, beyond_end=beyond_end, client=self.process.ledgers
                )
            except (NoSuchLog, Trimmed, InvalidPosition, OffsetOutOfRange) as error:
                self._failed(error)
                is_current = self.process.world.logs.current.get(self.name) is history
                if isinstance(error, OffsetOutOfRange) and is_current:
                    self._check_range(error.offset, seen_end)
                if self.finishing:
                    return
                await asyncio.sleep(RETRY_S)
                continue
            except LogError as error:
                if not error.retryable:
                    raise
                self._failed(error)
                await asyncio.sleep(RETRY_S)
                continue
            reader._source._wait_s = self._profile.reader_wait_s
            self.process.note(f"reads {self.name} from {start!r}: offset {reader.position}")
            self._from_txid = start.value if isinstance(start, Txid) else None
            try:
                if await self._read(reader):
                    return
            finally:
                await reader.close()

    async def _read(self, reader: Reader) -> bool:
        """Read until the reader fails, is given up, or came to the target; return the last."""
        start, self.reading = reader.position, None
        batches = self._barrier = 0
        while True:
            if self.finishing and reader.position >= max(self._end(reader), self._barrier):
                self.process.mark("reader_reached_end")
                return True
            if reader.at_end:
                self.process.mark("reader_ended_with_a_sealed_log")
                sealed = self._history(reader).manifest
                assert sealed.sealed, f"{self.process.name} ended, and the log is not sealed"
                assert reader.position >= sealed.sealed_end, f"ended at {reader.position}"
                await asyncio.sleep(RETRY_S)
                return self.finishing
            if batches and not self.finishing and self._random.random() < self._profile.restarts:
                self.process.mark("reader_restarted")
                return False
            try:
                records = await reader.read_batch(timeout_s=POLL_S)
            except Trimmed as error:
                self.process.mark("reader_trimmed")
                self._failed(error)
                if self.reading is not None:
                    self.reading.trimmed_at = error.first_offset
                return False
            except NoSuchLog as error:
                self.process.mark("reader_lost_its_log")
                self._failed(error)
                return self.finishing
            except LogError as error:
                self._failed(error)
                self._stop(reader, start, f"{type(error).__name__}: {error}")
                raise
            if records:
                batches += 1
                history = self._history(reader)
                if self.reading is None:
                    self.reading = self.process.world.logs.reads(
                        history.incarnation, self.process.name, start, from_txid=self._from_txid
                    )
                for record in records:
                    seen = Seen(
                        self.process.name, record.offset, record.dlsn, record.txid, record.value
                    )
                    self.process.world.logs.read(history.incarnation, self.reading, seen)
                self.process.note(f"reads {self.name} {records[0].offset}..{records[-1].offset}")
                self.process.mark("records_read")
                await asyncio.sleep(self._random.choice(self._profile.reader_pauses_s))
                if self._random.random() < BARRIERS:
                    await self._ask(reader)

    async def _ask(self, reader: Reader) -> None:
        """Ask for a barrier; the reader must come to it."""
        history = self._history(reader)
        acknowledged = history.acknowledged_end
        try:
            end = await reader.barrier(timeout_s=BARRIER_S)
        except LogError as error:
            if not error.retryable and not isinstance(error, NoSuchLog):
                raise
            self._failed(error)
            return
        self.process.mark("barrier_reached")
        self.process.note(f"barrier of {self.name}: {end}")
        logs = self.process.world.logs
        logs.barrier(history.incarnation, self.process.name, acknowledged, end)
        self._barrier = max(self._barrier, end)

    def _end(self, reader: Reader) -> int:
        """Return the end of the log that is read, whatever its name is by now."""
        logs = self.process.world.logs
        history = logs.current.get(self.name)
        if reader.incarnation is not None:
            history = logs.histories[reader.incarnation]
        return 0 if history is None else history.end

    def _stop(self, reader: Reader, start: int, failure: str) -> None:
        history = self._history(reader)
        logs = self.process.world.logs
        reading = self.reading or logs.reads(history.incarnation, self.process.name, start)
        logs.stopped(history.incarnation, reading, failure=failure)

    def _history(self, reader: Reader) -> LogHistory:
        incarnation = reader._source._cursor._incarnation
        assert incarnation is not None, "a reader with records knows which log it reads"
        return self.process.world.logs.histories[incarnation]

    def _start(self) -> Start:
        """Draw where to begin: anywhere that makes sense, and a bit beyond."""
        history = self.process.world.logs.current.get(self.name)
        lot = self._random.randrange(6)
        if lot == 0 or history is None:
            return "start"
        if lot == 1:
            return "end"
        known = [seen for seen in history.seen if seen.offset >= history.manifest.trim_offset]
        if not known or lot == 2:
            return max(0, self._random.randrange(history.end + 2))
        seen = self._random.choice(known)
        if lot == 3 and seen.txid is not None:
            return Txid(seen.txid + self._random.choice((0, 0, 1)))
        return seen.dlsn if lot == 4 else seen.offset

    def _check_range(self, refused: int, seen_end: int) -> None:
        """A start may be out of range only beyond all that was known to be committed before."""
        assert refused > seen_end, f"offset {refused} was refused, and {seen_end} is the end"

    def _failed(self, error: LogError) -> None:
        self.process.note(f"{self.name}: {error}")
        self.process.mark(f"reader_{type(error).__name__}")
