"""A bookie as a process, with limits so small that every part of its storage is always at work.

python -m tests.bookie.small_bookie URI DIRECTORY [several] [lazy]

*lazy*: it makes no checkpoint, and collects nothing, before it is asked to stop.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

from bookie.collector.plan import CollectorConfig
from bookie.command import run_until_signal
from bookie.config import BookieConfig
from bookie.disk.watch import DiskLimits
from bookie.server.limits import ServiceConfig
from bookie.storage.config import StorageConfig
from ledger import log_events
from ledger.errors import LogError
from ledger.process import die_with_parent

NAME: Final = "small"
KIB: Final = 1024


def config(uri: str, directory: Path, *, several: bool, lazy: bool = False) -> BookieConfig:
    journals = tuple(directory / f"journal{at}" for at in range(2)) if several else ()
    ledgers = tuple(directory / f"ledgers{at}" for at in range(3)) if several else ()
    return BookieConfig(
        uri=uri,
        directory=directory,
        journal_directories=journals,
        ledger_directories=ledgers,
        bookie=NAME,
        disk_limits=DiskLimits(reserve_bytes=1024 * KIB),
        disk_interval_s=0.2,
        service=ServiceConfig(
            checkpoint_interval_s=3600.0 if lazy else 0.25,
            checkpoint_bytes=(4096 if lazy else 128) * KIB,
        ),
        storage=StorageConfig(
            memtable_bytes_max=4096 * KIB,
            recovery_reserve_bytes=512 * KIB,
            journal_file_bytes_max=256 * KIB,
            journal_preallocate_bytes=64 * KIB,
            recent_bytes_max=256 * KIB,
            entry_log_bytes_max=256 * KIB,
            index_cache_bytes=64 * KIB,
            ledgers_in_memory_max=20,
            files_open_max=12,
        ),
        collector=CollectorConfig(
            gc_interval_s=0.5,
            minor_share=0.5,
            minor_interval_s=0.7,
            major_share=0.9,
            major_interval_s=2.0,
            log_bytes_max=256 * KIB,
            reserve_bytes=512 * KIB,
        ),
    )


def main() -> None:
    die_with_parent()
    log_events.configure()
    uri, directory, *rest = sys.argv[1:]
    try:
        several, lazy = "several" in rest, "lazy" in rest
        asyncio.run(run_until_signal(config(uri, Path(directory), several=several, lazy=lazy)))
    except LogError as error:
        print(f"bookie: {error}", file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()
