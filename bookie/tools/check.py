"""Checks all files of a stopped bookie against each other, every byte that was promised.

    cookies         whole, of one bookie, in their places
    census          whole
    journals        from the mark on, with the eyes of the next start
    index           headers and pages whole; behind each slot the right frame, whole
    entry logs      every frame scanned; a ledger map counts at least what is there

What the next start does is taken into account: the redo file lies over the index, and an entry
that the journal still has from the mark on is not lost, whatever an entry log says.
"""

from typing import assert_never

from bookie.disk.directories import Directories
from bookie.disk.port import Disk
from bookie.errors import CensusDamaged, CookieDamaged, DirectoriesChanged, DirectoryMisplaced
from bookie.identity import cookie
from bookie.identity.cookie import read_cookie
from bookie.journal.format import DIRECTORY as JOURNAL_DIRECTORY
from bookie.journal.format import Kind, Record
from bookie.journal.recovery import is_new
from bookie.journal.writer import journal_ids
from bookie.loss.census import read_census
from bookie.tools.check_ledgers import LedgerDirectoryCheck
from bookie.tools.findings import RESTORE, Findings, Progress, no_progress
from bookie.tools.intervals import EntrySets
from bookie.tools.journal_walk import TORN, JournalEnd, walk
from bookie.tools.offline import check_places, check_used, read_only
from ledger.entry import Bad, check_frames


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
            case Kind.FENCE | Kind.NEXT:
                return ""
            case Kind.ADD:
                checked = check_frames(ledger_id, record.entries, record.lengths, record.frames)
                if isinstance(checked, Bad):
                    return f"a frame of ledger {ledger_id}: {checked.reason}"
                self._journaled.add(ledger_id, record.entries)
                return ""
            case _:
                assert_never(record.kind)
