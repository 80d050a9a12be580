"""Rebuilds the index file of one ledger, from where its entries lie in entry logs."""

from array import array
from dataclasses import replace
from itertools import pairwise
from typing import Final

from bookie.disk.file_cache import FileCache
from bookie.disk.port import Disk, DiskFile
from bookie.entrylog.format import path_of as log_path_of
from bookie.index.format import (
    PAGE_BYTES,
    PAGE_ENTRIES,
    SLOT,
    SLOTS_AT,
    LedgerHeader,
    encode_header,
    extents_of,
    new_page,
    overflow,
    page_offset,
    path_of,
    seal_page,
)

REBUILT_SUFFIX: Final = ".rebuilt"
_PAGES_AT_ONCE: Final = 512


class Places:
    """Where the entries of one ledger lie, in columns; an entry may lie at several places."""

    def __init__(self) -> None:
        self._entries = array("q")
        self._logs = array("I")
        self._offsets = array("q")
        self._lengths = array("I")

    def add(self, entry_id: int, log_id: int, offset: int, length: int) -> None:
        self._entries.append(entry_id)
        self._logs.append(log_id)
        self._offsets.append(offset)
        self._lengths.append(length)

    def newest(self, ledger_id: int, logs: "LogFrames") -> "list[tuple[int, int, int, int]]":
        """Return (entry, log, offset, length) of each entry, ascending, in the newest log that
        has it. Raises `ValueError` if copies of one entry are not the same."""
        rows = sorted(zip(self._entries, self._logs, self._offsets, self._lengths, strict=True))
        for a, b in pairwise(rows):
            if a[0] == b[0] and logs.frame(*a[1:]) != logs.frame(*b[1:]):
                raise ValueError(
                    f"entry {a[0]} of ledger {ledger_id} is in entry log {a[1]:08x} at byte "
                    f"{a[2]} and otherwise in {b[1]:08x} at byte {b[2]}"
                )
        last = {row[0]: row for row in rows}
        return list(last.values())


class LogFrames:
    """Reads frames from entry logs by place."""

    def __init__(self, disk: Disk, files_max: int = 16) -> None:
        self._files = FileCache(disk, files_max)

    def frame(self, log_id: int, offset: int, length: int) -> bytes:
        with self._files.use(log_path_of(log_id)) as file:
            return file.read(length, offset)

    def close(self) -> None:
        self._files.close()


def write_index(
    disk: Disk, header: LedgerHeader, rows: list[tuple[int, int, int, int]]
) -> DiskFile:
    """Write the index file of *rows* beside the ledger's own; return it, open and not synced.

    *header* says everything but the last entry and the extents."""
    extents = extents_of([row[0] for row in rows]) if rows else ()
    last = rows[-1][0] if rows else -1
    header = replace(header, last_entry=last, extents=extents)
    file = disk.create(path_of(header.ledger_id) + REBUILT_SUFFIX)
    try:
        file.write([encode_header(header)], 0)
        at = 0
        for first, end in extents:
            begin = first
            while begin <= end:
                some = range(begin, min(end, begin + _PAGES_AT_ONCE - 1) + 1)
                pages: list[bytes | memoryview] = []
                for number in some:
                    page = new_page()
                    while at < len(rows) and rows[at][0] // PAGE_ENTRIES == number:
                        entry_id, log_id, offset, length = rows[at]
                        slot = SLOTS_AT + entry_id % PAGE_ENTRIES * SLOT.size
                        SLOT.pack_into(page, slot, log_id, length, offset)
                        at += 1
                    pages.append(seal_page(page, header.ledger_id, number))
                assert all(len(page) == PAGE_BYTES for page in pages)
                file.write(pages, page_offset(begin))
                begin = some[-1] + 1
        assert at == len(rows)
        for number, block in overflow(header):
            file.write([block], page_offset(number))
    except BaseException:
        file.close()
        raise
    return file
