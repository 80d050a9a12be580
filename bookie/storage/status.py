"""The status of a bookie's storage, for operators."""

from collections.abc import Sequence
from dataclasses import dataclass

from bookie.journal.format import JournalMark
from bookie.journal.journals import Journals
from bookie.storage.config import StorageConfig
from bookie.storage.holdings import StorageState


@dataclass(frozen=True, slots=True)
class JournalStatus:
    path: str
    mark: JournalMark
    """Where replay would begin."""
    end: JournalMark
    """Every record before this place is durable."""
    files: int
    size_bytes: int
    """On disk, with what is preallocated and the files that are kept to be written again."""
    full: bool


@dataclass(frozen=True, slots=True)
class CacheStatus:
    name: str
    unit: str
    used: int
    at_most: int
    hits: int
    misses: int


@dataclass(frozen=True, slots=True)
class LedgerDirectoryStatus:
    path: str
    failure: str
    """Why it is only read from; empty: it is not."""


@dataclass(frozen=True, slots=True)
class StorageStatus:
    journals: tuple[JournalStatus, ...]
    active_bytes: int
    """In the memtable that is being filled."""
    flushing_bytes: int
    """In the one that a checkpoint writes out."""
    recent_bytes: int
    """In the one that the last checkpoint wrote."""
    memtable_bytes_max: int
    caches: tuple[CacheStatus, ...]
    ledgers: int
    ledger_directories: tuple[LedgerDirectoryStatus, ...]


def status_of(
    holdings: StorageState, journals: Journals, marks: Sequence[JournalMark], config: StorageConfig
) -> StorageStatus:
    """Put it together; sizes of files are asked of the disk."""
    directories = holdings.directories
    ends, full = journals.positions(), journals.full
    written = [journals.files(journal) for journal in range(len(journals))]
    kept = [sum(journals.spares(journal)) for journal in range(len(journals))]
    with holdings.lock:
        memory = holdings.memory
        flushing = memory.flushing
        active_bytes = memory.active.size_bytes
        flushing_bytes = 0 if flushing is None else flushing.size_bytes
        recent_bytes = memory.recent.size_bytes
        ledgers, records = holdings.ledgers.known, len(holdings.ledgers)
        records_max = holdings.ledgers.in_memory_max
    indexes = [directory.index.cache for directory in holdings.ledger_directories]
    ahead = holdings.read_cache
    return StorageStatus(
        tuple(
            JournalStatus(
                disk.describe(""),
                marks[at],
                ends[at],
                len(written[at]),
                sum(written[at]) + kept[at],
                at in full,
            )
            for at, disk in enumerate(directories.journals)
        ),
        active_bytes,
        flushing_bytes,
        recent_bytes,
        config.memtable_bytes_max,
        (
            CacheStatus(
                "index pages",
                "pages",
                sum(map(len, indexes)),
                sum(cache.pages_max for cache in indexes),
                sum(cache.hits for cache in indexes),
                sum(cache.misses for cache in indexes),
            ),
            CacheStatus(
                "read ahead",
                "bytes",
                ahead.size_bytes,
                config.read_cache_bytes,
                ahead.hits,
                ahead.misses,
            ),
            CacheStatus("ledger headers", "ledgers", records, records_max, 0, 0),
        ),
        ledgers,
        tuple(
            LedgerDirectoryStatus(
                directory.disk.describe(""),
                "" if directory.failure is None else str(directory.failure),
            )
            for directory in holdings.ledger_directories
        ),
    )
