"""One journal being written: records queue, and one commit makes all that queued durable.

Invariants:
    a ticket is reported durable only after the file that holds its record was synced (rule 59)
    a file is begun only after the one before it was synced to its end
    after a failed write or sync nothing is ever reported durable again (rule 60)
    space is taken before anything is written into it: a full disk is met between batches
    a file of an earlier life gets its new name after its new header, with a new epoch, was synced
    a file becomes a spare only after the mark that has left it behind is durable
    a spare's name is durable before it is taken
    there are at most `files_max` spares, and none on a disk that is well filled or was found full

While the disk is full, a batch that does not fit into what is left of the preallocated space
waits; it is neither lost nor acknowledged. `is_full` says so before that happens: it is set
when the file could not be extended, with seven eighths of `preallocate_bytes` still free. Before
that, the files that were kept to be written again go.

Spares are kept because blocks that were written before need no note of the file system that they
are in use, so a sync writes data alone; that is all that they are good for. What is in them does
not matter, not even whether it is whole: who takes one gives it a header with an epoch that nobody
could know.

`queue` only appends to a list, under the lock of `bookie.journal.journals`; `commit` blocks, and is
called by one thread at a time. `take` and `give_up` of the spares are the journal thread's, `keep`,
`trim` and `give_up` the sync thread's.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from bookie.disk.port import Disk, DiskFile, DiskFull
from bookie.errors import JournalFailed
from bookie.journal.format import (
    DIRECTORY,
    FILE_HEADER_BYTES,
    MARK_PATH,
    SPARE_SUFFIX,
    FileHeader,
    JournalMark,
    Record,
    RecordKind,
    decode_file_header,
    encode_file_header,
    encode_mark,
    encode_record,
    journal_of,
    path_of,
    size_of,
    spare_of,
    tag_of,
)
from ledger.metering.declaration import BYTES, COUNTS, SECONDS, Buckets

_SYNC_S: Final = (0.0001, 0.0002, *SECONDS)
USED_SHARE_MAX: Final = 0.8
"""From here on the disk's space is worth more than faster syncs."""
TEMPORARY_SUFFIX: Final = ".tmp"
_KEPT_BYTES_MAX: Final = 1024 * 1024
"""Synced and still in the system's memory. A journal is read only at a start; the memory that
it would fill is missed by those who write next."""
HEADROOM: Final = 7 / 8
"""Of `preallocate_bytes`: so much space there is for what queues, until the disk is full."""


class JournalCounts:
    """Written by the thread of the journal."""

    def __init__(self) -> None:
        self.records = Buckets(COUNTS)
        """Records of each group."""
        self.bytes = Buckets(BYTES)
        self.sync_s = Buckets(_SYNC_S)
        """How long each group waited for the disk."""

    def synced(self, records: int, size_bytes: int, took_s: float) -> None:
        """Take note of one group."""
        for buckets, value in (
            (self.records, records),
            (self.bytes, size_bytes),
            (self.sync_s, took_s),
        ):
            buckets.counts[bisect_left(buckets.bounds, value)] += 1
            buckets.total += value


class Spares:
    """Those of one journal; begins with what an earlier process left."""

    def __init__(self, disk: Disk, files_max: int) -> None:
        self._disk = disk
        self._files_max = files_max
        self._lock = threading.Lock()
        self._paths = [
            f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if name.endswith(SPARE_SUFFIX)
        ]

    @property
    def paths(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._paths)

    def take(self) -> str | None:
        """Return the path of one, which is the caller's from now on; None if there is none."""
        with self._lock:
            return self._paths.pop() if self._paths else None

    def keep(self, journal_ids: Sequence[int]) -> None:
        """Let these journal files be spares, or remove those that are too many."""
        if not journal_ids:
            return
        kept: list[str] = []
        room = self._allowed() - len(self.paths)
        for journal_id in journal_ids:
            if len(kept) < room:
                kept.append(spare_of(journal_id))
                self._disk.rename(path_of(journal_id), kept[-1])
            else:
                self._disk.remove(path_of(journal_id))
        self._disk.sync_directory(DIRECTORY)
        with self._lock:
            self._paths += kept

    def trim(self) -> None:
        """Remove those that are too many."""
        self._remove_beyond(self._allowed())

    def give_up(self) -> bool:
        """Remove all, as there is no space; return whether there was any."""
        return self._remove_beyond(0)

    def _allowed(self) -> int:
        try:
            return self._files_max if self._disk.usage().used_share < USED_SHARE_MAX else 0
        except OSError:  # a disk that cannot be asked
            return 0

    def _remove_beyond(self, count: int) -> bool:
        with self._lock:
            surplus = self._paths[count:]
            del self._paths[count:]
        for path in surplus:
            with suppress(FileNotFoundError):  # somebody needed the space
                self._disk.remove(path)
        if surplus:
            self._disk.sync_directory(DIRECTORY)
        return bool(surplus)


