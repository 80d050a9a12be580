"""The journal being written: records queue, and one commit makes all that queued durable.

Invariants:
    a ticket is reported durable only after the file that holds its record was synced (59)
    a file is begun only after the one before it was synced to its end
    after a failed write or sync nothing is ever reported durable again (60)
`add` may be called from any thread and only appends to a list; `commit` blocks, and is called
by one thread at a time.
"""

import threading
from collections.abc import Callable
from typing import Final

from bookie.disk import Disk, DiskFile
from bookie.errors import JournalFailed
from bookie.journal.format import (
    DIRECTORY,
    FILE_HEADER_BYTES,
    FILE_SUFFIX,
    MARK_PATH,
    FileHeader,
    Mark,
    Record,
    encode_file_header,
    encode_mark,
    encode_record,
    path_of,
)

TEMPORARY_SUFFIX: Final = ".tmp"


class JournalWriter:
    """See the module's docstring. Requires that the file of *header* was made by `begin`."""

    def __init__(
        self,
        disk: Disk,
        header: FileHeader,
        *,
        file_bytes_max: int,
        preallocate_bytes: int,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._disk = disk
        self._entropy = entropy
        self._file_bytes_max = file_bytes_max
        self._preallocate_bytes = preallocate_bytes
        self._header = header
        self._file: DiskFile = disk.open(path_of(header.journal_id))
        self._allocated = self._file.size()
        self._end = FILE_HEADER_BYTES
        self._failure: JournalFailed | None = None
        self._lock = threading.Lock()
        self._queue: list[Record] = []
        self._ticket = 0
        self.durable = 0
        """The highest durable ticket."""
        self.position = Mark(header.journal_id, FILE_HEADER_BYTES)
        """Every record before this place is durable."""

    @property
    def last_ticket(self) -> int:
        """The last ticket that was given; when it is durable, everything queued so far is."""
        return self._ticket

    def add(self, record: Record) -> int:
        """Queue *record*; return its ticket."""
        with self._lock:
            self._queue.append(record)
            self._ticket += 1
            return self._ticket

    def has_pending(self) -> bool:
        return self.durable < self._ticket

    def commit(self) -> int:
        """Write and sync what has queued. Return the highest durable ticket.

        Raises `JournalFailed`, then and ever after, if the disk did."""
        if self._failure is not None:
            raise self._failure
        with self._lock:
            queue, self._queue = self._queue, []
            ticket = self._ticket
        if queue:
            try:
                self._write(queue)
            except OSError as error:
                path = self._disk.describe(path_of(self._header.journal_id))
                self._failure = JournalFailed(f"journal {path}", str(error))
                raise self._failure from error
        self.durable = ticket
        return ticket

    def remove_before(self, journal_id: int) -> None:
        """Remove the files that the mark has left behind."""
        removed = False
        for old in journal_ids(self._disk):
            if old < journal_id:
                self._disk.remove(path_of(old))
                removed = True
        if removed:
            self._disk.sync_directory(DIRECTORY)

    def close(self) -> None:
        self._file.close()

    def _write(self, queue: list[Record]) -> None:
        if self._end >= self._file_bytes_max:
            self._roll()
        pieces = [
            piece
            for record in queue
            for piece in encode_record(record, self._header.epoch, self._end)
        ]
        end = self._end + sum(map(len, pieces))
        if end > self._allocated:
            self._allocated = end + self._preallocate_bytes
            self._file.preallocate(self._allocated)
        self._file.write(pieces, self._end)
        self._file.sync()
        self._end = end
        self.position = Mark(self._header.journal_id, end)

    def _roll(self) -> None:
        """Go on in a new file. All of the present one is synced."""
        old = self._header
        self._header = begin(
            self._disk,
            old.journal_id + 1,
            previous=Mark(old.journal_id, self._end),
            preallocate_bytes=self._preallocate_bytes,
            entropy=self._entropy,
        )
        self._file.close()
        self._file = self._disk.open(path_of(self._header.journal_id))
        self._allocated = self._file.size()
        self._end = FILE_HEADER_BYTES


def begin(
    disk: Disk,
    journal_id: int,
    *,
    previous: Mark | None,
    preallocate_bytes: int,
    entropy: Callable[[int], bytes],
) -> FileHeader:
    """Make the file *journal_id*, durable and whole or not at all."""
    header = FileHeader(
        journal_id,
        int.from_bytes(entropy(8), "little"),
        previous.journal_id if previous else 0,
        previous.offset if previous else 0,
    )
    temporary = path_of(journal_id) + TEMPORARY_SUFFIX
    file = disk.create(temporary)
    try:
        file.write([encode_file_header(header)], 0)
        file.preallocate(FILE_HEADER_BYTES + preallocate_bytes)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path_of(journal_id))
    disk.sync_directory(DIRECTORY)
    return header


def write_mark(disk: Disk, mark: Mark) -> None:
    """Replace the mark, atomically and durably."""
    temporary = MARK_PATH + TEMPORARY_SUFFIX
    file = disk.create(temporary)
    try:
        file.write([encode_mark(mark)], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, MARK_PATH)
    disk.sync_directory(DIRECTORY)


def journal_ids(disk: Disk) -> list[int]:
    """Return the ids of the files that are there, ascending."""
    return [
        int(name.removesuffix(FILE_SUFFIX), 16)
        for name in disk.list(DIRECTORY)
        if name.endswith(FILE_SUFFIX)
    ]
