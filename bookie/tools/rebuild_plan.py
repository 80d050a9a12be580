"""Decides whether the index of a bookie can be rebuilt, and what its ledgers are to say.

What its ledgers are to say comes from the cluster's metadata too. Writes nothing, and reports all
reasons against it together.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from bookie.disk.port import Directories, Disk
from bookie.entrylog.format import is_damage_marker, owner_of, path_of
from bookie.errors import ForeignCluster, IndexDamaged
from bookie.index.format import LedgerHeader, new_edition
from bookie.index.tombstones import NO_EDITION, Edition, Tombstones
from bookie.loss.census import LOGS_PATH, Roll, Rolls, counted_rolls
from bookie.tools import entrylog_files
from bookie.tools.entrylog_files import LogEnd
from bookie.tools.findings import Progress, no_progress
from bookie.tools.index_files import IndexFiles
from bookie.tools.journal_walk import JournalEnd, walk
from bookie.tools.offline import RebuildRefused
from ledger.cluster import open_namespace
from ledger.entry import parse_header
from ledger.errors import DamagedEntry, MetadataUnavailable, NoSuchLedger
from ledger.manager import LedgerStore
from ledger.metastore.port import MetadataStore

_REASONS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class StoreLedgers:
    """All ledgers that there are."""

    keys: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    """Access key of each."""
    here: frozenset[int] = frozenset()
    """Those with a fragment that names the bookie."""


async def store_ledgers(
    store: MetadataStore,
    *,
    bookie: str,
    instance: str,
    directory: str,
    progress: Progress = no_progress,
) -> StoreLedgers:
    """Read the metadata of all ledgers. Whole, or an error is raised.

    Raises `ForeignCluster` if the data in *directory* are of another one."""
    namespace = await open_namespace(store)
    if namespace.instance != instance:
        raise ForeignCluster(directory, instance, namespace.instance)
    ledgers = LedgerStore(store, namespace.layout)
    session = store.session
    ids = [ledger_id async for ledger_id in ledgers.list()]
    keys: dict[int, bytes] = {}
    here = []
    for done, ledger_id in enumerate(ids):
        progress("metadata", done, len(ids))
        try:
            metadata, _ = await ledgers.read(ledger_id)
        except NoSuchLedger:
            continue  # deleted meanwhile
        keys[ledger_id] = metadata.access_key
        if any(bookie in fragment.bookies for fragment in metadata.fragments):
            here.append(int(ledger_id))
    if session is not store.session or session.lost.is_set():
        # Another one may be with a server that lags behind what the list has seen: a ledger
        # that it does not have yet, or not yet with this bookie, would be left unfenced.
        raise MetadataUnavailable(store.uri, "reading all ledgers", 0, "the session changed")
    return StoreLedgers(keys, frozenset(here))


class RebuildPlan:
    """See the module's docstring."""

    def __init__(
        self, directories: Directories, stored: StoreLedgers | None, progress: Progress
    ) -> None:
        self._directories = directories
        self._stored = stored
        self._progress = progress
        self._problems: list[str] = []
        self._problem_count = 0
        self._keys: dict[int, bytes] = {}
        self._lacs: dict[int, tuple[int, bytes]] = {}
        self._log_ends: dict[int, int] = {}
        self.log_ends: list[dict[int, int]] = []
        """Per ledger directory, its entry logs, and where the whole frames of each end."""
        self.headers: list[dict[int, LedgerHeader]] = []
        """Per ledger directory, the ledgers to be made."""
        self.entries: list[int] = []
        self.entry_logs = 0
        self.damaged_before = 0
        self.lost_tombstones: dict[int, Edition] = {}
        """Directories whose tombstones are damaged, or not the newest, and those that were."""
        self.losses: list[str] = []
        """Why there may have been entries that no entry log has any more."""
        self.left_out: dict[int, None] = {}

    def make(self) -> None:
        """Raises `RebuildRefused`."""
        journaled = self._read_journals()
        for at, disk in enumerate(self._directories.ledgers):
            found = self._read_logs(disk, at)
            rolls = counted_rolls(self._directories.main, at)
            found |= self._read_index(disk, rolls)
            roll = self._read_roll(disk, rolls)
            wanted = [*journaled, *(self._stored.here if self._stored else ())]
            found |= dict.fromkeys(
                one for one in wanted if self._directories.ledger_directory_of(one) == at
            )
            deleted = self._tombstones(disk, at, roll.needed.tombstones)
            headers = {}
            edition = new_edition()
            for ledger_id in sorted(found):
                key = None if ledger_id in deleted else self._key(ledger_id)
                if key is not None:
                    proof = self._lacs.get(ledger_id, (0, b""))[1]
                    headers[ledger_id] = LedgerHeader(
                        ledger_id,
                        key,
                        True,
                        proof,
                        edition=edition,
                        counted=roll.editions.get(ledger_id, 0),
                    )
            self.headers.append(headers)
        if self._problem_count:
            raise RebuildRefused(self._problems, self._problem_count)

    def _read_roll(self, disk: Disk, rolls: Rolls) -> Roll:
        """Return what was there at the last checkpoint, and learn what is not there any more: what
        the new index will not name would become a "no such entry"."""
        roll, logs = Roll(disk), Roll(disk, LOGS_PATH)
        roll.load(rolls.index)
        problem = logs.load(rolls.logs)
        if problem:
            self.losses.append(f"{problem}, so nobody knows whether all entry logs are there")
        for log_id, end in sorted(logs.logs.items()):
            path = disk.describe(path_of(log_id))
            found = self._log_ends.get(log_id)
            if found is None:
                self.losses.append(f"{path} is gone")
            elif found < end:
                self.losses.append(f"{path} had whole frames up to byte {end}, and has to {found}")
        return roll

    def _tombstones(self, disk: Disk, at: int, counted: Edition) -> Tombstones:
        with suppress(IndexDamaged):
            found = Tombstones.load(disk)
            if counted == NO_EDITION or not found.difference(counted):
                return found
        self.lost_tombstones[at] = counted
        return Tombstones.none(disk)

    def _refuse(self, reason: str) -> None:
        self._problem_count += 1
        if len(self._problems) < _REASONS_MAX:
            self._problems.append(reason)

    def _read_journals(self) -> list[int]:
        """Return the ledgers that the journals name, and learn their keys."""
        found: dict[int, None] = {}
        for disk in self._directories.journals:
            for item in walk(disk, everything=True):
                if not isinstance(item, JournalEnd):
                    found[item.record.ledger_id] = None
                    self._learn_key(item.record.ledger_id, item.record.key, item.path)
                elif item.is_damage:
                    self._refuse(
                        f"{item.path} is damaged at byte {item.offset}: {item.reason}, so the "
                        "bookie cannot be started anyway"
                    )
        return list(found)

    def _read_logs(self, disk: Disk, at: int) -> dict[int, None]:
        """Scan all entry logs; return the ledgers in them."""
        found: dict[int, None] = {}
        count = 0
        self._log_ends = {}
        self.log_ends.append(self._log_ends)
        logs = [entrylog_files.summary(disk, i) for i in entrylog_files.log_ids(disk)]
        total_bytes, done_bytes = sum(log.size_bytes for log in logs), 0
        for log in logs:
            self._progress("reading entry logs", done_bytes, total_bytes)
            done_bytes += log.size_bytes
            self.entry_logs += 1
            for item in entrylog_files.frames(disk, log):
                if isinstance(item, LogEnd):
                    self._log_ends[log.log_id] = item.offset
                    if item.is_damage:
                        self._refuse(f"{log.path} is damaged at byte {item.offset}: {item.reason}")
                elif is_damage_marker(item.ledger_id):
                    found[owner_of(item.ledger_id)] = None
                    count += len(item.run.entries)
                else:
                    found[item.ledger_id] = None
                    count += len(item.run.entries)
                    self._learn_lac(item.ledger_id, item.run.last_add_confirmed, item.run.proof())
                    if self._directories.ledger_directory_of(item.ledger_id) != at:
                        self._refuse(
                            f"{log.path} has ledger {item.ledger_id}, which belongs to another "
                            "ledger directory: they were given in another order, or not all"
                        )
        self.entries.append(count)
        return found

    def _read_index(self, disk: Disk, rolls: Rolls) -> dict[int, None]:
        """Look at what can still be read of the old index; return its ledgers."""
        index = IndexFiles(disk, rolls.index)
        try:
            ledgers = index.ledgers()
            for done, ledger_id in enumerate(ledgers):
                self._progress("reading the old index", done, len(ledgers))
                try:
                    header = index.header(ledger_id)
                    self._learn_key(ledger_id, header.key, index.path(ledger_id))
                    if header.lac_proof:
                        proven = parse_header(header.lac_proof)
                        self._learn_lac(ledger_id, proven.last_add_confirmed, header.lac_proof)
                    self._check_named(index, header)
                except (IndexDamaged, DamagedEntry):
                    self.damaged_before += 1
            return dict.fromkeys(ledgers)
        finally:
            index.close()

    def _check_named(self, index: IndexFiles, header: LedgerHeader) -> None:
        """Whatever the old index names must have been found."""
        damaged: IndexDamaged | None = None
        for number in index.pages(header):
            try:
                locations = index.locations(header, number)
            except IndexDamaged as error:
                damaged = error
                continue
            for entry_id, log_id, offset, length in locations:
                if offset + length > self._log_ends.get(log_id, 0):
                    self._refuse(
                        f"entry {entry_id} of ledger {header.ledger_id} was at byte {offset} of "
                        f"entry log {log_id:08x}, which is not whole there"
                    )
                    return
        if damaged is not None:
            raise damaged

    def _learn_key(self, ledger_id: int, key: bytes, path: str) -> None:
        if self._keys.setdefault(ledger_id, key) != key:
            self._refuse(f"{path} has another key for ledger {ledger_id} than an earlier file")

    def _learn_lac(self, ledger_id: int, lac: int, proof: bytes) -> None:
        known = self._lacs.get(ledger_id)
        if known is None or lac > known[0]:
            self._lacs[ledger_id] = lac, proof

    def _key(self, ledger_id: int) -> bytes | None:
        """Return the ledger's key; None if it is to be left out."""
        of_store = self._stored.keys.get(ledger_id) if self._stored is not None else None
        key = self._keys.get(ledger_id)
        if of_store is not None and key not in (None, of_store):
            self._refuse(f"ledger {ledger_id} has another key here than in the metadata store")
        if key is None and of_store is None:
            if self._stored is None:
                self._refuse(
                    f"the access key of ledger {ledger_id} is neither in the journal nor in its "
                    "old index; the metadata store has it, so give its URI"
                )
            else:
                self.left_out[ledger_id] = None
        return key if of_store is None else of_store
