"""All journals of a bookie as one: tickets count over all of them, marks are one for each.

A ticket is durable when all tickets up to it are, in whatever journal they are. So the rest of
the bookie compares single numbers; the price is that an answer also waits for what was queued
before it in another journal.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from bookie.disk.port import Directories, Disk
from bookie.journal.format import FileHeader, JournalMark, Record, path_of
from bookie.journal.writer import JournalWriter, Spares, journal_ids, write_mark


class Journals:
    """`add` may be called from any thread, `commit` of each journal by one at a time."""

    def __init__(
        self,
        directories: Directories,
        headers: Sequence[FileHeader],
        *,
        file_bytes_max: int,
        preallocate_bytes: int,
        block_bytes: int,
        spares_max: int,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._directories = directories
        self._spares = [Spares(disk, spares_max) for disk in directories.journals]
        self._writers = [
            JournalWriter(
                disk,
                header,
                file_bytes_max=file_bytes_max,
                preallocate_bytes=preallocate_bytes,
                block_bytes=block_bytes,
                spares=spares,
                entropy=entropy,
            )
            for disk, header, spares in zip(
                directories.journals, headers, self._spares, strict=True
            )
        ]
        self._lock = threading.Lock()
        self._ticket = 0

    def __len__(self) -> int:
        return len(self._writers)

    @property
    def writers(self) -> Sequence[JournalWriter]:
        """For whoever looks at what they have done."""
        return self._writers

    @property
    def last_ticket(self) -> int:
        """The last ticket that was given; when it is durable, everything queued so far is."""
        return self._ticket

    @property
    def durable(self) -> int:
        """The highest ticket that is durable together with all before it."""
        with self._lock:
            durable = self._ticket
            for writer in self._writers:
                if (first := writer.first_pending()) and first <= durable:
                    durable = first - 1
        return durable

    @property
    def full(self) -> tuple[int, ...]:
        """The journals whose disks have no room for more than is preallocated."""
        return tuple(at for at, writer in enumerate(self._writers) if writer.is_full)

    def has_room(self, ledger_id: int, size_bytes: int) -> bool:
        """Whether a record of so many bytes fits into the journal of the ledger, even if its disk
        is full, and leaves room for fences."""
        writer = self._writers[self._directories.journal_of(ledger_id)]
        return not writer.is_full or writer.has_room(size_bytes)

    def add(self, record: Record) -> int:
        """Queue *record* in the journal of its ledger; return its ticket."""
        at = self._directories.journal_of(record.ledger_id) if len(self._writers) > 1 else 0
        writer = self._writers[at]
        with self._lock:
            self._ticket += 1
            writer.queue(record, self._ticket)
            return self._ticket

    def has_pending(self, journal: int) -> bool:
        return bool(self._writers[journal].first_pending())

    def commit(self, journal: int) -> int:
        """Make durable what queued in *journal*; return the highest durable ticket.

        If the disk is full and nothing could be written, that is as it was before.
        Raises `JournalFailed`, then and ever after, if the disk failed."""
        self._writers[journal].commit()
        return self.durable

    def positions(self) -> tuple[JournalMark, ...]:
        """Return, for each journal, the place before which every record is durable."""
        return tuple(writer.position for writer in self._writers)

    def sizes(self) -> tuple[int, ...]:
        """Return how long the newest file of each journal is at least, durably."""
        return tuple(writer.size_synced for writer in self._writers)

    def advance(self, marks: Sequence[JournalMark]) -> None:
        """Let replay begin at *marks* from now on, and keep or remove the files before them."""
        for disk, writer, mark in zip(
            self._directories.journals, self._writers, marks, strict=True
        ):
            write_mark(disk, mark)
            writer.leave_behind(mark.journal_id)

    def trim_spares(self) -> None:
        """Remove files that were kept to be written again and are too many by now."""
        for spares in self._spares:
            spares.trim()

    def give_up_spares(self) -> bool:
        """Remove all that were kept to be written again; return whether there was any."""
        given_up = [spares.give_up() for spares in self._spares]
        return any(given_up)

    def take_space(self) -> None:
        """Take space ahead in every journal; for the start. Where there is too little, the journal
        is full. Raises `OSError`."""
        for writer in self._writers:
            writer.take_space()

    def files(self, journal: int) -> list[int]:
        """Return the sizes in bytes of the files of *journal*; asks the disk."""
        disk = self._directories.journals[journal]
        return _sizes(disk, map(path_of, journal_ids(disk)))

    def spares(self, journal: int) -> list[int]:
        """Return the sizes in bytes of what is kept to be written again; asks the disk."""
        return _sizes(self._directories.journals[journal], self._spares[journal].paths)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


def _sizes(disk: Disk, paths: Iterable[str]) -> list[int]:
    sizes = []
    for path in paths:
        with suppress(FileNotFoundError):  # a checkpoint may have removed it meanwhile
            file = disk.open(path)
            sizes.append(file.size())
            file.close()
    return sizes
