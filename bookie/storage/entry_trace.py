"""Says where one entry is: in which memory, which file, at which place, and whether it is whole.

For operators. Looks at memory under the lock and at files without it, so what a checkpoint or a
compaction moves just then may be named twice, or where it was.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final

from bookie.disk.port import Disk
from bookie.entrylog.format import path_of
from bookie.errors import IndexDamaged
from bookie.index.format import PAGE_ENTRIES, LedgerHeader
from bookie.index.ledger_index import Location
from bookie.journal.format import JournalMark
from bookie.journal.recovery import find_in_journal
from bookie.storage.holdings import StorageState
from bookie.storage.ledger_directory import LedgerDirectory
from bookie.storage.ledger_table import LedgerRecord
from ledger.entry import Bad, check_frames

_LOOKUPS_MAX: Final = 4
"""A log that is gone was compacted: the index names another one by now."""


class EntryStatus(Enum):
    HERE = "here"
    ABSENT = "not here"
    DELETED = "deleted"
    UNREADABLE = "unreadable"
    """Its index file is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryCopy:
    """One place that has the entry."""

    place: str
    """"memory", "journal", "entry log"; "index": what it says cannot be read."""
    path: str = ""
    offset: int = 0
    """Of the frame, or of the journal's record that has it."""
    size_bytes: int = 0
    """Of the frame."""
    damage: str = ""
    """Why it is not whole."""
    since_ms: int = 0
    """When the file was made, since 1970: the entry is in it since then or later. 0: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    ledger: EntryStatus
    fenced: bool = False
    last_entry: int = -1
    copies: tuple[EntryCopy, ...] = ()
    doubts: str = ""
    """Why the bookie may have lost the entry, if it has it not."""


@dataclass(frozen=True, slots=True)
class _View:
    stored: LedgerHeader
    frames: Sequence[bytes]
    """Of the entry, in memory."""
    is_unwritten: bool
    """Whether it is in memory as no checkpoint has written it yet: then the journal has it."""
    fenced: bool
    last_entry: int


def trace(
    holdings: StorageState, marks: Sequence[JournalMark], ledger_id: int, entry_id: int
) -> Traced:
    """Look at memory, the index, an entry log and the journal behind *marks*; blocks."""
    view = holdings.with_record(
        ledger_id, partial(_view, holdings, entry_id), EntryStatus.UNREADABLE
    )
    if view is None:
        deleted = holdings.is_deleted(ledger_id)
        return Traced(ledger=EntryStatus.DELETED if deleted else EntryStatus.ABSENT)
    if isinstance(view, EntryStatus):
        return Traced(ledger=view)
    copies = [
        EntryCopy(place="memory", size_bytes=len(frame), damage=_damage(ledger_id, entry_id, frame))
        for frame in view.frames
    ]
    if view.is_unwritten:
        at = holdings.directories.journal_of(ledger_id)
        disk = holdings.directories.journals[at]
        copies += _in_journal(disk, marks[at], ledger_id, entry_id)
    copies += _on_disk(holdings.directory_of(ledger_id), view.stored, entry_id)
    return Traced(
        ledger=EntryStatus.HERE,
        fenced=view.fenced,
        last_entry=view.last_entry,
        copies=tuple(copies),
    )


def _view(holdings: StorageState, entry_id: int, record: LedgerRecord | None) -> _View | None:
    if record is None:
        return None
    memory, frames = holdings.memory, []
    unwritten = 0
    for memtable in (memory.active, memory.flushing, memory.recent):
        entries = None if memtable is None else memtable.ledger(record.ledger_id)
        frame = None if entries is None else entries.frame(entry_id)
        if frame is not None:
            frames.append(frame)
            unwritten += memtable is not memory.recent
    return _View(record.stored, frames, unwritten > 0, record.fenced, record.last_entry)


def _in_journal(
    disk: Disk, mark: JournalMark, ledger_id: int, entry_id: int
) -> Iterator[EntryCopy]:
    found = find_in_journal(disk, mark, ledger_id, entry_id)
    if found is not None:
        path = disk.describe(found.path)
        yield EntryCopy(
            place="journal",
            path=path,
            offset=found.offset,
            size_bytes=found.size_bytes,
            damage=found.damage,
        )


def _on_disk(
    directory: LedgerDirectory, header: LedgerHeader, entry_id: int
) -> Iterator[EntryCopy]:
    gone: Location | None = None
    for _ in range(_LOOKUPS_MAX):
        try:
            location = _location(directory, header, entry_id)
        except IndexDamaged as damage:
            yield EntryCopy(
                place="index", path=damage.path, offset=damage.offset, damage=damage.reason
            )
            return
        if location is None:
            return
        try:
            copy = _read(directory.disk, header.ledger_id, location)
        except FileNotFoundError:
            gone = location
        else:
            yield copy
            return
    assert gone is not None
    path = directory.disk.describe(path_of(gone.log_id))
    yield EntryCopy(place="entry log", path=path, offset=gone.offset, damage="the file is gone")


def _location(directory: LedgerDirectory, header: LedgerHeader, entry_id: int) -> Location | None:
    if not 0 <= entry_id <= header.last_entry:
        return None
    page = directory.index.page_locations(header, entry_id // PAGE_ENTRIES)
    return next((found for found in page if found.entry_id == entry_id), None)


def _read(disk: Disk, ledger_id: int, location: Location) -> EntryCopy:
    """Raises `FileNotFoundError`."""
    path = path_of(location.log_id)
    file = disk.open(path)
    try:
        since_ms = _made_ms(file.identity())
        try:
            frame = file.read(location.length, location.offset)
        except OSError as error:
            damage = str(error)
        else:
            damage = _damage(ledger_id, location.entry_id, frame)
            if len(frame) < location.length:
                damage = "the file ends before it"
    finally:
        file.close()
    return EntryCopy(
        place="entry log",
        path=disk.describe(path),
        offset=location.offset,
        size_bytes=location.length,
        damage=damage,
        since_ms=since_ms,
    )


def _damage(ledger_id: int, entry_id: int, frame: bytes) -> str:
    checked = check_frames(ledger_id, (entry_id,), (len(frame),), frame)
    return checked.reason if isinstance(checked, Bad) else ""


def _made_ms(identity: str) -> int:
    born = identity.partition("/")[2]
    return int(born, 16) // 1_000_000 if born else 0
