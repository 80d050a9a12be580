"""Rebuilds the index of a stopped bookie, file by file, from its entry logs.

What an index says apart from places may be nowhere else on the disk, so:

    every ledger is fenced. Whether it was is not known, and a fence that is forgotten lets an
        old writer have entries acknowledged behind a ledger's end (#2773, #2774)
    the access key comes from the metadata store, from the journal, or from a header that is
        still whole. Without it a ledger cannot be made, and without the ledger the bookie would
        say that it has no such entry: then the whole rebuild is refused
    the store also knows ledgers that were only fenced here: they are made too, fenced and empty

Ledgers with a tombstone stay deleted. If the tombstones themselves are damaged, or not the newest,
they are given up: what was deleted may come back, until the next collection.

It is refused where an entry log is damaged: what is lost there would become a "no such entry",
while the old index, whatever is left of it, reports it as damage. The journals stay as they are:
the next start replays them onto the new index. An entry log that the roll counts and that is
gone, or shorter, begins a limbo (`bookie.loss.limbo`), as does that roll if it is not the newest:
nobody knows then what is missing. So does the next start, if the store was not asked and a ledger
is missing that the roll names.

Crash-safe: new files are written beside the old ones and synced; then the redo file is applied
and emptied; then each new file takes the place of the old one. An end at any place leaves
index files that are old or new, each as a whole, and the same command again finishes it.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from bookie.disk.file_cache import FileCache
from bookie.disk.port import Directories, Disk, DiskFile
from bookie.entrylog.catalog import Batch
from bookie.entrylog.format import owner_of
from bookie.entrylog.format import path_of as log_path_of
from bookie.errors import CensusDamaged
from bookie.index.format import (
    DIRECTORY,
    ENTRY_ID_MAX,
    PAGE_BYTES,
    PAGE_ENTRIES,
    SLOT,
    SLOTS_AT,
    LedgerHeader,
    directory_of,
    encode_header,
    extents_of,
    new_page,
    overflow,
    page_offset,
    path_of,
    seal_page,
)
from bookie.index.ledger_index import LedgerIndex
from bookie.index.redo import RedoPlace
from bookie.index.tombstones import Tombstones
from bookie.loss.census import LOGS_PATH, Accounts, Roll, read_census
from bookie.tools import entrylog_files
from bookie.tools.entrylog_files import LogEnd
from bookie.tools.findings import Progress, no_progress
from bookie.tools.index_files import index_paths
from bookie.tools.offline import RebuildRefused, check_places, check_used, read_only
from bookie.tools.rebuild_plan import RebuildPlan, StoreLedgers

REBUILT_SUFFIX: Final = ".rebuilt"
_PAGES_AT_ONCE: Final = 512
ENTRIES_IN_MEMORY_MAX: Final = 20_000_000
"""Above it the entry logs are read several times, for some of the ledgers each time."""
_FILES_AT_ONCE: Final = 64


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


@dataclass(frozen=True, slots=True)
class Rebuilt:
    ledgers: int
    """All of them are fenced now."""
    entries: int
    entry_logs: int
    damaged_before: int
    """Ledgers whose index could not be read."""
    left_out: tuple[int, ...]
    """Ledgers in entry logs that the store does not know any more and that have no key here."""
    asked_store: bool
    losses: tuple[str, ...] = ()
    """Why the bookie is in limbo now, if this is a reason."""


def rebuild(
    directories: Directories,
    stored: StoreLedgers | None,
    *,
    progress: Progress = no_progress,
    entries_in_memory_max: int = ENTRIES_IN_MEMORY_MAX,
) -> Rebuilt:
    """Rebuild the index. *stored* is None if the metadata store is not to be asked; then
    ledgers without an entry and without an index file here are not known, and not fenced.

    Requires that the directories are locked. Raises `RebuildRefused`, having changed nothing;
    `NotABookie`, a `WrongDirectory`; `OSError`, after which it may be done again."""
    check_used(directories)
    check_places(directories)
    plan = RebuildPlan(read_only(directories), stored, progress)
    plan.make()
    entries = 0
    for at, disk in enumerate(directories.ledgers):
        build = _Build(disk, plan.headers[at], len(directories.ledgers), progress)
        passes = -(-plan.entries[at] // entries_in_memory_max) or 1
        entries += build.write(passes)
    Accounts(directories.main).lost(plan.losses)  # before what shows them is replaced
    for at, edition in plan.lost_tombstones.items():
        Tombstones.none(directories.ledgers[at], counted=edition).write()
    for at, disk in enumerate(directories.ledgers):
        _put_in_place(disk, list(plan.headers[at]), progress=progress)
    if stored is not None:
        _count(directories, plan)
    return Rebuilt(
        sum(map(len, plan.headers)),
        entries,
        plan.entry_logs,
        plan.damaged_before,
        tuple(sorted(plan.left_out)),
        stored is not None,
        tuple(plan.losses),
    )


def _count(directories: Directories, plan: RebuildPlan) -> None:
    """Let the rolls say what is here now: nothing that was promised is missing any more.

    Without the store's word it stays with what the rolls said before, if they are still there:
    the next start finds what is missing, or that nobody knows it."""
    try:
        census = read_census(directories.main)
    except CensusDamaged:
        return  # the next start reports it
    if census is None:
        return
    for at, disk in enumerate(directories.ledgers):
        roll, logs = Roll(disk), Roll(disk, LOGS_PATH)
        roll.load(census.rolls[at].index)
        logs.load(census.rolls[at].logs)
        redo, tombstones = roll.needed.redo, Tombstones.load(disk)
        logs.logs = plan.log_ends[at]
        logs.write()
        nothing = RedoPlace(redo.last + 1, redo.last)
        roll.write(
            {one: header.edition for one, header in plan.headers[at].items()},
            replace(roll.needed, redo=nothing, tombstones=tombstones.edition),
        )


class _Build:
    """Writes the new index files of one ledger directory beside the old ones."""

    def __init__(
        self, disk: Disk, headers: dict[int, LedgerHeader], directories: int, progress: Progress
    ) -> None:
        self._disk = disk
        self._headers = headers
        self._directories = directories
        self._progress = progress
        self._made: dict[str, None] = {}

    def write(self, passes: int) -> int:
        """Return how many entries the new files name. Raises `RebuildRefused`."""
        _remove_leftovers(self._disk)
        count = 0
        logs = LogFrames(self._disk)
        try:
            for part in range(passes):
                places = self._places(part, passes)
                mine = [header for header in self._headers if self._is_in(header, part, passes)]
                for begin in range(0, len(mine), _FILES_AT_ONCE):
                    self._progress("writing index files", begin, len(mine))
                    count += self._write_some(mine[begin : begin + _FILES_AT_ONCE], places, logs)
        finally:
            logs.close()
        if self._made:
            for directory in ("", DIRECTORY, *self._made):
                self._disk.sync_directory(directory)
        return count

    def _is_in(self, ledger_id: int, part: int, passes: int) -> bool:
        return ledger_id // self._directories % passes == part

    def _places(self, part: int, passes: int) -> dict[int, Places]:
        """Return them by the ledger id that the frames name: markers apart."""
        found: dict[int, Places] = {}
        for log_id, batch in self._batches():
            owner = owner_of(batch.ledger_id)
            if owner in self._headers and self._is_in(owner, part, passes):
                places = found.setdefault(batch.ledger_id, Places())
                for entry_id, offset, length in batch.entries():
                    if 0 <= entry_id <= ENTRY_ID_MAX:
                        places.add(entry_id, log_id, offset, length)
        return found

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        for log_id in entrylog_files.log_ids(self._disk):
            log = entrylog_files.summary(self._disk, log_id)
            for item in entrylog_files.frames(self._disk, log):
                if not isinstance(item, LogEnd):
                    yield log_id, item

    def _write_some(self, ledger_ids: list[int], places: dict[int, Places], logs: LogFrames) -> int:
        count = 0
        files: list[DiskFile] = []
        try:
            for ledger_id in ledger_ids:
                found, markers = places.pop(ledger_id, None), places.pop(~ledger_id, None)
                try:
                    rows = found.newest(ledger_id, logs) if found else []
                    if markers is not None:
                        here = dict.fromkeys(row[0] for row in rows)
                        lost = markers.newest(ledger_id, logs)
                        rows = sorted([*rows, *(row for row in lost if row[0] not in here)])
                except ValueError as error:
                    raise RebuildRefused([str(error)], 1) from error
                count += len(rows)
                self._make_directory(directory_of(ledger_id))
                files.append(write_index(self._disk, self._headers[ledger_id], rows))
            self._disk.sync_files(files)
        finally:
            for file in files:
                file.close()
        return count

    def _make_directory(self, directory: str) -> None:
        if directory not in self._made:
            self._disk.make_directory(directory)
            self._made[directory] = None


def _put_in_place(disk: Disk, ledger_ids: list[int], *, progress: Progress) -> None:
    """Let the new files take the place of the old ones."""
    old = LedgerIndex(disk, cache_bytes=0, files_max=_FILES_AT_ONCE)
    roll = Roll(disk)
    roll.load(None)
    try:
        old.finish(roll.needed.redo)  # else the redo file would lie over the new files one day
    finally:
        old.close()
    directories: dict[str, None] = {}
    for done, ledger_id in enumerate(ledger_ids):
        progress("putting index files in place", done, len(ledger_ids))
        disk.rename(path_of(ledger_id) + REBUILT_SUFFIX, path_of(ledger_id))
        directories[directory_of(ledger_id)] = None
    for directory in directories:
        disk.sync_directory(directory)


def _remove_leftovers(disk: Disk) -> None:
    """Remove what an interrupted rebuild wrote."""
    for path in index_paths(disk):
        if path.endswith(REBUILT_SUFFIX):
            disk.remove(path)
