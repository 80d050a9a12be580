"""What a client process is asked: a line of words for each command, a line of JSON as its answer.

    throughput NAME SIZE S [LOGS]      append records of SIZE bytes for S seconds, to LOGS logs at
                                       once: records, seconds
    fill NAME SIZE COUNT               append COUNT records: records, seconds
    crash NAME SIZE S                  as throughput, and be gone without closing: records, seconds
    takeover NAME                      open for writing and append one record: seconds
    lone NAME SIZE S                   append one at a time: times_us
    paced NAME SIZE RATE S [LOGS]      append RATE a second, whatever the answers, to LOGS logs in
                                       turns: times_us
    tailed NAME SIZE RATE S [TAILS]    append RATE a second to one log, until a reader beside the
                                       writer has them, or each of TAILS: times_us
    read NAME COUNT                    read COUNT records from the first on: seconds
    hold NAME LOGS                     open LOGS logs, append one record to each: seconds
    release NAME                       close what is held

Where neither COUNT nor `takeover` says how many, one record comes first that nobody counts: a log
is really there once something is in it. All times of `paced` and `tailed` count from when a record
was due, not from when its sender came to it. What is due within half a millisecond is due at its
end, together. Of several logs, each is NAME, a dash and its number. `java/Loops.java` is the same
for clients in Java; there, `lead NAME` opens for writing and says who leads, and `next` appends one
record to that.
"""

import asyncio
import gc
import json
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

Answer = Mapping[str, object]
Command = Callable[..., Answer]
AsyncCommand = Callable[..., Awaitable[Answer]]

TICK_S: Final = 0.0005
PATIENCE_S: Final = 120.0


def serve(commands: Mapping[str, Command]) -> None:
    """Answer what comes in until it ends. Called with the name and numbers of each command."""
    _tell({"ready": 1})
    for line in sys.stdin:
        word, name, *numbers = line.split()
        try:
            _tell(commands[word](name, *map(float, numbers)))
        except Exception as error:  # noqa: BLE001 - the one who asked is told
            _tell_error(error)
        _settle()


async def serve_async(commands: Mapping[str, AsyncCommand]) -> None:
    """As `serve`. The loop runs between commands too, as an application's does."""
    _tell({"ready": 1})
    while line := await asyncio.to_thread(sys.stdin.readline):
        word, name, *numbers = line.split()
        try:
            _tell(await commands[word](name, *map(float, numbers)))
        except Exception as error:  # noqa: BLE001 - the one who asked is told
            _tell_error(error)
        _settle()


def _settle() -> None:
    """Once, after the first command: keep what a process has for its whole life, modules above
    all, out of the collector's sight, as `docs/writing.md` advises who looks at his slowest
    appends. A search of 67,000 such objects takes 28 ms, in which nothing else runs."""
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def _tell_error(error: Exception) -> None:
    traceback.print_exc()
    _tell({"error": f"{type(error).__name__}: {error}"})


def _tell(answer: Answer) -> None:
    print(json.dumps(answer), flush=True)


def burst_and_tick(rate: float) -> tuple[int, float]:
    """Return how many records are due together, and every how many seconds."""
    tick_s = max(TICK_S, 1 / rate)
    return round(rate * tick_s), tick_s


def told(times: Sequence[float]) -> Answer:
    return {"times_us": [round(each * 1e6) for each in times]}


def marked(size: int, index: int) -> bytes:
    """Return a record that says its *index*; negative: it only wakes the reader up."""
    return index.to_bytes(8, "big", signed=True).ljust(size, b"\0")


def mark_of(record: bytes) -> int:
    return int.from_bytes(record[:8], "big", signed=True)


FIRST: Final = marked(100, -1)