class JournalWriter:
    """See the module's docstring. Requires that the file of *header* was made by `begin`."""

    def __init__(
        self,
        disk: Disk,
        header: FileHeader,
        *,
        file_bytes_max: int,
        preallocate_bytes: int,
        block_bytes: int,
        spares: Spares,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._disk = disk
        self._spares = spares
        self._entropy = entropy
        self._file_bytes_max = file_bytes_max
        self._preallocate_bytes = preallocate_bytes
        self._block_bytes = block_bytes
        self._zeros = memoryview(bytes(block_bytes))
        self._header = header
        self._file: DiskFile = disk.open(path_of(header.journal_id))
        self._allocated = self._file.size()
        self.size_synced = self._allocated
        """So long the file is at least, durably."""
        self._end = self._kept_from = FILE_HEADER_BYTES
        self._failure: JournalFailed | None = None
        self._lock = threading.Lock()
        self._queue: list[Record] = []
        self._first_queued = self._first_writing = 0
        self._queued_bytes = self._writing_bytes = 0
        self.is_full = False
        """Whether the disk has no room for more than is preallocated."""
        self.on_full: Callable[[], None] = lambda: None
        """Called when that has become so, on the thread that commits."""
        self.position = JournalMark(header.journal_id, FILE_HEADER_BYTES)
        """Every record before this place is durable."""
        self.counts = JournalCounts()

    def take_space(self) -> None:
        """Take space ahead; for the start, as a file is begun without any, when those before it are
        still there. If there is too little, take what fences need. Raises `OSError`."""
        self._extend(self._end)
        if self.is_full:
            with suppress(DiskFull):
                size_bytes = self._end + int((1 - HEADROOM) * self._preallocate_bytes)
                self._file.preallocate(size_bytes)
                self._allocated = max(self._allocated, size_bytes)
        self._file.sync()
        self.size_synced = self._allocated

    def queue(self, record: Record, ticket: int) -> None:
        """Queue *record* under *ticket*, which is higher than all before."""
        with self._lock:
            self._first_queued = self._first_queued or ticket
            self._queue.append(record)
            self._queued_bytes += size_of(record)

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much more may be queued and still fits into the space that is taken, with
        an eighth of it left."""
        with self._lock:
            left_bytes = self._allocated - self._end - self._queued_bytes - self._writing_bytes
        return left_bytes - size_bytes >= self._preallocate_bytes // 8

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for a commit, or are being written."""
        return self._queued_bytes + self._writing_bytes

    def first_pending(self) -> int:
        """Return the lowest ticket that is not durable, 0 if there is none."""
        with self._lock:
            return self._first_writing or self._first_queued

    def commit(self) -> None:
        """Write and sync what has queued, unless there is no space for it.

        Raises `JournalFailed`, then and ever after, if the disk failed."""
        if self._failure is not None:
            raise self._failure
        with self._lock:
            queue, self._queue = self._queue, []
            self._first_writing, self._first_queued = self._first_queued, 0
            self._writing_bytes, self._queued_bytes = self._queued_bytes, 0
        try:
            self._write(queue)
        except DiskFull:
            self._found_full()
            with self._lock:
                self._queue[:0] = queue
                self._queued_bytes += self._writing_bytes
                self._first_queued = self._first_writing
        except OSError as error:
            path = self._disk.describe(path_of(self._header.journal_id))
            self._failure = JournalFailed(f"journal {path}", str(error))
            raise self._failure from error
        with self._lock:
            self._first_writing = self._writing_bytes = 0

    def leave_behind(self, journal_id: int) -> None:
        """Keep or remove the files before this one. Requires that the mark is beyond them,
        durably."""
        self._spares.keep([old for old in journal_ids(self._disk) if old < journal_id])

    def close(self) -> None:
        self._file.close()

    def _write(self, queue: list[Record]) -> None:
        """Raises `DiskFull`; then it can be done again."""
        if self._end >= self._file_bytes_max:
            self._roll()
        header, start = self._header, self._end
        room_bytes = max(0, self.size_synced - start)
        pieces: list[bytes | memoryview] = []
        for record in queue:
            pieces += encode_record(record, header.epoch, start, room_bytes=room_bytes)
        end = start + sum(map(len, pieces))
        if self._allocated - end < HEADROOM * self._preallocate_bytes or self.is_full:
            self._extend(end)
        if pieces:
            if header.is_recycled:
                # Where a file was written before, the system would read what is there to write a
                # part of a block.
                pieces.append(self._zeros[: min(-end % self._block_bytes, self._allocated - end)])
            began = time.perf_counter()
            self._file.write(pieces, start)
            self._file.sync()
            self.counts.synced(len(queue), end - start, time.perf_counter() - began)
            self._end, self.size_synced = end, self._allocated
            if end - self._kept_from >= _KEPT_BYTES_MAX:
                self._file.forget(self._kept_from, end)
                self._kept_from = end
            self.position = JournalMark(header.journal_id, end)

    def _extend(self, end: int) -> None:
        """Take space ahead of what is to be written up to *end*. Raises `DiskFull` if there is
        not even enough for that."""
        size_bytes = end + self._preallocate_bytes
        try:
            self._file.preallocate(size_bytes)
        except DiskFull:
            if self._spares.give_up():
                self._extend(end)
                return
            self._found_full()
            if end > self._allocated:
                raise
        else:
            self._allocated = max(self._allocated, size_bytes)
            self.is_full = False

    def _found_full(self) -> None:
        self.is_full = True
        self.on_full()

    def _roll(self) -> None:
        """Go on in a new file, if there is space for one. All of the present one is synced."""
        old = self._header
        try:
            self._header = begin(
                self._disk,
                old.journal_id + 1,
                previous=JournalMark(old.journal_id, self._end),
                preallocate_bytes=self._preallocate_bytes,
                entropy=self._entropy,
                spare=self._spares.take(),
            )
        except DiskFull:
            self._found_full()
            return
        with suppress(DiskFull):  # then the loss of the new one could pass unseen for a while
            self._announce_next(old)
        self._file.close()
        self._file = self._disk.open(path_of(self._header.journal_id))
        self._allocated = self.size_synced = self._file.size()
        self._end = self._kept_from = FILE_HEADER_BYTES

    def _announce_next(self, old: FileHeader) -> None:
        """Let the old file say that it is not the newest, before anything is in the new one."""
        record = Record(RecordKind.NEXT, 0, b"")
        self._file.write(encode_record(record, old.epoch, self._end), self._end)
        self._file.sync()


def begin(
    disk: Disk,
    journal_id: int,
    *,
    previous: JournalMark | None,
    preallocate_bytes: int,
    entropy: Callable[[int], bytes],
    is_counted: bool = True,
    spare: str | None = None,
) -> FileHeader:
    """Make the file *journal_id*, durable and whole or not at all.

    *is_counted*: whether there is a census, durably. *spare* is a file to be written again; it
    goes if there is no space for what it lacks, or is gone already."""
    header = FileHeader(
        journal_id,
        int.from_bytes(entropy(8), "little"),
        previous.journal_id if previous else 0,
        previous.offset if previous else 0,
        preallocate_bytes,
        is_counted,
    )
    if spare is not None:
        try:
            return _recycle(disk, spare, header)
        except (DiskFull, FileNotFoundError):
            with suppress(FileNotFoundError):
                disk.remove(spare)
    temporary = path_of(journal_id) + TEMPORARY_SUFFIX
    file = disk.create(temporary)
    try:
        file.write([encode_file_header(header)], 0)
        file.preallocate(FILE_HEADER_BYTES + preallocate_bytes)
        file.sync()
    except DiskFull:
        disk.remove(temporary)  # it may hold what space there was
        raise
    finally:
        file.close()
    disk.rename(temporary, path_of(journal_id))
    disk.sync_directory(DIRECTORY)
    return header


def _recycle(disk: Disk, spare: str, header: FileHeader) -> FileHeader:
    """Let *spare* be the file of *header*: nothing of its earlier life has the new epoch."""
    file = disk.open(spare)
    try:
        size_bytes = max(file.size(), FILE_HEADER_BYTES + header.allocated_bytes)
        header = replace(header, allocated_bytes=size_bytes - FILE_HEADER_BYTES, is_recycled=True)
        file.write([encode_file_header(header)], 0)
        file.preallocate(size_bytes)  # a copy may have holes
        if header.allocated_bytes:
            # A sync that failed may have left a size in memory that is not on the disk.
            file.write([bytes(1)], size_bytes - 1)
        file.sync()
    finally:
        file.close()
    disk.rename(spare, path_of(header.journal_id))
    disk.sync_directory(DIRECTORY)
    return header


def write_mark(disk: Disk, mark: JournalMark) -> None:
    """Replace the mark, atomically and durably. Raises `JournalDamaged` if the file that it names
    has no header."""
    path = path_of(mark.journal_id)
    named = disk.open(path)
    try:
        header = decode_file_header(named.read(FILE_HEADER_BYTES, 0), disk.describe(path))
    finally:
        named.close()
    temporary = MARK_PATH + TEMPORARY_SUFFIX
    file = disk.create(temporary)
    try:
        file.write([encode_mark(mark, tag_of(header.epoch))], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, MARK_PATH)
    disk.sync_directory(DIRECTORY)


def journal_ids(disk: Disk) -> list[int]:
    """Return the ids of the files that are there, ascending. Other names are passed over: it is
    a start that refuses them."""
    names = disk.list(DIRECTORY)
    return [journal_id for name in names if (journal_id := journal_of(name)) is not None]
