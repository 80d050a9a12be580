"""A bookie on a bad machine: on a slow disk while DIRECTORY/slow is there, and with a memory that
changes what it has read while DIRECTORY/wrong is.

    python -m tests.deploy.troubled_bookie DIRECTORY OPTION ...
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from bookie.command import main
from bookie.server.service import BookieService, Turn
from ledger.requests import ReadAnswer, ReadQuery

SYNC_S = 0.3
"""Of a journal on a slow disk."""

if __name__ == "__main__":
    directory = Path(sys.argv.pop(1))
    slow, wrong = directory / "slow", directory / "wrong"
    really_sync, really_read = os.fdatasync, BookieService.read

    def fdatasync(descriptor: int) -> None:
        if slow.exists():
            time.sleep(SYNC_S)
        really_sync(descriptor)

    async def read(
        service: BookieService, query: ReadQuery, turn: Turn | None = None
    ) -> ReadAnswer:
        answer = await really_read(service, query, turn)
        if not (wrong.exists() and answer.frames):
            return answer
        *most, last = answer.frames
        return replace(answer, frames=bytes([*most, last ^ 1]))

    os.fdatasync = fdatasync  # type: ignore[assignment] # journals pass numbers
    BookieService.read = read  # type: ignore[method-assign,assignment]
    main()
