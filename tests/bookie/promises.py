"""Drives a storage and remembers what it has promised, to be compared after a crash."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from bookie.collector.collection import DirectoryCollection
from bookie.collector.plan import CollectorConfig
from bookie.disk.port import Directories, DiskFull
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
from ledger.entry import encode_frame, encode_lac, parse_header
from ledger.requests import AddRun, ReadQuery, Status
from tests.bookie.machine import Machine
from tests.simulation.disk import SimDisk

KEY: Final = b"k" * 16
SMALL: Final = StorageConfig(
    memtable_bytes_max=64 * 1024,
    recovery_reserve_bytes=16 * 1024,
    recent_bytes_max=0,
    read_cache_bytes=2000,
    read_ahead_bytes=1000,
    journal_file_bytes_max=2500,
    journal_preallocate_bytes=1024,
    journal_block_bytes=64,
    entry_log_bytes_max=3000,
    index_cache_bytes=5 * 2400,
    ledgers_in_memory_max=2,
    files_open_max=2,
)
"""Limits so small that a short workload meets every one of them."""
DEFERRED: Final = replace(SMALL, index_in_place_ledgers=1, index_redo_bytes_max=12_000)
"""Most of the index waits in the redo file, for a while."""
COLLECTOR: Final = CollectorConfig(log_bytes_max=6000, reserve_bytes=0)
EVERYTHING: Final = 1 << 30


def frame_of(ledger_id: int, entry_id: int, *, lac: int | None = None, salt: int = 0) -> bytes:
    payload = b"%d/%d/%d " % (ledger_id, entry_id, salt) * (1 + entry_id % 7)
    return encode_frame(
        ledger_id=ledger_id,
        entry_id=entry_id,
        last_add_confirmed=entry_id - 1 if lac is None else lac,
        length=100 * entry_id,
        payload=payload,
    )


def run_of(ledger_id: int, *entries: int, recovery: bool = False, salt: int = 0) -> AddRun:
    frames = [frame_of(ledger_id, entry_id, salt=salt) for entry_id in entries]
    lengths = [len(frame) for frame in frames]
    return AddRun(ledger_id, KEY, entries, lengths, b"".join(frames), recovery=recovery)


def entries_of(storage: BookieStorage, ledger_id: int, *, bytes_max: int = 700) -> dict[int, bytes]:
    """Return all entries of a ledger, read in answers of any size."""
    found: dict[int, bytes] = {}
    first = 0
    while True:
        answer = storage.read(ReadQuery(ledger_id, KEY, first, EVERYTHING, bytes_max))
        if answer.status is Status.NO_SUCH_LEDGER:
            return found
        assert answer.status is Status.OK, answer.status
        assert answer.considered >= first
        found.update((entry_id, bytes(frame)) for entry_id, frame in answer.each())
        if answer.considered == EVERYTHING:
            return found
        first = answer.considered + 1


class Promises:
    """What the storage of a bookie was asked, and what of it was durable by its own word."""

    def __init__(self, place: SimDisk | Machine, config: StorageConfig = SMALL) -> None:
        """*place* is a disk that is all directories, or a machine with several."""
        self.disk = place if isinstance(place, SimDisk) else place.disks[0]
        self.directories = (
            Directories.single(place) if isinstance(place, SimDisk) else place.directories
        )
        self.config = config
        self.sent: dict[int, dict[int, bytes]] = {}
        self.stored: dict[int, dict[int, None]] = {}
        self.fenced: dict[int, None] = {}
        self.lacs: dict[int, int] = {}
        """Explicit LACs that a checkpoint has written."""
        self.deleting: dict[int, None] = {}
        """Ledgers whose deletion began; nothing is promised of them any more."""
        self.deleted: dict[int, None] = {}
        """Those that are never to be seen again."""
        self.evicting: dict[int, dict[int, None]] = {}
        """What was here of ledgers whose eviction began: all of that, or nothing."""
        self.evicted: dict[int, None] = {}
        """Ledgers that take no writer's add any more; their entries may come back."""
        self._lacs_sent: dict[int, int] = {}
        self._waiting: list[tuple[int, int, tuple[int, ...] | None]] = []
        self.storage: BookieStorage

    def fork(self, machine: Machine) -> "Promises":
        """Return the same promises, kept by *machine*, a copy; its storage is not open."""
        other = Promises(machine, self.config)
        other.sent = {ledger_id: dict(frames) for ledger_id, frames in self.sent.items()}
        other.stored = {ledger_id: dict(entries) for ledger_id, entries in self.stored.items()}
        other.fenced = dict(self.fenced)
        other.lacs = dict(self.lacs)
        other.deleting = dict(self.deleting)
        other.deleted = dict(self.deleted)
        other.evicting = {ledger_id: dict(ids) for ledger_id, ids in self.evicting.items()}
        other.evicted = dict(self.evicted)
        return other

    def open(self) -> None:
        self._waiting.clear()
        self._lacs_sent.clear()
        self.storage = BookieStorage.open(self.directories, self.config)

    def add(self, ledger_id: int, *entries: int, recovery: bool = False) -> Status:
        for entry_id in entries:
            frames = self.sent.setdefault(ledger_id, {})
            frames[entry_id] = frame_of(ledger_id, entry_id)
        status, ticket = self.storage.add(run_of(ledger_id, *entries, recovery=recovery))
        if status is Status.OK:
            self.evicting.pop(ledger_id, None)
            self._waiting.append((ticket, ledger_id, entries))
        return status

    def fence(self, ledger_id: int) -> None:
        status, ticket = self.storage.fence(ledger_id, KEY)
        assert status is Status.OK
        self._waiting.append((ticket, ledger_id, None))

    def set_lac(self, ledger_id: int, lac: int) -> Status:
        self._lacs_sent[ledger_id] = max(lac, self._lacs_sent.get(ledger_id, lac))
        frame = encode_lac(ledger_id=ledger_id, last_add_confirmed=lac, length=1)
        run = AddRun(ledger_id, KEY, (-1,), (len(frame),), frame, explicit_lac=True)
        return self.storage.set_lac(run)

    def commit(self) -> None:
        for journal in range(self.storage.journals):
            self._learn(self.storage.commit(journal))

    def checkpoint(self) -> None:
        before = dict(self._lacs_sent)
        whole = not self.storage.troubles
        self.storage.checkpoint()
        if whole and not self.storage.troubles:
            self.lacs.update(before)

    def delete(self, *ledger_ids: int) -> bool:
        """Return whether it was done; on a full disk, or when a directory failed, it may not be."""
        for ledger_id in ledger_ids:
            self.deleting[ledger_id] = None
            self.stored.pop(ledger_id, None)
            self.fenced.pop(ledger_id, None)
            self.lacs.pop(ledger_id, None)
        self._waiting = [one for one in self._waiting if one[1] not in self.deleting]
        try:
            self.storage.delete(ledger_ids)
        except DiskFull:
            return False
        if self.storage._keeper._frozen is not None:
            return False
        self.deleted.update(dict.fromkeys(ledger_ids))
        return True

    def evict(self, *ledger_ids: int) -> bool:
        """Return whether it was done; on a full disk, or when a directory failed, it may not be.

        Requires that all of them is on disk."""
        for ledger_id in ledger_ids:
            self.evicting[ledger_id] = self.stored.pop(ledger_id, {})
            self.fenced.pop(ledger_id, None)
            self.lacs.pop(ledger_id, None)
        try:
            self.storage.evict(ledger_ids, self.storage.offer(ledger_ids))
        except DiskFull:
            return False
        if self.storage._keeper._frozen is not None:
            return False
        here = self.storage.ledger_ids()
        assert all(one not in here for one in ledger_ids), "it is evicted"
        for ledger_id in ledger_ids:
            self.evicting[ledger_id] = {}
            self.evicted[ledger_id] = None
        return True

    def collect(self, share: float = 0.9) -> int:
        """Collect the garbage of all ledger directories; return how many logs went."""
        removed = 0
        for directory in self.storage.ledger_directories:
            collection = DirectoryCollection(directory, COLLECTOR, self.storage.ledger_ids)
            with suppress(DiskFull):
                for _ in collection.run(share):
                    pass
            assert not collection.report.damages, collection.report.damages
            removed += collection.report.logs_removed
        return removed

    def check(self, *, bytes_max: int = 700) -> None:
        """Every promise is kept, nothing is there that was never sent, and it knows that."""
        assert self.storage.limbo is None, f"it is in doubt: {self.storage.doubts}"
        ledgers = self.sent.keys() | self.fenced.keys() | set(self.storage.ledger_ids())
        for ledger_id in sorted(ledgers):
            if ledger_id in self.deleted:
                self._check_deleted(ledger_id)
                continue
            found = entries_of(self.storage, ledger_id, bytes_max=bytes_max)
            promised = self.stored.get(ledger_id, {})
            for entry_id in promised:
                assert entry_id in found, f"entry {entry_id} of ledger {ledger_id} is lost"
            for entry_id, frame in found.items():
                assert frame == self.sent[ledger_id][entry_id], f"{ledger_id}/{entry_id} is other"
            if ledger_id in self.evicting and found:
                assert found.keys() >= self.evicting[ledger_id].keys(), f"{ledger_id} is half here"
                assert ledger_id not in self.evicted, f"{ledger_id} came back by itself"
            self._check_lac(ledger_id, promised, found)
            if ledger_id in self.evicted:
                assert self.storage.add(run_of(ledger_id, 10**6)) == (Status.FENCED, 0)
            if ledger_id in self.fenced:
                status, _ = self.storage.add(run_of(ledger_id, 10**6))
                assert status is Status.FENCED

    def _check_deleted(self, ledger_id: int) -> None:
        storage, gone = self.storage, Status.NO_SUCH_LEDGER
        assert ledger_id not in storage.ledger_ids(), f"{ledger_id} came back"
        assert storage.read(ReadQuery(ledger_id, KEY, 0, EVERYTHING)).status is gone
        assert storage.lac(ledger_id, KEY).status is gone
        assert storage.fence(ledger_id, KEY) == (gone, 0)
        status, _ = storage.add(run_of(ledger_id, 3, recovery=True))
        assert status is gone or (status is Status.TOO_MANY_REQUESTS and storage.troubles)

    def _check_lac(self, ledger_id: int, promised: Iterable[int], found: Iterable[int]) -> None:
        answer = self.storage.lac(ledger_id, KEY)
        known = answer.status is Status.OK
        assert known or answer.status is Status.NO_SUCH_LEDGER
        lacs = [parse_header(self.sent[ledger_id][e]).last_add_confirmed for e in promised]
        if ledger_id in self.lacs:
            lacs.append(self.lacs[ledger_id])
        if lacs:
            assert known, f"ledger {ledger_id} is lost"
            lac = parse_header(answer.lac_proof).last_add_confirmed
            assert lac >= max(lacs), f"the LAC of {ledger_id} fell to {lac} from {max(lacs)}"
        if known:
            assert answer.last_entry == max(found, default=-1)
        assert answer.fenced or ledger_id not in self.fenced, f"{ledger_id} lost its fence"

    def _learn(self, durable: int) -> None:
        for ticket, ledger_id, entries in self._waiting:
            if ticket > durable:
                continue
            if entries is None:
                self.fenced[ledger_id] = None
            else:
                self.stored.setdefault(ledger_id, {}).update(dict.fromkeys(entries))
        self._waiting = [waiting for waiting in self._waiting if waiting[0] > durable]
