"""What happens before a bookie serves: everything in the journals is done again, and flushed.

Order: finish interrupted index flushes; read each journal from its mark on into a memtable,
flushing whenever it is full; begin a new file in each journal; move the marks there; remove the
old files; take space for the new ones, which may be that of the old ones. A crash anywhere in it
leaves a state from which the same works again (rule 64).

Nothing that is read here is durable because it can be read: a killed process leaves behind what
it wrote and did not sync, a failed sync what the system takes for written. What is acted upon is
written again and synced first: the redo file, the end of the journal; and the directories are
synced whose names are believed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import urandom
from typing import Final

from bookie.directories import Directories
from bookie.disk import Disk
from bookie.entrylog import format as entrylog_format
from bookie.errors import JournalDamaged, JournalMissing
from bookie.flush import Flush, header_of
from bookie.frames import trust_frames
from bookie.index import format as index_format
from bookie.journal import format as journal_format
from bookie.journal.format import FILE_HEADER_BYTES, FileHeader, Kind, Mark, Record
from bookie.journal.recovery import is_new, plan, replay
from bookie.journal.writer import TEMPORARY_SUFFIX, begin, write_mark
from bookie.ledger_directory import LedgerDirectory
from bookie.ledgers import LedgerRecord, LedgerTable
from bookie.memtable import Memtable

_FIRST: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Recovers the directories of one bookie; see the module's docstring."""

    directories: Directories
    ledger_directories: Sequence[LedgerDirectory]
    memtable_bytes_max: int
    ledgers_in_memory_max: int
    entropy: Callable[[int], bytes]

    def run(self) -> tuple[LedgerTable, list[FileHeader]]:
        """Return the ledgers that are here and the new file of each journal.

        The caller moves the marks there. Raises a `FileDamaged` where a disk is not as this
        program left it."""
        here = [
            ledger_id for directory in self.ledger_directories for ledger_id in directory.recover()
        ]
        ledgers = LedgerTable(here, clean_max=self.ledgers_in_memory_max)
        self._check_journals()
        initialise(self.directories, entropy=self.entropy)
        ends = self._replay(ledgers)
        return ledgers, [
            begin(
                disk,
                end.journal_id + 1,
                previous=end,
                preallocate_bytes=0,
                entropy=self.entropy,
            )
            for disk, end in zip(self.directories.journals, ends, strict=True)
        ]

    def _check_journals(self) -> None:
        """An empty journal beside data is a lost journal, not a new bookie (BK #544)."""
        for disk in self.directories.journals:
            if is_new(disk) and not is_blank(self.directories):
                raise JournalMissing(
                    disk.describe(journal_format.DIRECTORY),
                    "there are entries here, but there is no journal",
                )

    def _replay(self, ledgers: LedgerTable) -> list[Mark]:
        """Do again what the journals say; return where each ends."""
        memtable = Memtable()
        ends = []
        for disk in self.directories.journals:
            end = None
            for segment in plan(disk):
                records = replay(disk, segment)
                path = disk.describe(journal_format.path_of(segment.header.journal_id))
                while True:
                    try:
                        record = next(records)
                    except StopIteration as stop:
                        end = Mark(segment.header.journal_id, stop.value)
                        break
                    self._apply(record, ledgers, memtable, path)
                    if memtable.size_bytes >= self.memtable_bytes_max:
                        self._flush(memtable, ledgers)
                        memtable = Memtable()
            assert end is not None, "a journal that is not new has a file"
            ends.append(end)
        self._flush(memtable, ledgers)
        return ends

    def _apply(self, record: Record, ledgers: LedgerTable, memtable: Memtable, path: str) -> None:
        directory = self._directory_of(record.ledger_id)
        if record.ledger_id in directory.tombstones:
            return  # it was deleted after it was journaled
        ledger = self._ledger(record, ledgers, directory)
        if ledger.key != record.key:
            raise JournalDamaged(
                path, 0, f"it has another key for ledger {record.ledger_id} than the index"
            )
        ledgers.touch(ledger)
        if record.kind is Kind.FENCE:
            ledger.fenced = True
            return
        checked = trust_frames(record.entries, record.lengths, record.frames)
        memtable.add(record.ledger_id, checked)
        ledger.learn(checked)

    def _directory_of(self, ledger_id: int) -> LedgerDirectory:
        return self.ledger_directories[self.directories.ledger_directory_of(ledger_id)]

    def _ledger(
        self, record: Record, ledgers: LedgerTable, directory: LedgerDirectory
    ) -> LedgerRecord:
        if not ledgers.is_known(record.ledger_id):
            return ledgers.create(record.ledger_id, record.key)
        if ledgers.get(record.ledger_id) is None:
            ledgers.adopt(directory.index.load(record.ledger_id))
        ledger = ledgers.get(record.ledger_id)
        assert ledger is not None
        return ledger

    def _flush(self, memtable: Memtable, ledgers: LedgerTable) -> None:
        headers = [header_of(record) for record in ledgers.begin_flush()]
        flush = Flush(memtable, headers, self.directories, self.ledger_directories)
        flush.run()
        ledgers.end_flush(flush.stored)


def make_journal_directory(disk: Disk) -> None:
    """Make it, clear what an interrupted start left in it, and see that the other names that are
    seen in it are durable."""
    disk.make_directory(journal_format.DIRECTORY)
    disk.sync_directory("")
    disk.sync_directory(journal_format.DIRECTORY)
    for name in disk.list(journal_format.DIRECTORY):
        if name.endswith(TEMPORARY_SUFFIX):
            disk.remove(f"{journal_format.DIRECTORY}/{name}")


def initialise(directories: Directories, *, entropy: Callable[[int], bytes] = urandom) -> None:
    """Begin the journals of a new bookie, so that a journal that is not there is a lost one."""
    for disk in directories.journals:
        make_journal_directory(disk)
        if is_new(disk):
            begin(disk, _FIRST, previous=None, preallocate_bytes=0, entropy=entropy)
            write_mark(disk, Mark(_FIRST, FILE_HEADER_BYTES))


def is_blank(directories: Directories) -> bool:
    """Whether no ledger was ever added to or fenced here. Raises a `FileDamaged`."""
    for disk in directories.ledgers:
        if disk.list(entrylog_format.DIRECTORY) or disk.list(index_format.DIRECTORY):
            return False
    return not any(
        True
        for disk in directories.journals
        if not is_new(disk)
        for segment in plan(disk)
        for _ in replay(disk, segment, looks_only=True)
    )
