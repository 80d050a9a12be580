"""Checks all files of a stopped bookie against each other, every byte that was promised.

    cookies         whole, of one bookie, in their places
    census          whole
    journals        from the mark on, with the eyes of the next start
    index           headers and pages whole; behind each slot the right frame, whole
    entry logs      every frame scanned; a ledger map counts at least what is there

What the next start does is taken into account: the redo file lies over the index, and an entry
that the journal still has from the mark on is not lost, whatever an entry log says.
"""

from array import array
from collections.abc import Iterable
from typing import Final, assert_never

from bookie.disk.file_cache import FileCache
from bookie.disk.port import Directories, Disk
from bookie.entrylog.catalog import Batch
from bookie.entrylog.format import owner_of
from bookie.entrylog.format import path_of as log_path_of
from bookie.entrylog.ledger_map import LedgerMap, LedgerMapBuilder
from bookie.errors import (
    CensusDamaged,
    CookieDamaged,
    DirectoriesChanged,
    DirectoryMisplaced,
    IndexDamaged,
)
from bookie.identity import cookie
from bookie.identity.cookie import read_cookie
from bookie.index import format as index_format
from bookie.index.format import LedgerHeader
from bookie.index.ledger_index import Location
from bookie.index.tombstones import FENCES_PATH, NO_EDITION, PATH, Tombstones
from bookie.journal.format import DIRECTORY as JOURNAL_DIRECTORY
from bookie.journal.format import Record, RecordKind
from bookie.journal.recovery import is_new
from bookie.journal.writer import journal_ids
from bookie.loss.census import counted_rolls, read_census
from bookie.tools import entrylog_files
from bookie.tools.entrylog_files import LogEnd, LogSummary
from bookie.tools.findings import COPY, REBUILD, RESTORE, EntrySets, Findings, Progress, no_progress
from bookie.tools.index_files import IndexFiles
from bookie.tools.journal_walk import TORN, JournalEnd, walk
from bookie.tools.offline import check_places, check_used, read_only
from ledger.entry import Bad, check_frames, parse_header
from ledger.errors import DamagedEntry

_FILES_MAX: Final = 64
_READ_BYTES_MAX: Final = 4 * 1024 * 1024
_UNFENCED: Final = (
    "put the file back from where it went; without it the bookie starts, serves what it has, and "
    "takes no normal add to any ledger from before"
)


