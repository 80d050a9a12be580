"""What happens before a bookie serves: everything in the journal is done again, and flushed.

Order: finish an interrupted index flush; read the journal from the mark on into a memtable,
flushing whenever it is full; begin a new journal file; move the mark there; remove the old
files. A crash anywhere in it leaves a state from which the same works again (rule 64).
"""

from collections.abc import Callable
from dataclasses import dataclass
from os import urandom
from typing import Final

from bookie.disk import Disk
from bookie.entrylog import format as entrylog_format
from bookie.entrylog.writer import EntryLogWriter
from bookie.errors import JournalDamaged, JournalMissing
from bookie.flush import flush, header_of
from bookie.frames import Bad, check_frames
from bookie.index import format as index_format
from bookie.index.ledger_index import LedgerIndex
from bookie.journal import format as journal_format
from bookie.journal.format import FILE_HEADER_BYTES, FileHeader, Kind, Mark, Record
from bookie.journal.recovery import is_new, plan, replay
from bookie.journal.writer import TEMPORARY_SUFFIX, begin, write_mark
from bookie.ledgers import LedgerRecord, LedgerTable
from bookie.memtable import Memtable

DIRECTORIES: Final = (
    journal_format.DIRECTORY,
    entrylog_format.DIRECTORY,
    index_format.DIRECTORY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Recovers the directory of one bookie; see the module's docstring."""

    disk: Disk
    index: LedgerIndex
    logs: EntryLogWriter
    memtable_bytes_max: int
    ledgers_in_memory_max: int
    preallocate_bytes: int
    entropy: Callable[[int], bytes]

    def run(self) -> tuple[LedgerTable, FileHeader]:
        """Return the ledgers that are here and the new journal file.

        Raises a `FileDamaged` where the disk is not as this program left it."""
        ledgers = LedgerTable(self.index.recover(), clean_max=self.ledgers_in_memory_max)
        if is_new(self.disk):
            self._check_empty(ledgers)
            return ledgers, self._begin(1, None)
        end = self._replay(ledgers)
        return ledgers, self._begin(end.journal_id + 1, end)

    def _check_empty(self, ledgers: LedgerTable) -> None:
        """An empty journal beside data is a lost journal, not a new bookie (BK #544)."""
        if ledgers.ids() or self.disk.list(entrylog_format.DIRECTORY):
            raise JournalMissing(
                self.disk.describe(journal_format.DIRECTORY),
                "there are entries here, but there is no journal",
            )

    def _replay(self, ledgers: LedgerTable) -> Mark:
        """Do again what the journal says; return where it ends."""
        memtable = Memtable()
        end = None
        for segment in plan(self.disk):
            records = replay(self.disk, segment)
            path = self.disk.describe(journal_format.path_of(segment.header.journal_id))
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
        self._flush(memtable, ledgers)
        return end

    def _apply(self, record: Record, ledgers: LedgerTable, memtable: Memtable, path: str) -> None:
        ledger = self._ledger(record, ledgers)
        if ledger.key != record.key:
            raise JournalDamaged(
                path, 0, f"it has another key for ledger {record.ledger_id} than the index"
            )
        ledgers.touch(ledger)
        if record.kind is Kind.FENCE:
            ledger.fenced = True
            return
        checked = check_frames(record.ledger_id, record.entries, record.lengths, record.frames)
        if isinstance(checked, Bad):
            raise JournalDamaged(path, 0, f"a frame of ledger {record.ledger_id}: {checked.reason}")
        memtable.add(record.ledger_id, checked)
        ledger.learn(checked)

    def _ledger(self, record: Record, ledgers: LedgerTable) -> LedgerRecord:
        if not ledgers.is_known(record.ledger_id):
            return ledgers.create(record.ledger_id, record.key)
        if ledgers.get(record.ledger_id) is None:
            ledgers.adopt(self.index.load(record.ledger_id))
        ledger = ledgers.get(record.ledger_id)
        assert ledger is not None
        return ledger

    def _flush(self, memtable: Memtable, ledgers: LedgerTable) -> None:
        headers = [header_of(record) for record in ledgers.begin_flush()]
        ledgers.end_flush(flush(memtable, headers, self.logs, self.index))

    def _begin(self, journal_id: int, previous: Mark | None) -> FileHeader:
        """Begin the journal of this start and let the mark name it: all before is flushed."""
        header = begin(
            self.disk,
            journal_id,
            previous=previous,
            preallocate_bytes=self.preallocate_bytes,
            entropy=self.entropy,
        )
        write_mark(self.disk, Mark(journal_id, FILE_HEADER_BYTES))
        return header


def make_directories(disk: Disk) -> None:
    """Make the directories of a bookie and clear what an interrupted start left in them."""
    for directory in DIRECTORIES:
        disk.make_directory(directory)
    disk.sync_directory("")
    for name in disk.list(journal_format.DIRECTORY):
        if name.endswith(TEMPORARY_SUFFIX):
            disk.remove(f"{journal_format.DIRECTORY}/{name}")


def initialise(disk: Disk, *, entropy: Callable[[int], bytes] = urandom) -> None:
    """Begin the journal of a new bookie, so that a journal that is not there is a lost one."""
    make_directories(disk)
    if is_new(disk):
        begin(disk, 1, previous=None, preallocate_bytes=0, entropy=entropy)
        write_mark(disk, Mark(1, FILE_HEADER_BYTES))


def is_blank(disk: Disk) -> bool:
    """Whether no ledger was ever added to or fenced here. Raises a `FileDamaged`."""
    if disk.list(entrylog_format.DIRECTORY) or disk.list(index_format.DIRECTORY):
        return False
    if is_new(disk):
        return True
    return not any(True for segment in plan(disk) for _ in replay(disk, segment))
