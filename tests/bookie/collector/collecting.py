"""A ledger directory on a simulated disk, what was stored in it, and what must still be there."""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace

from bookie.collector.collection import DirectoryCollection
from bookie.collector.plan import CollectorConfig
from bookie.entrylog.format import DIRECTORY
from bookie.index.format import LedgerHeader
from bookie.loss.census import Rolls
from bookie.storage.ledger_directory import LedgerDirectory, LedgerDirectoryConfig
from bookie.storage.memtable import Memtable
from tests.bookie.entrylog.test_entrylog import piece
from tests.bookie.runs import KEY
from tests.simulation.disk import SimDisk

CONFIG = CollectorConfig(log_bytes_max=2000, reserve_bytes=0)


class Collecting:
    """See the module's docstring."""

    def __init__(
        self, disk: SimDisk, *, config: CollectorConfig = CONFIG, log_bytes_max: int = 1000
    ) -> None:
        self.disk = disk
        self.config = config
        self.log_bytes_max = log_bytes_max
        self.stored: dict[int, dict[int, bytes]] = {}
        """Frames by ledger and entry: what was acknowledged of ledgers that are not deleted."""
        self.deleted: set[int] = set()
        self.may_be_lost: frozenset[int] = frozenset()
        self.open()

    def open(self) -> None:
        """Start, for the first time or again; nothing of an earlier start is used any more."""
        config = LedgerDirectoryConfig(
            entry_log_bytes_max=self.log_bytes_max,
            index_cache_bytes=20_000,
            files_open_max=3,
            in_place_ledgers=1000,
            redo_bytes_max=50_000,
            redo_blocks_max=100,
        )
        self.directory = LedgerDirectory(self.disk, config)
        recovered = self.directory.recover(Rolls())
        self.directory.begin(recovered)
        self.headers = {one: self.directory.index.load(one) for one in recovered.here}
        self.collection = DirectoryCollection(
            self.directory,
            self.config,
            lambda: frozenset(self.headers),
            lambda ledger_id: ledger_id in self.may_be_lost,
        )

    def flush(self, entries: dict[int, Iterable[int]], *, payload: bytes = b"p" * 100) -> None:
        """Store *entries*, given by ledger; they are acknowledged afterwards."""
        memtable, headers = Memtable(), []
        new: dict[int, dict[int, bytes]] = {}
        for ledger_id, ids in sorted(entries.items()):
            run = piece(ledger_id, *ids, payload=payload).run
            memtable.add(ledger_id, run)
            headers.append(self.headers.get(ledger_id, LedgerHeader(ledger_id, KEY)))
            frames = {entry_id: run.frame(at) for at, entry_id in enumerate(run.entries)}
            new[ledger_id] = frames
        for header in self.directory.flush(headers, memtable):
            self.headers[header.ledger_id] = header
        for ledger_id, frames in new.items():
            self.stored.setdefault(ledger_id, {}).update(frames)

    def delete(self, *ledger_ids: int) -> None:
        """Delete as the storage does."""
        for ledger_id in ledger_ids:
            self.stored.pop(ledger_id, None)  # whether it succeeds is not known meanwhile
        self.directory.bury(ledger_ids)
        self.deleted |= set(ledger_ids)
        for ledger_id in ledger_ids:
            self.headers.pop(ledger_id, None)
        self.directory.remove(ledger_ids)

    def evict(self, *ledger_ids: int) -> None:
        """Evict as the storage does."""
        for ledger_id in ledger_ids:
            self.stored.pop(ledger_id, None)

        def forget(gone: Sequence[int]) -> Sequence[int]:
            for ledger_id in gone:
                self.headers.pop(ledger_id, None)
            return gone

        self.directory.evict(ledger_ids, forget)

    def collect(self, share: float = 0.8) -> None:
        for _ in self.steps(share):
            pass

    def steps(self, share: float = 0.8) -> Generator[int, None, None]:
        return self.collection.run(share)

    def check(self) -> None:
        """Everything that was acknowledged is there, byte for byte; what was deleted is not."""
        assert self.deleted.isdisjoint(self.headers), "a deleted ledger came back"
        for ledger_id, frames in sorted(self.stored.items()):
            assert ledger_id in self.headers, f"ledger {ledger_id} is gone"
            stored = self.directory.reader.find(self.headers[ledger_id], 0, 10_000, 1 << 30)
            assert stored.damage is None, stored.damage
            found = {
                entry_id: one.run.frame(one.begin + at)
                for one in stored.found.pieces
                for at, entry_id in enumerate(one.entries)
            }
            assert {entry_id: found.get(entry_id) for entry_id in frames} == frames

    def logs(self) -> list[str]:
        return self.disk.list(DIRECTORY)

    def log_bytes(self) -> int:
        return sum(len(self.disk.content(f"{DIRECTORY}/{name}")) for name in self.logs())

    def stored_bytes(self) -> int:
        return sum(len(frame) for frames in self.stored.values() for frame in frames.values())

    def limited(self, **changes: float) -> None:
        """Change the collector's configuration."""
        self.config = replace(self.config, **changes)  # type: ignore[arg-type]
        self.collection = DirectoryCollection(
            self.directory,
            self.config,
            lambda: frozenset(self.headers),
            lambda ledger_id: ledger_id in self.may_be_lost,
        )
