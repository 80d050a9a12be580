"""The records of a journal, and the ends of its files.

The reader and the policy are the engine's own (`bookie.journal.recovery`): where a start would
refuse or begin a limbo, this says so, with the same words. Nothing is raised for what the files
are like.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.disk.port import Disk
from bookie.errors import FileDamaged, MarkDamaged
from bookie.journal.format import (
    DIRECTORY,
    EPOCH_AT,
    FILE_HEADER_BYTES,
    MARK_PATH,
    RECORD_HEADER_BYTES,
    FileHeader,
    JournalMark,
    Record,
    decode_file_header,
    decode_record_header,
    path_of,
)
from bookie.journal.recovery import Segment, plan, read_mark, replay
from bookie.journal.writer import journal_ids
from bookie.tools.offline import ReadOnlyDisk

TORN: Final = "what follows was never finished, so never promised"
_COLUMNS_BYTES: Final = 12
"""Of one entry: id and length."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A record and where it is."""

    journal_id: int
    path: str
    offset: int
    length: int
    synced_to: int
    record: Record


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """Where the records of one file end, and why."""

    path: str
    offset: int
    reason: str
    is_damage: bool = False
    """Return True if promised data are missing: a start refuses it, or begins a limbo."""


@dataclass(frozen=True, slots=True)
class JournalFile:
    journal_id: int
    path: str
    size_bytes: int
    before_mark: bool
    """Left over: everything in it is in entry logs and index."""


@dataclass(frozen=True, slots=True)
class MarkInfo:
    """The mark of one journal, and what a start would replay from there."""

    directory: str
    mark: JournalMark | None
    files: Sequence[JournalFile]
    records: int
    replay_bytes: int
    ends: Sequence[JournalEnd]

    @property
    def damages(self) -> list[JournalEnd]:
        return [end for end in self.ends if end.is_damage]


def mark_info(disk: Disk) -> MarkInfo:
    mark = _mark(disk)
    at = mark if isinstance(mark, JournalMark) else None
    files = []
    for journal_id in journal_ids(disk):
        path = path_of(journal_id)
        before = at is not None and journal_id < at.journal_id
        files.append(JournalFile(journal_id, disk.describe(path), _size_of(disk, path), before))
    records = replay_bytes = 0
    ends = []
    for item in walk(disk):
        if isinstance(item, JournalEnd):
            ends.append(item)
        else:
            records += 1
            replay_bytes += item.length
    return MarkInfo(disk.describe(DIRECTORY), at, files, records, replay_bytes, ends)


def walk(
    disk: Disk, *, everything: bool = False, only: int | None = None
) -> Iterator[Placed | JournalEnd]:
    """Yield the records from the mark on and the end of each file, in order.

    If *everything*, also what is before the mark; *only* names one file, which is then read
    from its beginning."""
    disk = ReadOnlyDisk(disk)
    mark = _mark(disk)
    reported: dict[tuple[str, int], None] = {}
    for item in _walk(disk, mark, everything=everything, only=only):
        if isinstance(item, JournalEnd):
            reported[item.path, item.offset] = None
        yield item
    if only is None:
        for end in (mark, _chain(disk)):
            if isinstance(end, JournalEnd) and (end.path, end.offset) not in reported:
                reported[end.path, end.offset] = None
                yield end


def _walk(
    disk: Disk, mark: JournalMark | JournalEnd | None, *, everything: bool, only: int | None
) -> Iterator[Placed | JournalEnd]:
    ids = journal_ids(disk)
    headers = {journal_id: _header(disk, journal_id) for journal_id in ids}
    for journal_id in ids:
        if only not in (None, journal_id):
            continue
        start = FILE_HEADER_BYTES
        if isinstance(mark, JournalMark) and only is None and not everything:
            if journal_id < mark.journal_id:
                continue
            if journal_id == mark.journal_id:
                start = mark.offset
        header = headers[journal_id]
        if isinstance(header, JournalEnd):
            yield header
            continue
        following = [
            later.previous_end
            for later in headers.values()
            if isinstance(later, FileHeader) and later.previous_id == journal_id
        ]
        yield from _file(disk, Segment(header, start, following[0] if following else None))


