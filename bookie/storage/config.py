"""How much memory and disk the storage of a bookie takes, and when it begins new files."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

ENTRY_LOG_BYTES_MIN: Final = 64 * 1024 * 1024
ENTRY_LOG_BYTES_MAX: Final = 1024 * 1024 * 1024
ENTRY_LOG_SHARE: Final = 1 / 500
"""Of a disk, in one entry log: what was deleted holds a small share of it until the log is full."""


def entry_log_bytes_for(disks_bytes: Iterable[int]) -> int:
    """Return when an entry log is full, where the disks of ledgers have *disks_bytes* each.

    Space comes back by whole logs, and never from the one that is written: on a small disk a log
    of a gigabyte would keep gigabytes of which megabytes are alive."""
    least = min(disks_bytes, default=0)
    return max(ENTRY_LOG_BYTES_MIN, min(round(least * ENTRY_LOG_SHARE), ENTRY_LOG_BYTES_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    memtable_bytes_max: int = 128 * 1024 * 1024
    """Adds are refused while so much waits for a checkpoint; as much again during one."""
    recovery_reserve_bytes: int = 32 * 1024 * 1024
    """So much more is taken from recovery adds."""
    journal_file_bytes_max: int = 256 * 1024 * 1024
    journal_preallocate_bytes: int = 128 * 1024 * 1024
    """Space taken ahead; when there is no more to be had, adds are refused, and what was accepted
    before has to fit into seven eighths of it."""
    recent_bytes_max: int = 128 * 1024 * 1024
    """What a checkpoint wrote stays in memory until the next begins, if it is not more."""
    journal_spares_max: int = 2
    """So many files of each journal that are not needed any more are kept, to be written again;
    none on a disk that is well filled."""
    journal_block_bytes: int = 4096
    """What is written to such a file is filled up with zeros to this."""
    entry_log_bytes_max: int | None = None
    """When an entry log is full; None: as large as the disks let it be (`entry_log_bytes_for`)."""
    index_cache_bytes: int = 32 * 1024 * 1024
    """Shared out among the ledger directories, as the files are."""
    index_in_place_ledgers: int = 1000
    """Whose blocks a checkpoint puts into their index files, in each ledger directory; those of
    others stay in the redo file for now."""
    index_redo_bytes_max: int = 128 * 1024 * 1024
    """When the redo files are larger, or have more blocks that wait, a checkpoint puts all of them
    into index files. Shared out among the ledger directories."""
    index_redo_blocks_max: int = 1 << 18
    read_cache_bytes: int = 64 * 1024 * 1024
    """Of entries that were read ahead; 0 switches reading ahead off."""
    read_ahead_bytes: int = 4 * 1024 * 1024
    ledgers_in_memory_max: int = 20_000
    """Ledgers whose key and fence stay in memory after they were flushed."""
    files_open_max: int = 400
    """Of index files, and of entry logs."""

    def __post_init__(self) -> None:
        assert self.memtable_bytes_max > 0, "without a memtable no add can be taken"
        assert self.files_open_max > 0, "without open files nothing can be read"
        assert self.ledgers_in_memory_max > 0, "a ledger in use has to be in memory"
