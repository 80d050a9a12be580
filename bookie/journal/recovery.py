"""Reads a journal: after a start, which files, from where, and where it ends; and one record while
it is written.

The policy (rule 61): a record that is not whole ends the replay iff it is in the newest file
and nothing shows that its bytes had been synced; those were never promised. Everything else
that is not as it was written is damage, and the bookie refuses to start. Evidence that bytes
at *x* had been synced is a later record with *synced_to* > x, or a later file, which says in
its header where the one before it ended.

The look for one record disturbs nobody. It goes from header to header; only the columns of records
of the ledger in question are read. A file that a checkpoint leaves behind meanwhile, or that is
begun anew, ends the search.
"""

from array import array
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from bookie.disk.port import Disk, DiskFile
from bookie.errors import JournalDamaged, JournalMissing, MarkDamaged
from bookie.journal.format import (
    DIRECTORY,
    EPOCH_AT,
    FILE_HEADER_BYTES,
    FILE_SUFFIX,
    MARK_PATH,
    RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    FileHeader,
    JournalMark,
    Record,
    RecordHeader,
    RecordKind,
    decode_file_header,
    decode_mark,
    decode_record,
    decode_record_header,
    journal_of,
    path_of,
    tag_of,
)
from bookie.journal.writer import TEMPORARY_SUFFIX, journal_ids

_SCAN_BYTES: Final = 1024 * 1024
_AHEAD_BYTES: Final = 1024 * 1024
"""Read at once, for the records in it."""
RECORDS_MAX: Final = 1_000_000
"""So many headers one search looks at."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What to replay of one file."""

    header: FileHeader
    start: int
    end: int | None
    """None: wherever the records end; the newest file."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A whole record."""

    record: Record
    end: int
    synced_to: int
    room_bytes: int


