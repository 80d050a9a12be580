"""Where the time of a lone append goes: its parts, from hand-over to hand-over.

    python -m benchmarks.lone [--seconds 5] [--directory DIR]

Three bookies and a client as in `benchmarks.ledger`; one append of 100 B after the other. The parts
are those of the bookie whose ack made the quorum, and add up to the whole for each append; what is
printed are medians, which need not.
"""

import argparse
import asyncio
import json
import tempfile
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.ledger import LONE_BYTES, running
from benchmarks.stamps import Stamp, stamp, stamps
from dlog.aio import Log
from dlog.local.bookie_process import BookieProcess
from ledger.transport.session import BookieSession
from ledger.writer import LedgerWriter

PARTS: Final = (
    "client: batch, frame, message",
    "client: sends, until this bookie's turn is over",
    "the message travels, the bookie wakes",
    "bookie: takes the message apart, checks it, keeps it",
    "bookie: writes to the journal",
    "bookie: syncs",
    "bookie: makes and sends the ack",
    "the ack travels, the client wakes",
    "client: takes the ack apart, confirms",
    "client: tells the caller, who runs again",
)
_WARM: Final = 300
"""Appends before: bookies have to know their disk."""
_began: Final = itemgetter(2)

Found = Sequence[Stamp]
Call = tuple[float, float]


def parts_of(call: Call, client: Found, bookies: Mapping[str, Found]) -> list[float] | None:
    """Return how long each of `PARTS` took; None if something else came between.

    *client* and *bookies*, those by their addresses, are ordered by when they began."""
    called, returned = call
    here = _between(client, called, returned)
    confirms = [each for each in here if each[0] == "_confirm"]
    sent = [each for each in here if each[0] == "add"]
    if len(confirms) != 1 or not sent:
        return None
    confirmed = confirms[0]
    ack = [each for each in here if each[0] == "_acked" and each[2] < confirmed[2]][-1]
    address, batch = ack[1].split()
    sends = [each for each in sent if each[1] == address]
    there = _between(bookies[address], called, ack[2])
    taken = [each for each in there if each[:2] == ("_take", batch)]
    answers = [each for each in there if each[:2] == ("send", batch)]
    syncs = [each for each in there if each[0] == "sync" and taken and each[2] > taken[0][3]]
    if any(len(found) != 1 for found in (sends, taken, answers, syncs)):  # a checkpoint syncs, too
        return None
    times = (
        called, sent[0][2], sends[0][3], taken[0][2], taken[0][3], syncs[0][2], syncs[0][3],
        answers[0][3], ack[2], confirmed[3], returned,
    )  # fmt: skip
    return [times[at + 1] - times[at] for at in range(len(PARTS))]


def _between(found: Found, began: float, ended: float) -> Found:
    first = bisect_left(found, began, key=_began)
    return found[first : bisect_left(found, ended, lo=first, key=_began)]


def kept_of(process: BookieProcess) -> Path:
    return process.directory.with_suffix(".stamps")


def stamp_bookies() -> None:
    """Let bookies that this process starts keep their stamps."""
    inner = BookieProcess._command  # noqa: SLF001

    def command(process: BookieProcess) -> list[str]:
        words = inner(process)
        at = words.index("bookie")
        return [*words[:at], "benchmarks.stamps", str(kept_of(process)), *words[at + 1 :]]

    BookieProcess._command = command  # type: ignore[method-assign, assignment] # noqa: SLF001


async def appended(directory: Path, seconds: float) -> tuple[list[Call], dict[str, Found]]:
    """Return when each append was called and returned, and the stamps of bookies."""
    calls: list[Call] = []
    async with running(directory) as (cluster, client):
        processes = cluster.processes
        addresses = [each.address for each in cluster.bookies()]
        async with await Log.open("lone", client=client) as log:
            for _ in range(_WARM):
                await log.append(bytes(LONE_BYTES))
            end = time.perf_counter() + seconds
            while (called := time.perf_counter()) < end:
                await log.append(bytes(LONE_BYTES))
                calls.append((called, time.perf_counter()))
    kept = map(kept_of, processes)
    return calls, {
        address: sorted((tuple(each) for each in json.loads(path.read_text())), key=_began)
        for address, path in zip(addresses, kept, strict=True)
    }


def main(directory: Path, seconds: float) -> None:
    stamp_bookies()
    stamp(BookieSession, "add", lambda session, *_: session.address)
    stamp(BookieSession, "_acked", lambda session, frame: f"{session.address} {frame.number}")
    stamp(LedgerWriter, "_confirm")
    with tempfile.TemporaryDirectory(dir=directory) as place:
        calls, bookies = asyncio.run(appended(Path(place), seconds))
    client = sorted(stamps, key=_began)
    rows = [row for call in calls if (row := parts_of(call, client, bookies)) is not None]
    for name, times in zip(PARTS, zip(*rows, strict=True), strict=True):
        print(f"{median(times) * 1e6:8.0f} us  {name}")
    print(f"{median(after - before for before, after in calls) * 1e6:8.0f} us  the whole")
    print(f"of {len(rows)} of {len(calls)} appends, in whose way nothing else came")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--directory", type=Path, default=Path.cwd(), help="on the disk to be measured"
    )
    options = parser.parse_args()
    main(options.directory, options.seconds)
