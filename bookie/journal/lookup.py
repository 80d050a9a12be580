"""Finds the record of one entry in a journal that is being written. Disturbs nobody.

Goes from header to header; only the columns of records of the ledger in question are read. A
file that a checkpoint leaves behind meanwhile, or that is begun anew, ends the search.
"""

from array import array
from dataclasses import dataclass
from typing import Final

from bookie.disk.port import Disk, DiskFile
from bookie.errors import JournalDamaged
from bookie.journal.format import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    Kind,
    Mark,
    RecordHeader,
    decode_file_header,
    decode_record,
    decode_record_header,
    path_of,
)
from bookie.journal.writer import journal_ids

RECORDS_MAX: Final = 1_000_000
"""So many headers one search looks at."""


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


def find_in_journal(disk: Disk, mark: Mark, ledger_id: int, entry_id: int) -> FoundRecord | None:
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
        if record.kind == Kind.ADD and record.ledger_id == wanted[0]:
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
