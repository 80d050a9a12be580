"""A bookie that hardly checkpoints, to make a long journal: `python -m ... URI DIRECTORY`."""

import asyncio
import sys
from pathlib import Path
from typing import Final

from benchmarks.bookie.bench import BOOKIE, UNMADE_LEDGERS
from bookie.command import run_until_signal
from bookie.config import BookieConfig
from bookie.server.limits import ServiceConfig
from bookie.storage.config import StorageConfig

_NEVER_BYTES: Final = 1 << 40


def main() -> None:
    config = BookieConfig(
        uri=sys.argv[1],
        directory=Path(sys.argv[2]),
        bookie=BOOKIE,
        unmade_ledgers_max=UNMADE_LEDGERS,
        service=ServiceConfig(checkpoint_interval_s=3600.0, checkpoint_bytes=_NEVER_BYTES),
        storage=StorageConfig(memtable_bytes_max=_NEVER_BYTES),
    )
    asyncio.run(run_until_signal(config))


if __name__ == "__main__":
    main()
