"""How long audits and checks of all ledgers take, and how much memory, with few and with many.

Metadata is read by all of them. The first audit finds a bookie lost that no ledger names, so it
reads only; the second one also marks each of `Sizes.marked_of` ledgers. The check asks every bookie
what it holds of each ledger, three answers for each.
"""

import asyncio
import json
import sys
from itertools import combinations, cycle, islice
from pathlib import Path
from typing import Any, Final

from benchmarks.repair.bench import Bench, Running, running
from benchmarks.repair.making import make_ledgers
from bookie.autorecovery.marks import Marks
from ledger.ids import BookieId, LedgerId
from ledger.registry import COOKIES

_UNNAMED: Final = BookieId("lost-and-empty")
_LOST: Final = BookieId("lost")
_AIM_AUDIT_S: Final = 60.0
_AIM_CHECK_S: Final = 300.0
_AIM_GROWTH: Final = 1.1
_ROOT: Final = Path(__file__).parents[2]


async def passes(bench: Bench, directory: Path) -> None:
    async with running(bench, directory) as on:
        marks = Marks(on.client.store)
        peaks: dict[str, list[float]] = {}
        there = 0
        for count in bench.sizes.ledgers:
            await _grow(bench, on, there, count)
            there = count
            is_most = count == max(bench.sizes.ledgers)
            for what, lost, aim in (
                ("audit", _UNNAMED, _AIM_AUDIT_S),
                ("audit that marks", _LOST, _AIM_AUDIT_S),
                ("check by ranges", None, _AIM_CHECK_S),
            ):
                told = await _apart(on, lost)
                name = f"{what} of {count:,} ledgers"
                assert told["ledgers"] == count, told
                if is_most:
                    bench.at_most(name, told["seconds"], "s", aim)
                else:
                    bench.note(name, told["seconds"], "s")
                bench.note(f"{name}: CPU", told["cpu_seconds"], "s")
                bench.note(f"{name}: metadata calls", told["calls"] / count, "/ledger")
                if lost is not None:
                    bench.note(f"{name}: marked", told["marked"], "")
                else:
                    bench.none(f"{name}: lacking", told["lacking"])
                bench.note(f"{name}: memory at its peak", told["memory_peak_bytes"] / 1e6, "MB")
                bench.none(f"{name}: sessions lost", told["sessions_lost"])
                peaks.setdefault(what, []).append(told["memory_peak_bytes"])
            await _unmark(marks)
        fewest, most = min(bench.sizes.ledgers), max(bench.sizes.ledgers)
        for what, peak in peaks.items():
            name = f"{what}: memory of {most:,} ledgers, against {fewest:,}"
            bench.at_most(name, peak[-1] / peak[0], "times", _AIM_GROWTH)


async def _grow(bench: Bench, on: Running, there: int, count: int) -> None:
    bookies = [BookieId(process.bookie) for process in on.cluster.processes]
    ensembles = list(islice(cycle(combinations(bookies, 3)), count - there))
    for index in range(0, len(ensembles), bench.sizes.marked_of):
        ensembles[index] = (_LOST, *ensembles[index][1:])
    await make_ledgers(on, ensembles, absent=frozenset({_LOST}))


async def _apart(on: Running, lost: BookieId | None) -> dict[str, Any]:
    """Audit in a process of its own while *lost* is lost, or check; return what it told."""
    store = on.client.store
    arguments: tuple[str, ...] = ("check",)
    if lost is not None:
        await store.create(f"{COOKIES}/{lost}")
        arguments = ("audit", lost)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.repair.apart", on.cluster.uri, *arguments),
            stdout=asyncio.subprocess.PIPE,
            cwd=_ROOT,
        )
        printed, _ = await process.communicate()
    finally:
        if lost is not None:
            await store.delete(f"{COOKIES}/{lost}")
    assert process.returncode == 0, "it says why"
    told: dict[str, Any] = json.loads(printed)
    return told


async def _unmark(marks: Marks) -> None:
    """Delete all marks, some at a time."""
    ids: list[LedgerId] = [ledger_id async for ledger_id in marks.list()]
    waiting = iter(ids)

    async def work() -> None:
        for ledger_id in waiting:
            found = await marks.read(ledger_id)
            if found is not None and await marks.lock(ledger_id):
                await marks.end(ledger_id, found[1])

    await asyncio.gather(*(work() for _ in range(50)))
