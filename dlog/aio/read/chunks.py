"""Executes `protocol.cursor`: reads a log in chunks, across segments, through trouble; or exactly
the records of an offset range.

A chunk is one batch and which of its records to take; nothing is done per record. Ledgers are
opened without recovery, so the writer is never disturbed. While one segment is read, the next
one's ledger is opened already and its first entries are fetched. The cursor is stepped as far as
somebody reads, and no further.

No reader stops in silence: what it waits for it also checks by itself, should no notice come: a
ledger in each long poll, the manifest after `IDLE_CHECK_S`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final, assert_never

from dlog import metrics, spans
from dlog.aio.port import LedgerEntry, Ledgers, LedgerTail
from dlog.aio.read.segments import find_place, learn_end, open_segment
from dlog.aio.store import ManifestNode
from dlog.archive.segment_index import view_at
from dlog.chunk import Chunk
from dlog.encryption.ledgers import Opener
from dlog.errors import DamagedBatch, DamagedLog, NoSuchLog, NotThereYet, ObjectLost
from dlog.manifest import Manifest, Segment
from dlog.position import Place
from dlog.protocol import cursor as protocol
from dlog.protocol.seek import Index
from dlog.recordbatch import Flag, RecordBatch, parse_header
from ledger.errors import LogError, NoSuchLedger
from ledger.ids import EntryId, LedgerId
from ledger.log_events import get_logger
from ledger.protocol.common import TimePassed

READ_BYTES_MAX: Final = 2560 * 1024
"""Four full entries with their columns: what a read costs beside its bytes is shared by them."""
DECODED_SHARE_MAX: Final = 3
"""How many times more than one read may bring is decompressed at once, apart from one entry."""
WAIT_S: Final = 2.0
"""How long one read waits for new entries, or a wait for the manifest lasts."""
IDLE_CHECK_S: Final = 30.0
"""After so long without news the manifest is read again, in case a watch was lost."""
LOOK_S: Final = 0.5
"""How long entries wait for the manifest when it may have changed."""
LOOK_AGAIN_S: Final = 5.0
"""How long after the manifest could not be read it is tried again."""
_Opened = tuple[LedgerTail, Sequence[LedgerEntry]]
PATIENCE_S: Final = 30.0
"""How long a bounded read waits for a record that is committed somewhere, it was said."""
KEPT_MAX: Final = 16
"""Readers that wait for the next range of their log; each has watches at the metadata store."""
_log = get_logger(__name__)


class ChunkReader:
    """Reads from *start* to *stop*. Used by one task at a time; close it.

    *patience_s*: how long a read waits for its first chunk before it raises; None: for ever."""

    def __init__(
        self,
        ledgers: Ledgers,
        node: ManifestNode,
        start: int,
        *,
        stop: int | None = None,
        incarnation: str | None = None,
        patience_s: float | None = None,
        wait_s: float | None = None,
        read_bytes_max: int | None = None,
        as_stored: bool = False,
    ) -> None:
        """*as_stored*: batches of Kafka's are not decoded; whoever looks at a column of one then
        finds its damage."""
        self._as_stored = as_stored
        self._ledgers = ledgers
        self._node = node
        self._cursor = protocol.Cursor(node.log, start, stop=stop, incarnation=incarnation)
        if incarnation is not None:
            node.follow(incarnation)
        self._wanted: protocol.Request | protocol.Finish | protocol.Fail | None = (
            protocol.FetchManifest()
        )
        """What the cursor wants next; None: to be woken at its deadline."""
        self._trouble = ""
        """What it was interrupted by last."""
        self._patience_s = patience_s
        self._wait_s = WAIT_S if wait_s is None else wait_s
        self.read_bytes_max = read_bytes_max or READ_BYTES_MAX
        """How much one read may bring, apart from one entry; never more than `READ_BYTES_MAX`."""
        self._loop = asyncio.get_running_loop()
        self._asked_at = self._progress_at = self._loop.time()
        """When somebody began to wait for a chunk, and when there was one last."""
        self._tail: LedgerTail | None = None
        self._confirmed: tuple[LedgerId, EntryId] | None = None
        """What somebody else learned of a ledger: entries up to this one are confirmed."""
        self._opener: Opener | None = None
        """Of `_tail`'s ledger, once something of it was read."""
        self._batches: dict[int, RecordBatch] = {}
        """Decoded entries that the cursor knows of and has not delivered yet."""
        self._ahead: tuple[LedgerId, asyncio.Task[_Opened]] | None = None
        """The next segment's ledger, being opened while the present one is read."""
        self._fetched: Sequence[LedgerEntry] = ()
        """Entries of `_tail`'s ledger that were fetched and not decoded yet."""
        self._looked_at = self._loop.time()
        """When the manifest was read last."""
        self._look_at = self._looked_at
        """When it may be read again, after trouble."""
        self._looking: asyncio.Task[protocol.CursorEvent] | None = None
        """Reads the manifest beside the entries."""
        self._changed = asyncio.Event()
        """Set when the manifest may have changed since it was read."""
        self.at_tail = False
        """Whether nothing more is confirmed than was read, as far as this knows."""
        self._sees_end = True
        """Whether the manifest that the cursor has seen lists the log's end."""
        self._watching = self._loop.create_task(self._watch())

    @property
    def incarnation(self) -> str | None:
        """Which life of the log is read; None before anything was looked at."""
        return self._cursor.incarnation

    async def read(self) -> list[Chunk]:
        """Return the next chunks, in order; empty once the stop was reached.

        Raises `Trimmed`, `NoSuchLog`, `DamagedLog`, and what is not retryable."""
        self._asked_at = self._loop.time()
        while True:
            match self._wanted:
                case protocol.Finish():
                    return []
                case protocol.Fail(error):
                    raise error
                case None:
                    event: protocol.CursorEvent = await self._deadline()
                case request:
                    event = await self._event(request)
            chunks = self._step(event)
            if chunks:
                return chunks

    def learn_confirmed(self, ledger_id: LedgerId, last: EntryId) -> None:
        """Let entries up to *last* be read, now or when the ledger is opened: they are confirmed,
        and bookies may forget that."""
        self._confirmed = ledger_id, last

    def go_on(self, stop: int) -> None:
        """Let the next reads go on up to *stop*. Requires that the last one returned nothing."""
        self._step(protocol.StopMoved(stop))

    def _step(self, event: protocol.CursorEvent) -> list[Chunk]:
        chunks: list[Chunk] = []
        self._wanted = None
        for effect in self._cursor.step(event, now=self._loop.time()):
            if isinstance(effect, protocol.Deliver):
                chunks.append(self._chunk(effect))
            else:
                self._wanted = effect
        self._batches.clear()
        if chunks:
            self._progress_at = self._loop.time()
        return chunks

    async def close(self) -> None:
        tasks = [self._watching] if self._looking is None else [self._watching, self._looking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._leave()
        await self._forget_ahead()

    async def _deadline(self) -> protocol.CursorEvent:
        deadline = self._cursor.deadline()
        assert deadline is not None, "a cursor wants something, or waits"
        metrics.READ_INTERRUPTIONS.add()
        delay_s = max(deadline - self._loop.time(), 0.0)
        _log.warning(
            "read_interrupted", log=self._node.log, error=self._trouble, retry_in_s=delay_s
        )
        await asyncio.sleep(delay_s)
        return TimePassed()

    async def _event(self, request: protocol.Request) -> protocol.CursorEvent:
        try:
            return await self._execute(request)
        except (NoSuchLedger, ObjectLost):
            await self._leave()
            return protocol.LedgerMissing()
        except LogError as error:
            if self._impatient():
                raise
            self._trouble = str(error)
            await self._leave()
            return protocol.Interrupted(error)

    async def _execute(self, request: protocol.Request) -> protocol.CursorEvent:
        match request:
            case protocol.FetchManifest():
                self._drop_news()
                return await self._manifest()
            case protocol.AwaitManifest():
                self._check_patience()
                self.at_tail = True
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._wait_s):
                        await self._changed.wait()
                self._drop_news()
                return await self._manifest()
            case protocol.FindPlace():
                tail = await self._enter(request.segment)
                found = await find_place(tail, Index(request.index))
                return protocol.PlaceFound(found.entry, found.base_index)
            case protocol.ReadEntries():
                return await self._news() or await self._entries(request)
            case protocol.FindEnd():
                tail = await self._enter(request.segment)
                end = await learn_end(self._ledgers, tail, request.later)
                return protocol.EndFound(end)
            case _:
                assert_never(request)

    async def _news(self) -> protocol.CursorEvent | None:
        """Return the manifest if it may have changed; but read on while it cannot be read."""
        now = self._loop.time()
        if self._looking is None:
            idle_s = now - max(self._looked_at, self._progress_at)
            if now < self._look_at or not (self._changed.is_set() or idle_s > IDLE_CHECK_S):
                return None
            self._looking = self._loop.create_task(self._manifest())
            await asyncio.wait({self._looking}, timeout=LOOK_S)
        if not self._looking.done():
            return None
        looking, self._looking = self._looking, None
        try:
            return looking.result()
        except LogError as error:
            if not error.retryable:
                raise
            self._changed.set()
            self._look_at = now + LOOK_AGAIN_S
            return None

    def _drop_news(self) -> None:
        """Forget a reading of the manifest that is older than the one that begins now."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            looking.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _manifest(self) -> protocol.CursorEvent:
        self._changed.clear()
        self._looked_at = self._loop.time()
        seen: Manifest | None = None
        while True:
            try:
                manifest, _ = await self._node.read()
            except NoSuchLog:
                return protocol.ManifestSeen(None)
            self._node.follow(self._cursor.incarnation or manifest.incarnation)
            try:
                view = await view_at(self._node.log, manifest, self._cursor.next_offset)
            except ObjectLost as error:  # or the index was replaced since
                if seen is not None and seen.runs == manifest.runs:
                    return protocol.Interrupted(error)
                seen = manifest
                continue
            self._sees_end = view is manifest
            return protocol.ManifestSeen(view)

    async def _entries(self, effect: protocol.ReadEntries) -> protocol.CursorEvent:
        tail = await self._enter(effect.segment)
        await self._look_ahead(self._cursor.later)
        entries, self._fetched = self._fetched, ()
        if not entries or entries[0].entry_id != effect.first:
            self._look_for_tail(tail, effect.first - 1)
            with spans.span("dlog.read", log=self._node.log, ledger=tail.ledger_id) as span:
                entries = await tail.read_some(
                    effect.first, bytes_max=self._bytes_max(), wait_s=self._wait_s
                )
                spans.describe(span, first_entry=effect.first, entries=len(entries))
        if not entries:
            if tail.last_entry is not None and effect.first > tail.last_entry:
                return protocol.SegmentEnded()
            self._check_patience()
            return protocol.NothingNew()
        self._look_for_tail(tail, entries[-1].entry_id)
        opener = self._opener or await self._opener_of(tail)
        read: list[tuple[int, int, int]] = []
        room_bytes = DECODED_SHARE_MAX * self._bytes_max()
        for at, entry in enumerate(entries):
            try:
                room_bytes -= parse_header(entry.payload).body_bytes
                if read and room_bytes < 0:
                    self._fetched = entries[at:]
                    break
                batch = opener.decode(entry.entry_id, entry.payload)
                if not self._as_stored:
                    batch.decode()
                    room_bytes -= max(0, batch.decoded_bytes - batch.header.body_bytes)
            except DamagedBatch as error:
                if read:  # what is before it is delivered first
                    self._fetched = entries[at:]
                    break
                raise self._damage(effect.segment, entry, error) from error
            self._batches[entry.entry_id] = batch
            read.append((entry.entry_id, batch.header.base_index, batch.count))
        return protocol.BatchesRead(read)

    def _damage(self, segment: Segment, entry: LedgerEntry, error: DamagedBatch) -> DamagedLog:
        """Return the error of a batch that does not decode. One of Kafka's may be what its producer
        sent: then it is alone, and the records around it can be read."""
        reason = f"entry {entry.entry_id} of ledger {segment.ledger_id}: {error}"
        with suppress(DamagedBatch):
            header = parse_header(entry.payload)
            if header.flags & Flag.KAFKA and segment.first_offset is not None:
                first, end = header.base_index, header.end_index
                reason += (
                    f" (offsets {segment.first_offset + first} to {segment.first_offset + end - 1}"
                    f" are of a batch that a producer of Kafka encoded; read on from offset "
                    f"{segment.first_offset + end})"
                )
        return DamagedLog(self._node.log, reason)

    async def _opener_of(self, tail: LedgerTail) -> Opener:
        incarnation = self._cursor.incarnation or ""
        try:
            opener = await Opener.of(tail.ledger_id, tail.custom, incarnation)
        except DamagedBatch as error:
            raise DamagedLog(self._node.log, f"ledger {tail.ledger_id}: {error.reason}") from error
        self._opener = opener
        return opener

    def _look_for_tail(self, tail: LedgerTail, read: int) -> None:
        is_last = self._sees_end and self._cursor.later is None
        self.at_tail = is_last and read >= tail.last_add_confirmed

    def _chunk(self, effect: protocol.Deliver) -> Chunk:
        place = Place(effect.segment, effect.entry, effect.first_offset)
        return Chunk(self._batches[effect.entry], place, effect.skip, effect.take)

    async def _enter(self, segment: Segment) -> LedgerTail:
        """Return the reader of the segment's ledger."""
        tail = await self._open(segment)
        if self._confirmed is not None and self._confirmed[0] == tail.ledger_id:
            tail.learn_confirmed(self._confirmed[1])
        return tail

    async def _open(self, segment: Segment) -> LedgerTail:
        ledger_id = segment.ledger_id
        if self._tail is None or self._tail.ledger_id != ledger_id:
            await self._leave()
            if self._ahead is not None and self._ahead[0] == ledger_id:
                with suppress(LogError):  # then opening it now says what is wrong
                    tail, self._fetched = await asyncio.shield(self._ahead[1])
                    self._tail, self._ahead = tail, None
                    return tail
                self._ahead = None
            self._tail = await open_segment(self._ledgers, self._node.log, segment)
        return self._tail

    async def _leave(self) -> None:
        tail, self._tail, self._fetched = self._tail, None, ()
        self._opener = None
        if tail is not None:
            await tail.close()

    async def _look_ahead(self, later: Segment | None) -> None:
        """Begin to open the segment that is read next."""
        if later is None or (self._ahead is not None and self._ahead[0] == later.ledger_id):
            return
        await self._forget_ahead()
        self._ahead = later.ledger_id, self._loop.create_task(self._open_ahead(later))

    async def _open_ahead(self, segment: Segment) -> _Opened:
        tail = await open_segment(self._ledgers, self._node.log, segment)
        try:
            return tail, await tail.read_some(0, bytes_max=self._bytes_max())
        except LogError:
            return tail, ()
        except BaseException:
            await tail.close()
            raise

    async def _forget_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        ahead[1].cancel()
        (opened,) = await asyncio.gather(ahead[1], return_exceptions=True)
        if not isinstance(opened, BaseException):
            await opened[0].close()

    def _bytes_max(self) -> int:
        return min(READ_BYTES_MAX, self.read_bytes_max)

    def _impatient(self) -> bool:
        if self._patience_s is None:
            return False
        return self._loop.time() - self._asked_at > self._patience_s

    def _check_patience(self) -> None:
        if self._impatient():
            raise NotThereYet(self._node.log, self._cursor.next_offset, self._patience_s or 0.0)

    async def _watch(self) -> None:
        while True:
            watch = self._node.watch()
            try:
                while True:
                    await watch.changed()
                    self._changed.set()
            except LogError as error:
                _log.warning("watch_interrupted", log=self._node.log, error=str(error))
                await asyncio.sleep(self._wait_s)
                self._changed.set()  # what was missed meanwhile
            finally:
                watch.close()