def _file(disk: Disk, segment: Segment) -> Iterator[Placed | JournalEnd]:
    path = path_of(segment.header.journal_id)
    shown = disk.describe(path)
    file = disk.open(path)
    try:
        size_bytes = file.size()
        was_cut = segment.end is not None and size_bytes < segment.end
        readable = Segment(segment.header, segment.start, None if was_cut else segment.end)
        offset = segment.start
        losses: list[str] = []
        records = replay(disk, readable, losses=losses, looks_only=True)
        while True:
            try:
                record = next(records)
            except StopIteration:
                break
            length = _length(record)
            head = decode_record_header(file.read(RECORD_HEADER_BYTES, offset))
            synced_to = head.synced_to if head else -1
            yield Placed(segment.header.journal_id, shown, offset, length, synced_to, record)
            offset += length
        if was_cut:
            reason = f"the file was cut short: its records go on to byte {segment.end}"
            yield JournalEnd(shown, size_bytes, reason, is_damage=True)
        elif losses:
            yield JournalEnd(shown, offset, "; ".join(losses), is_damage=True)
        elif segment.end is not None:
            yield JournalEnd(shown, offset, "as the next file says")
        else:
            rest = file.read(RECORD_HEADER_BYTES, offset)
            yield JournalEnd(shown, offset, _why(rest, segment.header))
    except FileDamaged as damage:
        yield JournalEnd(shown, damage.offset, damage.reason, is_damage=True)
    except OSError as error:
        yield JournalEnd(shown, 0, str(error), is_damage=True)
    finally:
        file.close()


def _why(rest: bytes, header: FileHeader) -> str:
    if not rest:
        return "the file ends"
    if not any(rest):
        return "nothing was written behind it"
    if header.is_recycled and rest[EPOCH_AT : EPOCH_AT + 8] != header.epoch.to_bytes(8, "little"):
        return "what follows is of an earlier life of the file"
    return TORN


def _length(record: Record) -> int:
    columns = _COLUMNS_BYTES * len(record.entries)
    return RECORD_HEADER_BYTES + len(record.key) + columns + len(record.frames)


def _mark(disk: Disk) -> JournalMark | JournalEnd | None:
    try:
        return read_mark(disk)
    except MarkDamaged as damage:
        return JournalEnd(damage.path, damage.offset, damage.reason, is_damage=True)
    except OSError as error:
        return JournalEnd(disk.describe(MARK_PATH), 0, str(error), is_damage=True)


def _header(disk: Disk, journal_id: int) -> FileHeader | JournalEnd:
    path = path_of(journal_id)
    shown = disk.describe(path)
    try:
        file = disk.open(path)
        try:
            header = decode_file_header(file.read(FILE_HEADER_BYTES, 0), shown)
        finally:
            file.close()
    except FileDamaged as damage:
        return JournalEnd(shown, damage.offset, damage.reason, is_damage=True)
    except OSError as error:
        return JournalEnd(shown, 0, str(error), is_damage=True)
    if header.journal_id != journal_id:
        reason = f"its header names journal {header.journal_id}"
        return JournalEnd(shown, 0, reason, is_damage=True)
    return header


def _chain(disk: Disk) -> JournalEnd | None:
    """Return what a start would miss among the files, if anything."""
    if not journal_ids(disk) and _mark(disk) is None:
        return None
    try:
        plan(disk)
    except FileDamaged as damage:
        return JournalEnd(damage.path, damage.offset, damage.reason, is_damage=True)
    except OSError as error:
        return JournalEnd(disk.describe(DIRECTORY), 0, str(error), is_damage=True)
    return None


def _size_of(disk: Disk, path: str) -> int:
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()