class LedgerDirectoryCheck:
    """Reports into *findings*. What the journals will bring back is *journaled*."""

    def __init__(
        self,
        disk: Disk,
        at: int,
        directories: Directories,
        findings: Findings,
        journaled: EntrySets,
        keys: dict[int, bytes],
        progress: Progress,
    ) -> None:
        self._disk = disk
        self._at = at
        self._directories = directories
        self._findings = findings
        self._journaled = journaled
        self._keys = keys
        self._progress = progress
        self._index = IndexFiles(disk, counted_rolls(directories.main, at).index)
        self._logs = FileCache(disk, _FILES_MAX)
        self._deleted = self._load_tombstones()

    def run(self) -> None:
        try:
            self._check_fences()
            self._check_index()
            self._check_logs()
        finally:
            self._logs.close()
            self._index.close()

    # The index, and what it names.

    def _check_fences(self) -> None:
        try:
            fences = Tombstones.load(self._disk, path=FENCES_PATH)
        except IndexDamaged as damage:
            self._findings.damage(damage.path, damage.offset, damage.reason, _UNFENCED)
        else:
            counted = self._index.needed.fences
            if counted != NO_EDITION and (difference := fences.difference(counted)):
                self._findings.damage(self._disk.describe(FENCES_PATH), 0, difference, _UNFENCED)

    def _check_index(self) -> None:
        findings, counts = self._findings, self._findings.counts
        for stray in self._index.strays:
            findings.note(stray.path, stray.reason)
        damage = self._index.redo_damage
        if damage is not None:
            findings.damage(damage.path, damage.offset, damage.reason, REBUILD)
        ledgers = self._index.ledgers()
        for done, ledger_id in enumerate(ledgers):
            self._progress("index", done, len(ledgers))
            if ledger_id in self._deleted:
                findings.note(self._index.path(ledger_id), "deleted; the next start removes it")
                continue
            counts.ledgers += 1
            try:
                header = self._index.header(ledger_id)
            except IndexDamaged as damage:
                findings.damage(damage.path, damage.offset, damage.reason, REBUILD)
                continue
            counts.fenced += header.fenced
            self._check_header(header)
            self._check_entries(header)

    def _load_tombstones(self) -> Tombstones:
        try:
            found = Tombstones.load(self._disk)
            counted = self._index.needed.tombstones
            if counted != NO_EDITION and (difference := found.difference(counted)):
                self._findings.damage(self._disk.describe(PATH), 0, difference, REBUILD)
            return found
        except IndexDamaged as damage:
            self._findings.damage(damage.path, damage.offset, damage.reason, REBUILD)
            return Tombstones(self._disk, (array("q"), array("q")))

    def _check_header(self, header: LedgerHeader) -> None:
        path, ledger_id = self._index.path(header.ledger_id), header.ledger_id
        if self._directories.ledger_directory_of(ledger_id) != self._at:
            reason = f"ledger {ledger_id} belongs to another ledger directory"
            self._findings.damage(path, 0, reason, "give the directories as they were")
        if self._keys.get(ledger_id, header.key) != header.key:
            reason = f"the journal has another key for ledger {ledger_id}; a start refuses that"
            self._findings.damage(path, 0, reason)
        if header.lac_proof:
            try:
                proven = parse_header(header.lac_proof)
            except DamagedEntry as error:
                self._findings.damage(path, 0, f"its proof of the LAC: {error}", REBUILD)
                return
            if proven.ledger_id != ledger_id:
                reason = f"its proof of the LAC is of ledger {proven.ledger_id}"
                self._findings.damage(path, 0, reason, REBUILD)

    def _check_entries(self, header: LedgerHeader) -> None:
        findings, counts = self._findings, self._findings.counts
        last = -1
        pages_lost = False
        for number in self._index.pages(header):
            counts.index_pages += 1
            try:
                locations = self._index.locations(header, number)
            except IndexDamaged as damage:
                pages_lost = True
                findings.damage(damage.path, damage.offset, damage.reason, REBUILD)
                continue
            counts.index_entries += len(locations)
            last = max(last, locations[-1].entry_id if locations else -1)
            for stretch in _stretches(locations):
                self._check_stretch(header.ledger_id, stretch)
        if last != header.last_entry and not (pages_lost and last < header.last_entry):
            reason = f"the header says that entry {header.last_entry} is the last, pages say {last}"
            findings.damage(self._index.path(header.ledger_id), 0, reason, REBUILD)

    def _check_stretch(self, ledger_id: int, stretch: list[Location]) -> None:
        """Read what lies together; report the first of the damaged entries that follow each
        other."""
        reported: tuple[int, str] | None = None
        while stretch:
            good, reason = self._read(ledger_id, stretch)
            if good:
                reported = None
            if good == len(stretch):
                return
            bad = stretch[good]
            stretch = stretch[good + 1 :]
            if self._journaled.has(ledger_id, bad.entry_id):
                self._findings.counts.healed += 1
            elif reported != (bad.log_id, reason):
                reported = (bad.log_id, reason)
                self._findings.damage(
                    self._disk.describe(log_path_of(bad.log_id)),
                    bad.offset,
                    f"entry {bad.entry_id} of ledger {ledger_id}: {reason}",
                )

    def _read(self, ledger_id: int, stretch: list[Location]) -> tuple[int, str]:
        """Return how many entries from the first on are whole, and what the next one is."""
        entries = [location.entry_id for location in stretch]
        lengths = [location.length for location in stretch]
        try:
            with self._logs.use(log_path_of(stretch[0].log_id)) as file:
                data = file.read(sum(lengths), stretch[0].offset)
        except FileNotFoundError:
            return 0, "the file is gone"
        except OSError as error:
            return 0, str(error)
        self._findings.counts.entry_bytes += len(data)
        whole_bytes = count = 0
        for length in lengths:
            if whole_bytes + length > len(data):
                break
            whole_bytes += length
            count += 1
        reason = "the file ends before its frame does"
        if count:
            checked = check_frames(ledger_id, entries[:count], lengths[:count], data[:whole_bytes])
            if isinstance(checked, Bad):
                return max(0, checked.index), checked.reason
        return count, reason

    # The entry logs, without the index.

    def _check_logs(self) -> None:
        findings = self._findings
        ids = entrylog_files.log_ids(self._disk)
        summaries = [entrylog_files.summary(self._disk, log_id) for log_id in ids]
        total_bytes = sum(log.size_bytes for log in summaries)
        done_bytes = 0
        without_index: dict[int, None] = {}
        for path in entrylog_files.unfinished(self._disk):
            findings.note(path, "an interrupted compaction; the next start removes it")
        for log in summaries:
            self._progress("entry logs", done_bytes, total_bytes)
            done_bytes += log.size_bytes
            self._check_log(log, without_index)
            here = [s for s in (log.ledger_map.sources if log.ledger_map else ()) if s in ids]
            if here:
                names = ", ".join(f"{source:08x}" for source in here)
                reason = f"compacted from {names}, still there; the next start finishes that"
                findings.note(log.path, reason)
        if without_index:
            shown = ", ".join(map(str, sorted(without_index)[:10]))
            more = f" and {len(without_index) - 10} more" if len(without_index) > 10 else ""
            findings.note(
                self._disk.describe(index_format.DIRECTORY),
                f"no index of ledgers {shown}{more}, which are in entry logs: deleted, or never "
                "acknowledged. If 'dlog ledger list' has them, their index is lost: " + REBUILD,
            )

    def _check_log(self, log: LogSummary, without_index: dict[int, None]) -> None:
        counts = self._findings.counts
        counts.entry_logs += 1
        found = LedgerMapBuilder()
        for item in entrylog_files.frames(self._disk, log):
            if isinstance(item, LogEnd):
                self._check_log_end(log, item)
                if log.ledger_map is not None and not log.damage:
                    self._check_map(log, log.ledger_map, found.build(item.offset))
                return
            counts.frames += len(item.run.entries)
            counts.frame_bytes += len(item.run.data)
            found.add(item.ledger_id, len(item.run.data), len(item.run.entries))
            self._count_orphans(log.log_id, item, without_index)

    def _check_log_end(self, log: LogSummary, end: LogEnd) -> None:
        if end.is_damage:
            # Damage of entries that the index names was reported already; this is all other damage.
            self._findings.damage(log.path, end.offset, end.reason)
        elif end.reason:
            reason = f"as a crash left it: {end.reason}, from byte {end.offset} on"
            self._findings.note(log.path, reason)

    def _check_map(self, log: LogSummary, stored: LedgerMap, found: LedgerMap) -> None:
        """The map may count what a crash tore, but never less than there is."""
        counted = dict(zip(stored.ledgers, stored.sizes_bytes, strict=True))
        for ledger_id, size_bytes in zip(found.ledgers, found.sizes_bytes, strict=True):
            if counted.get(ledger_id, 0) < size_bytes:
                self._findings.damage(
                    log.path,
                    stored.frames_end,
                    f"its map says less of ledger {ledger_id} than there is in the log; a "
                    "collection would remove what is alive",
                    COPY,
                )
                return

    def _count_orphans(self, log_id: int, batch: Batch, without_index: dict[int, None]) -> None:
        counts = self._findings.counts
        owner = owner_of(batch.ledger_id)
        header: LedgerHeader | None = None
        if owner in self._index:
            try:
                header = self._index.header(owner)
            except IndexDamaged:
                return  # reported already
        elif owner not in self._keys and owner not in self._deleted:
            without_index[owner] = None
        for entry_id, offset, length in batch.entries():
            if header is not None:
                try:
                    location = self._index.location(header, entry_id)
                except IndexDamaged:
                    continue
                if location is not None and (location.log_id, location.offset) == (log_id, offset):
                    continue
            counts.orphans += 1
            counts.orphan_bytes += length