async def read_range(
    ledgers: Ledgers,
    log: str,
    start: int,
    end: int,
    *,
    incarnation: str | None = None,
    patience_s: float = PATIENCE_S,
) -> AsyncIterator[Chunk]:
    """Yield the records from *start* up to, not with, *end*, all of them and in order.

    Requires that they are committed (see `dlog.aio.read.tails`). With *incarnation* a log that was
    deleted and re-created is not read. Raises `Trimmed`, `NoSuchLog`, `NotThereYet`,
    `DamagedLog`, or what reading a ledger raises; then not all were yielded."""
    if start >= end:
        return
    reader = _reader(ledgers, log, start, end, incarnation, patience_s)
    try:
        while chunks := await reader.read():
            for chunk in chunks:
                yield chunk
    finally:
        await reader.close()


class RangeReaders:
    """Reads ranges as `read_range`; who follows a log range by range finds its place kept.

    To find a place costs as many round trips as the segment's number of entries has bits. So
    the reader of a range that was read to its end is kept for the one that begins there."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._kept: dict[tuple[str, str, int], ChunkReader] = {}
        """By log, incarnation and next offset, in the order in which they were used."""

    async def read(
        self, log: str, start: int, end: int, *, incarnation: str
    ) -> AsyncIterator[list[Chunk]]:
        """Yield what `read_range` does, as it was read, and raise the same."""
        if start >= end:
            return
        reader = self._kept.pop((log, incarnation, start), None)
        if reader is not None:
            reader.go_on(end)
        else:
            reader = _reader(self._ledgers, log, start, end, incarnation, PATIENCE_S)
        was_read = False
        try:
            while chunks := await reader.read():
                yield chunks
            was_read = True
        finally:
            if was_read:
                await self._keep((log, incarnation, end), reader)
            else:
                await reader.close()

    async def close(self) -> None:
        while self._kept:
            await self._kept.pop(next(iter(self._kept))).close()

    async def _keep(self, place: tuple[str, str, int], reader: ChunkReader) -> None:
        replaced = self._kept.pop(place, None)
        self._kept[place] = reader
        if replaced is None and len(self._kept) > KEPT_MAX:
            replaced = self._kept.pop(next(iter(self._kept)))
        if replaced is not None:
            await replaced.close()


def _reader(
    ledgers: Ledgers, log: str, start: int, end: int, incarnation: str | None, patience_s: float
) -> ChunkReader:
    return ChunkReader(
        ledgers,
        ManifestNode(ledgers.store, log),
        start,
        stop=end,
        incarnation=incarnation,
        patience_s=patience_s,
    )
