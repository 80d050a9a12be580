"""A reader that follows the log and writes down what it is given: an offset and a record a line.

A line ``trimmed FROM TO`` stands where it was told that the records in between are gone. Started
again on its file, it goes on behind the last whole line.

Call: python -m tests.integration.chaos.reader URI FILE
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Final

from dlog.aio import Log
from dlog.errors import Trimmed
from dlog.position import Start
from ledger.errors import LogError
from tests.integration.chaos.writer import LOG

POLL_S: Final = 1.0


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **fields}), flush=True)


def resume(path: Path) -> int | None:
    """Cut off a torn last line; return the offset that is read next, None at the very start."""
    if not path.exists():
        return None
    whole = path.read_bytes()
    kept = whole[: whole.rfind(b"\n") + 1]
    os.truncate(path, len(kept))
    if not kept:
        return None
    last = kept.splitlines()[-1].split()
    return int(last[2]) if last[0] == b"trimmed" else int(last[0]) + 1


async def main(uri: str, path: Path) -> None:
    position = resume(path)
    with path.open("ab", buffering=0) as out:
        while True:
            try:
                start: Start = "start" if position is None else position
                reader = await Log.tail(LOG, uri=uri, start=start)
                async with reader:
                    while True:
                        batch = await reader.read_batch(timeout_s=POLL_S)
                        if batch:
                            out.write(
                                b"".join(b"%d %s\n" % (each.offset, each.value) for each in batch)
                            )
                            position = reader.position
                        say("at", position=reader.position)
            except Trimmed as error:
                if position is not None:
                    out.write(b"trimmed %d %d\n" % (position, error.first_offset))
                    position = error.first_offset
                say("trimmed", to=error.first_offset)
            except LogError as error:
                # Following readers heal by themselves; only opening may fail for a time.
                if not error.retryable:
                    say("broken", what=f"reader ended: {type(error).__name__}: {error}")
                say("trouble", error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