def _stretches(locations: Iterable[Location]) -> Iterable[list[Location]]:
    """Yield the locations in groups that lie together and may be read at once."""
    stretch: list[Location] = []
    size_bytes = 0
    for location in locations:
        before = stretch[-1] if stretch else None
        if before is not None and (
            location.log_id != before.log_id
            or location.offset != before.offset + before.length
            or size_bytes >= _READ_BYTES_MAX
        ):
            yield stretch
            stretch, size_bytes = [], 0
        stretch.append(location)
        size_bytes += location.length
    if stretch:
        yield stretch


def check(directories: Directories, progress: Progress = no_progress) -> Findings:
    """Check everything; nothing is written. Raises `NotABookie`.

    Requires that the directories are locked."""
    check_used(directories)
    return _Check(read_only(directories), progress).run()


class _Check:
    def __init__(self, directories: Directories, progress: Progress) -> None:
        self._directories = directories
        self._progress = progress
        self._findings = Findings()
        self._journaled = EntrySets()
        self._keys: dict[int, bytes] = {}
        """Of the ledgers that the journals name from the mark on."""

    def run(self) -> Findings:
        self._check_cookies()
        self._check_census()
        for at, disk in enumerate(self._directories.journals):
            self._check_journal(disk, at)
        for at, disk in enumerate(self._directories.ledgers):
            LedgerDirectoryCheck(
                disk, at, self._directories, self._findings, self._journaled, self._keys,
                self._progress,
            ).run()  # fmt: skip
        return self._findings

    def _check_cookies(self) -> None:
        findings = self._findings
        disks = self._directories.every()
        cookies = []
        for disk in disks:
            try:
                cookies.append(read_cookie(disk))
            except CookieDamaged as damage:
                findings.damage(damage.path, damage.offset, damage.reason, RESTORE)
                return
        if not any(cookies):
            findings.note(self._directories.main.describe(""), "no cluster knows these data yet")
            return
        first = next(found for found in cookies if found is not None)
        for disk, found in zip(disks, cookies, strict=True):
            path = disk.describe(cookie.PATH)
            if found is None:
                findings.damage(path, 0, "the cookie is gone; a start refuses that", RESTORE)
            elif not found.is_same(first):
                findings.damage(path, 0, "the cookie is of other data", RESTORE)
        try:
            check_places(self._directories)
        except (DirectoriesChanged, DirectoryMisplaced) as error:
            findings.damage(error.directory, 0, str(error), "give the directories as they were")

    def _check_census(self) -> None:
        try:
            read_census(self._directories.main)
        except CensusDamaged as damage:
            self._findings.damage(damage.path, damage.offset, damage.reason, RESTORE)

    def _check_journal(self, disk: Disk, at: int) -> None:
        findings, counts = self._findings, self._findings.counts
        counts.journal_files += len(journal_ids(disk))
        if is_new(disk):
            reason = "there is no journal, so what was promised is not known"
            findings.damage(disk.describe(JOURNAL_DIRECTORY), 0, reason, RESTORE)
            return
        for item in walk(disk):
            if isinstance(item, JournalEnd):
                if item.is_damage:
                    findings.damage(item.path, item.offset, item.reason)
                elif item.reason == TORN:
                    findings.note(item.path, f"from byte {item.offset} on: {item.reason}")
                continue
            counts.journal_records += 1
            counts.journal_bytes += item.length
            reason = self._why_bad(item.record, at)
            if reason:
                findings.damage(item.path, item.offset, reason)
            self._progress("journal", counts.journal_bytes, 0)
        for name in disk.list(JOURNAL_DIRECTORY):
            if name.endswith(".tmp"):
                path = disk.describe(f"{JOURNAL_DIRECTORY}/{name}")
                findings.note(path, "was never finished; the next start removes it")

    def _why_bad(self, record: Record, at: int) -> str:
        ledger_id = record.ledger_id
        if self._directories.journal_of(ledger_id) != at:
            return f"a record of ledger {ledger_id}, which belongs to another journal"
        if self._keys.setdefault(ledger_id, record.key) != record.key:
            return f"another key for ledger {ledger_id} than in an earlier record"
        match record.kind:
            case RecordKind.FENCE | RecordKind.NEXT:
                return ""
            case RecordKind.ADD:
                checked = check_frames(ledger_id, record.entries, record.lengths, record.frames)
                if isinstance(checked, Bad):
                    return f"a frame of ledger {ledger_id}: {checked.reason}"
                self._journaled.add(ledger_id, record.entries)
                return ""
            case _:
                assert_never(record.kind)