class _Ahead:
    """Reads a file in order, more at once than is asked for."""

    def __init__(self, file: DiskFile, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes
        self._begin = 0
        self._data = memoryview(b"")

    def read(self, length: int, offset: int) -> memoryview:
        """Return *length* bytes from *offset*; fewer only at the end of the file."""
        at = offset - self._begin
        if not 0 <= at <= len(self._data) - length:
            ahead = min(max(length, _AHEAD_BYTES), self._size_bytes - offset)
            self._data, self._begin, at = memoryview(self._file.read(ahead, offset)), offset, 0
        return self._data[at : at + length]


def is_new(disk: Disk) -> bool:
    """Whether there was never a journal here."""
    names = [name for name in disk.list(DIRECTORY) if not name.endswith(TEMPORARY_SUFFIX)]
    return not names


def plan(disk: Disk) -> list[Segment]:
    """Return what must be replayed, in order, after checking that all of it is there.

    Requires that the journal is not new. Raises `JournalMissing`, `JournalDamaged` and
    `MarkDamaged`."""
    mark, tag = _read_mark(disk)
    for name in disk.list(DIRECTORY):
        if name.endswith(FILE_SUFFIX) and journal_of(name) is None:  # perhaps one was renamed
            path = disk.describe(f"{DIRECTORY}/{name}")
            raise JournalDamaged(path, 0, "it has a name that no journal has; move it away")
    ids = [
        journal_id for journal_id in journal_ids(disk) if not mark or journal_id >= mark.journal_id
    ]
    if mark is None and not ids:
        raise JournalMissing(disk.describe(MARK_PATH), "there is neither a mark nor a journal file")
    headers = [_read_header(disk, journal_id) for journal_id in ids]
    _check_chain(disk, mark, headers)
    if tag and tag != tag_of(headers[0].epoch):
        path = disk.describe(path_of(headers[0].journal_id))
        reason = f"it is another bookie's, or {path} is: they were not written together"
        raise MarkDamaged(disk.describe(MARK_PATH), 0, reason)
    segments = []
    for index, header in enumerate(headers):
        start = mark.offset if mark and index == 0 else FILE_HEADER_BYTES
        end = headers[index + 1].previous_end if index + 1 < len(headers) else None
        segments.append(Segment(header, start, end))
    return segments


def replay(
    disk: Disk,
    segment: Segment,
    *,
    least_bytes: int = 0,
    losses: list[str] | None = None,
    looks_only: bool = False,
) -> Generator[Record, None, int]:
    """Yield the records of *segment*; return where they end. Raises `JournalDamaged`.

    What shows that promises behind that end are gone is added to *losses*: there was a file after
    this one, or it was longer; *least_bytes* of it are known to have been there.

    Afterwards all that was read is durable, unless one *looks_only*: a killed process leaves
    behind what it had written and not synced, a failed sync what it will never write again, and
    a crash would take that away. What a later record, or a later file, says was synced is; what
    is behind it is written again."""
    path = path_of(segment.header.journal_id)
    file = disk.open(path)
    try:
        size_bytes = file.size()
        offset = synced_to = segment.start
        if size_bytes < max(offset, segment.end or 0):
            raise JournalDamaged(disk.describe(path), size_bytes, "the file was cut short")
        found = [] if losses is None else losses
        least_bytes = max(least_bytes, FILE_HEADER_BYTES + segment.header.allocated_bytes)
        ahead = _Ahead(file, size_bytes)
        while offset != segment.end:
            record = _read_record(ahead, offset, size_bytes, segment.header.epoch)
            if isinstance(record, str):
                _check_torn(disk, file, segment, offset, record)
                break
            offset, synced_to = record.end, record.synced_to
            least_bytes = max(least_bytes, record.synced_to + record.room_bytes)
            if record.record.kind is RecordKind.NEXT:
                found.append(f"the journal file after {disk.describe(path)} is gone")
                break
            yield record.record
        if segment.end is None and size_bytes < least_bytes:
            found.append(
                f"{disk.describe(path)} was shortened to {size_bytes} bytes; {least_bytes} of it "
                "were durable"
            )
        if not looks_only:
            if segment.end is None:
                _write_again(disk, file, segment, max(segment.start, synced_to), offset)
            file.sync()
        return offset
    finally:
        file.close()


def read_mark(disk: Disk) -> JournalMark | None:
    """Return the mark, None if there is none. Raises `MarkDamaged`."""
    return _read_mark(disk)[0]


def _read_mark(disk: Disk) -> tuple[JournalMark | None, int]:
    """Return it with the tag of the file that it names."""
    try:
        file = disk.open(MARK_PATH)
    except FileNotFoundError:
        return None, 0
    try:
        return decode_mark(file.read(file.size(), 0), disk.describe(MARK_PATH))
    finally:
        file.close()


def _check_chain(disk: Disk, mark: JournalMark | None, headers: list[FileHeader]) -> None:
    """Every file from the mark on must follow the one before it."""
    expected = mark.journal_id if mark else None
    for index, header in enumerate(headers):
        previous = headers[index - 1].journal_id if index else None
        if previous is not None and header.previous_id != previous:
            raise JournalMissing(
                disk.describe(path_of(header.previous_id)),
                f"the file is not there, but {path_of(header.journal_id)} follows it",
            )
        if index == 0 and expected is None and header.previous_id:
            raise JournalMissing(
                disk.describe(MARK_PATH), "there is no mark, and the first journal file is gone"
            )
    if expected is not None and (not headers or headers[0].journal_id != expected):
        raise JournalMissing(
            disk.describe(path_of(expected)), "the mark names this file, but it is not there"
        )


def _read_header(disk: Disk, journal_id: int) -> FileHeader:
    path = path_of(journal_id)
    file = disk.open(path)
    try:
        header = decode_file_header(file.read(FILE_HEADER_BYTES, 0), disk.describe(path))
    finally:
        file.close()
    if header.journal_id != journal_id:
        raise JournalDamaged(disk.describe(path), 0, f"it says it is file {header.journal_id}")
    return header


def _write_again(disk: Disk, file: DiskFile, segment: Segment, offset: int, end: int) -> None:
    """Write the records from *offset* to *end* once more, as they are. Raises `JournalDamaged`."""
    while offset < end:
        found = _read_record(_Ahead(file, end), offset, end, segment.header.epoch)
        if isinstance(found, str):
            raise JournalDamaged(disk.describe(file.path), offset, f"{found} any more")
        file.write([file.read(found.end - offset, offset)], offset)
        offset = found.end


def _read_record(file: _Ahead, offset: int, size_bytes: int, epoch: int) -> _Found | str:
    """Return the record at *offset*, or why there is none."""
    header = decode_record_header(file.read(RECORD_HEADER_BYTES, offset))
    if header is None or header.length == 0:
        return "there is no record"
    if header.epoch != epoch:
        return "there is no record of this file"
    if not RECORD_HEADER_BYTES <= header.length <= min(RECORD_BYTES_MAX, size_bytes - offset):
        return f"a record of {header.length} bytes cannot be here"
    data = file.read(header.length, offset)
    record = decode_record(data)
    if isinstance(record, str):
        return record
    end = offset + header.length
    return _Found(record, end, header.synced_to, header.room_bytes)


def _check_torn(disk: Disk, file: DiskFile, segment: Segment, offset: int, reason: str) -> None:
    """Return iff what is at *offset* was never promised."""
    path = disk.describe(file.path)
    if segment.end is not None:
        raise JournalDamaged(path, offset, f"{reason}, but the records go on to {segment.end}")
    later = _find_later(file, offset, segment.header.epoch)
    if later is not None:
        raise JournalDamaged(path, offset, f"{reason}, but it was synced before byte {later}")


def _find_later(file: DiskFile, offset: int, epoch: int) -> int | None:
    """Return where a whole record says that the byte at *offset* had been synced."""
    wanted = epoch.to_bytes(8, "little")
    size_bytes = file.size()
    for chunk_at in range(offset + 1, size_bytes, _SCAN_BYTES):
        chunk = file.read(_SCAN_BYTES + len(wanted) - 1, chunk_at)
        found = chunk.find(wanted)
        while found >= 0:
            start = chunk_at + found - EPOCH_AT
            if start > offset and _read_synced_to(file, start, size_bytes, epoch) > offset:
                return start
            found = chunk.find(wanted, found + 1)
    return None


def _read_synced_to(file: DiskFile, start: int, size_bytes: int, epoch: int) -> int:
    found = _read_record(_Ahead(file, size_bytes), start, size_bytes, epoch)
    return -1 if isinstance(found, str) else found.synced_to


@dataclass(frozen=True, slots=True)
class FoundRecord:
    path: str
    """In the directory of the journal."""
    offset: int
    """Of the record."""
    size_bytes: int
    """Of the frame of the entry."""
    damage: str
    """Why the record is not whole; empty: it is."""


def find_in_journal(
    disk: Disk, mark: JournalMark, ledger_id: int, entry_id: int
) -> FoundRecord | None:
    """Return where the entry is behind *mark*; None if it is not there, or not there any more."""
    left = RECORDS_MAX
    for journal_id in journal_ids(disk):
        if journal_id < mark.journal_id:
            continue
        start = mark.offset if journal_id == mark.journal_id else FILE_HEADER_BYTES
        try:
            file = disk.open(path_of(journal_id))
        except FileNotFoundError:
            continue
        try:
            found, left = _in_file(file, journal_id, start, (ledger_id, entry_id), left)
        except (JournalDamaged, OSError):
            continue  # the next start says what is wrong with it
        finally:
            file.close()
        if found is not None:
            return found
    return None


def _in_file(
    file: DiskFile, journal_id: int, start: int, wanted: tuple[int, int], left: int
) -> tuple[FoundRecord | None, int]:
    """Return the record in this file, and how many more may be looked at."""
    header = decode_file_header(file.read(FILE_HEADER_BYTES, 0), file.path)
    if header.journal_id != journal_id:
        return None, left
    offset, size_bytes = start, file.size()
    while left > 0:
        left -= 1
        record = decode_record_header(file.read(RECORD_HEADER_BYTES, offset))
        if record is None or record.epoch != header.epoch:
            break
        if not RECORD_HEADER_BYTES <= record.length <= size_bytes - offset:
            break
        if record.kind == RecordKind.ADD and record.ledger_id == wanted[0]:
            found = _in_record(file, offset, record, wanted[1])
            if found is not None:
                return found, left
        offset += record.length
    return None, left


def _in_record(
    file: DiskFile, offset: int, header: RecordHeader, entry_id: int
) -> FoundRecord | None:
    columns_at = RECORD_HEADER_BYTES + header.key_bytes
    columns = file.read(8 * header.count, offset + columns_at)
    if entry_id.to_bytes(8, "little", signed=True) not in columns:
        return None
    record = decode_record(file.read(header.length, offset))
    if isinstance(record, str):
        return FoundRecord(file.path, offset, 0, record)
    entries: array[int] = record.entries
    if entry_id not in entries:
        return None
    return FoundRecord(file.path, offset, record.lengths[entries.index(entry_id)], "")
