"""Replay, before a bookie serves: everything in the journals is done again, and flushed.

Order: finish interrupted index flushes; compare with the census; read each journal from its mark
on into a memtable, flushing whenever it is full; take a census; begin a new file in each journal;
move the marks there; remove the old files; take space for the new ones, which may be that of the
old ones. A crash anywhere in it leaves a state from which the same works again (rule 64). What is
found to be lost is remembered before anything hides it.

On a full disk what is read stays in memory, all of it, and the marks stay where they are: a later
checkpoint flushes it. That is no more than what was in memory before, as adds had been refused.

Nothing that is read here is durable because it can be read: a killed process leaves behind what
it wrote and did not sync, a failed sync what the system takes for written. What is acted upon is
written again and synced first: the redo file, the end of the journal; and the directories are
synced whose names are believed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import urandom
from typing import Final, assert_never

from bookie.disk.port import Directories, Disk, DiskFull
from bookie.entrylog import format as entrylog_format
from bookie.errors import JournalDamaged, JournalMissing
from bookie.index import format as index_format
from bookie.journal import format as journal_format
from bookie.journal.format import FILE_HEADER_BYTES, FileHeader, JournalMark, Record, RecordKind
from bookie.journal.recovery import Segment, is_new, plan, replay
from bookie.journal.writer import TEMPORARY_SUFFIX, Spares, begin, write_mark
from bookie.loss.census import Accounts, Rolls
from bookie.storage.checkpoint import Flush, header_of
from bookie.storage.ledger_directory import LedgerDirectory, RecoveredLogs
from bookie.storage.ledger_table import LedgerRecord, LedgerTable
from bookie.storage.memtable import Memtable
from ledger.entry import trust_frames
from ledger.log_events import get_logger

_log = get_logger(__name__)
_FIRST: Final = 1
_NAMED_MAX: Final = 5
"""Lost ledgers that are named by their ids."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a start found."""

    ledgers: LedgerTable
    headers: list[FileHeader]
    """Of the new file of each journal."""
    memtable: Memtable
    """What is not on the disk, as that was full."""
    marks: tuple[JournalMark, ...]
    """Where the next replay of each journal has to begin then."""

    @property
    def is_flushed(self) -> bool:
        return not self.ledgers.is_dirty


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Replays the journals of one bookie; see the module's docstring."""

    directories: Directories
    ledger_directories: Sequence[LedgerDirectory]
    accounts: Accounts
    memtable_bytes_max: int
    ledgers_in_memory_max: int
    entropy: Callable[[int], bytes]

    def run(self) -> Replayed:
        """Return what is here; the caller moves the marks to the new files if all of it is on disk.

        Raises a `FileDamaged` where a disk is not as this program left it."""
        census = self.accounts.census
        recovered = [
            directory.recover(Rolls() if census is None else census.rolls[at])
            for at, directory in enumerate(self.ledger_directories)
        ]
        here = [ledger_id for each in recovered for ledger_id in each.here]
        ledgers = LedgerTable(here, clean_max=self.ledgers_in_memory_max)
        self._check_journals()
        initialise(self.directories, entropy=self.entropy)
        plans = [plan(disk) for disk in self.directories.journals]
        is_counted = any(segment.header.is_counted for each in plans for segment in each)
        self.accounts.lost(self._losses(recovered, is_counted=is_counted))
        for directory, each in zip(self.ledger_directories, recovered, strict=True):
            directory.begin(each)
        losses: list[str] = []
        ends, memtable = self._replay(plans, ledgers, losses)
        self.accounts.lost(losses)
        rolls = [directory.rolls for directory in self.ledger_directories]
        self.accounts.count(rolls, ends, [0] * len(ends))
        headers = [
            begin(
                disk,
                end.journal_id + 1,
                previous=end,
                preallocate_bytes=0,
                entropy=self.entropy,
                spare=Spares(disk, 0).take(),
            )
            for disk, end in zip(self.directories.journals, ends, strict=True)
        ]
        marks = [JournalMark(each[0].header.journal_id, each[0].start) for each in plans]
        return Replayed(ledgers, headers, memtable, tuple(marks))

    def _losses(self, recovered: Sequence[RecoveredLogs], *, is_counted: bool) -> list[str]:
        """Return what the census says was here and is not, as sentences.

        *is_counted*: whether there was a census at the last start."""
        losses = list(self.accounts.losses)
        if is_counted and self.accounts.census is None and not losses:
            losses.append("the census is gone, so nobody knows what was here")
        for directory, each in zip(self.ledger_directories, recovered, strict=True):
            if each.problem:
                losses.append(each.problem)
            if each.missing:
                named = ", ".join(map(str, each.missing[:_NAMED_MAX]))
                more = ", ..." if len(each.missing) > _NAMED_MAX else ""
                losses.append(
                    f"{directory.disk.describe('')} had an index of {len(each.missing)} ledgers "
                    f"that is gone: {named}{more}"
                )
        return losses

    def _check_journals(self) -> None:
        """An empty journal beside data is a lost journal, not a new bookie (#544)."""
        for disk in self.directories.journals:
            if is_new(disk) and not is_blank(self.directories):
                raise JournalMissing(
                    disk.describe(journal_format.DIRECTORY),
                    "there are entries here, but there is no journal",
                )

    def _replay(
        self, plans: Sequence[Sequence[Segment]], ledgers: LedgerTable, losses: list[str]
    ) -> tuple[list[JournalMark], Memtable]:
        """Do again what the journals say; return where each ends, and what found no space on the
        disk. Add to *losses* what shows that it went on from there."""
        memtable, is_full = Memtable(), False
        ends = []
        for at, (disk, segments) in enumerate(zip(self.directories.journals, plans, strict=True)):
            end = None
            for segment in segments:
                records = replay(
                    disk, segment, least_bytes=self._least_bytes(at, segment), losses=losses
                )
                path = disk.describe(journal_format.path_of(segment.header.journal_id))
                while True:
                    try:
                        record = next(records)
                    except StopIteration as stop:
                        end = JournalMark(segment.header.journal_id, stop.value)
                        break
                    self._apply(record, ledgers, memtable, path)
                    if memtable.size_bytes >= self.memtable_bytes_max and not is_full:
                        is_full = not self._flush(memtable, ledgers)
                        memtable = memtable if is_full else Memtable()
            assert end is not None, "a journal that is not new has a file"
            counted = None if self.accounts.census is None else self.accounts.census.journals[at]
            if counted is not None and end < counted:
                losses.append(
                    f"{disk.describe(journal_format.DIRECTORY)} went on to byte {counted.offset} "
                    f"of file {counted.journal_id:x}, and ends at byte {end.offset} of file "
                    f"{end.journal_id:x}"
                )
            ends.append(end)
        if not is_full and self._flush(memtable, ledgers):
            memtable = Memtable()
        return ends, memtable

    def _least_bytes(self, journal: int, segment: Segment) -> int:
        """Return how long a file was at the last census, if it was the newest then."""
        census = self.accounts.census
        if census is None or census.journals[journal].journal_id != segment.header.journal_id:
            return 0
        return census.sizes[journal]

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
        match record.kind:
            case RecordKind.FENCE:
                ledger.fenced = True
            case RecordKind.ADD:
                checked = trust_frames(record.entries, record.lengths, record.frames)
                memtable.add(record.ledger_id, checked)
                ledger.learn(checked)
            case RecordKind.NEXT:
                raise AssertionError("it ends a file and is no promise")
            case _:
                assert_never(record.kind)

    def _directory_of(self, ledger_id: int) -> LedgerDirectory:
        return self.ledger_directories[self.directories.ledger_directory_of(ledger_id)]

    def _ledger(
        self, record: Record, ledgers: LedgerTable, directory: LedgerDirectory
    ) -> LedgerRecord:
        if not ledgers.is_known(record.ledger_id):
            fenced = record.ledger_id in directory.fences
            return ledgers.create(record.ledger_id, record.key, fenced=fenced)
        if ledgers.get(record.ledger_id) is None:
            ledgers.adopt(directory.index.load(record.ledger_id))
        ledger = ledgers.get(record.ledger_id)
        assert ledger is not None
        return ledger

    def _flush(self, memtable: Memtable, ledgers: LedgerTable) -> bool:
        """Return whether there was space for it; else it is to be done again, as a whole."""
        ledgers.begin_flush()
        headers = [header_of(record) for record in ledgers.flushing()]
        flush = Flush(memtable, headers, self.directories, self.ledger_directories)
        try:
            flush.run()
        except DiskFull as error:
            _log.warning("replay_found_no_space", reason=str(error))
            ledgers.abandon_flush()
            return False
        ledgers.written(flush.stored)
        ledgers.end_flush()
        return True


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
            begin(
                disk,
                _FIRST,
                previous=None,
                preallocate_bytes=0,
                entropy=entropy,
                is_counted=False,
            )
            write_mark(disk, JournalMark(_FIRST, FILE_HEADER_BYTES))


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
