"""The nemeses of Jepsen's report on NATS 2.12.1, on bookies: power failures that take the page
cache along, flipped bits, pauses, partitions, clocks that jump, and bookies that come and go.

Bookies run behind `page_cache`, so each SIGKILL is a power failure. A function of the seed are the
nemeses and whom they hit; processes keep their own time.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final, Protocol

from bookie.disk.port import LOCK_FILE
from dlog.local.bookie_process import BookieProcess
from ledger.ids import LedgerId
from tests.integration.chaos import faults
from tests.integration.chaos.faults import Making
from tests.integration.chaos.repair_troubles import (
    COLD,
    Scene,
    disk_is_replaced,
    flip,
    is_emptied,
    places_of,
)
from tests.integration.chaos.writer import LOG

JUMPS_S: Final = (-31_536_000.0, -3600.0, -5.0, 0.0, 2.0, 600.0, 86_400.0, 31_536_000.0)
"""How wrong clocks become: from a year behind to a year ahead."""


class Arena(Scene, faults.Stage, Protocol):
    """What nemeses act on."""

    def jump(self, random: Random) -> None:
        """Let every clock be wrong by something else."""

    def set_clocks_right(self) -> None: ...
    async def join(self) -> str: ...
    def flip(self, process: BookieProcess, path: Path, offset: int, random: Random) -> None:
        """Flip a bit of a bookie's file, and remember which."""

    async def restart_flipped(self, index: int) -> str:
        """Start a bookie; return why it refused, if it did: then it gets its bits back."""

    async def copies_of_a_cold_entry(self, random: Random) -> tuple[LedgerId, int, list[int]]:
        """Return a ledger, an entry of it, and the bookies that have it, by index."""

    async def read_cold(self, damaged: str) -> None:
        """Read all of the cold log, and count what came of it."""

    async def repair_flips(self, *logs: str) -> None:
        """Do what an operator does who knows that disks rot, of *logs*."""


Nemesis = Callable[[Arena, Random], Making]


@asynccontextmanager
async def power_fails(stage: Arena, random: Random) -> AsyncIterator[str]:
    """All bookies at once."""
    every = range(len(stage.cluster.processes))
    for index in every:
        stage.cluster.kill_bookie(index)
    yield "all bookies"
    await asyncio.gather(*map(stage.restart_flipped, every))  # a bit may have flipped before


@asynccontextmanager
async def power_fails_among_pauses(stage: Arena, random: Random) -> AsyncIterator[str]:
    """One bookie loses its power while two stand still; as it is back, these go on and two others
    stand still, so that it has to speak for what the others cannot."""
    first, second, victim, *others = random.sample(list(stage.cluster.processes), 5)
    async with AsyncExitStack() as stack:
        for process in (first, second):
            await stack.enter_async_context(_still(process))
        await asyncio.sleep(random.uniform(0.5, 2.0))
        index = stage.cluster.processes.index(victim)
        stage.cluster.kill_bookie(index)
        await stage.restart_flipped(index)
    async with AsyncExitStack() as stack:
        for process in others:
            await stack.enter_async_context(_still(process))
        yield f"{victim.name}, while {first.name} and {second.name} stand still, then others"


def bit_flips(*, majority: bool) -> Nemesis:
    """One bit of a file of each of so many bookies; of every second one after it was stopped."""

    @asynccontextmanager
    async def making(stage: Arena, random: Random) -> AsyncIterator[str]:
        count = len(stage.cluster.processes)
        most = count // 2 + 1
        victims = random.sample(range(count), most if majority else math.ceil(count / 2) - 1)
        hit = []
        for number, index in enumerate(victims):
            hit.append(await _flip_one(stage, random, index, stopped=bool(number % 2)))
        yield ", ".join(hit)
        await stage.repair_flips(COLD, LOG)

    return making


def same_entry_rots(*, everywhere: bool) -> Nemesis:
    """One bit of the same entry on two of the three bookies that have it, or on all of them."""

    @asynccontextmanager
    async def making(stage: Arena, random: Random) -> AsyncIterator[str]:
        await stage.dlog("autorecovery", "disable")  # else what a bookie has is moved meanwhile
        ledger_id, entry, holders = await stage.copies_of_a_cold_entry(random)
        victims = holders if everywhere else random.sample(holders, len(holders) - 1)
        flipped = []
        for index in victims:
            process = stage.cluster.processes[index]
            await stage.cluster.stop_bookie(index)  # in order: its entry logs have all of it
            ((path, offset),) = await places_of(stage, process, [(ledger_id, entry)])
            flip(path, offset, bit := 1 << random.randrange(8))
            flipped.append((path, offset, bit))
            await stage.restart_flipped(index)
        await stage.read_cold("everywhere" if everywhere else "majority")
        yield f"entry {entry} of ledger {ledger_id} on {len(victims)} of {len(holders)}"
        if everywhere:  # it is gone; what comes back is one copy, so that the run can go on
            flip(*flipped[0])
        await stage.dlog("autorecovery", "enable")
        await stage.repair_flips(COLD)

    return making


async def _flip_one(stage: Arena, random: Random, index: int, *, stopped: bool) -> str:
    process = stage.cluster.processes[index]
    if stopped:
        stage.cluster.kill_bookie(index)
    path = _some_file(process.directory, random)
    offset = random.randrange(path.stat().st_size)
    where = f"{process.name}:{path.relative_to(process.directory)}@{offset}"
    stage.flip(process, path, offset, random)
    if not stopped:
        return where
    refusal = await stage.restart_flipped(index)
    return f"{where} ({f'refused: {refusal}' if refusal else 'restarted'})"


def _some_file(directory: Path, random: Random) -> Path:
    """Draw a file of a bookie that is not empty: of journal, index, entry logs or the rest."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(directory.rglob("*")):
        ours = path.name != LOCK_FILE and not path.name.startswith(".")
        with suppress(FileNotFoundError):  # the bookie may have removed it meanwhile
            ours = ours and path.is_file() and path.stat().st_size > 0
        if ours:
            kind = path.relative_to(directory).parts[0] if path.parent != directory else ""
            kinds.setdefault(kind, []).append(path)
    return random.choice(kinds[random.choice(sorted(kinds))])


def several(count: int, one: Callable[[BookieProcess, Arena], Making]) -> Nemesis:
    @asynccontextmanager
    async def making(stage: Arena, random: Random) -> AsyncIterator[str]:
        victims = random.sample(list(stage.cluster.processes), count)
        async with AsyncExitStack() as stack:
            for process in victims:
                await stack.enter_async_context(one(process, stage))
            yield ", ".join(process.name for process in victims)

    return making


def _still(process: BookieProcess, _stage: object = None) -> Making:
    return faults.stopped(lambda number: faults.signal_to(process, number), process.name)


def _cut_off(process: BookieProcess, stage: Arena) -> Making:
    place = stage.cluster.places[stage.cluster.processes.index(process)]
    return faults.cut(place, place.name)


@asynccontextmanager
async def clocks_jump(stage: Arena, random: Random) -> AsyncIterator[str]:
    stage.jump(random)
    await asyncio.sleep(1.0)
    stage.jump(random)
    yield "all processes, twice, by up to a year"
    stage.set_clocks_right()


@asynccontextmanager
async def bookies_change(stage: Arena, random: Random) -> AsyncIterator[str]:
    """One joins; another one is emptied and retired; a third one gets another disk and name."""
    joined = await stage.join()
    yield f"{joined} joins, one leaves in order, one gets a new disk and name"
    await stage.cluster.drop_bookie(await is_emptied(stage, random))
    await disk_is_replaced(stage, random)


def nemeses(*, cuts: bool) -> dict[str, Nemesis]:
    """Return those that are possible, by what is said of them."""
    found: dict[str, Nemesis] = {
        "power failure of all bookies": power_fails,
        "power failure of one among pauses": power_fails_among_pauses,
        "a bit flips on a minority": bit_flips(majority=False),
        "a bit flips on a majority": bit_flips(majority=True),
        "the same entry rots on 2 of 3": same_entry_rots(everywhere=False),
        "the same entry rots on 3 of 3": same_entry_rots(everywhere=True),
        "pause of the leader": faults.stop_leader,
        "pause of a minority": several(2, _still),
        "pause of a majority": several(3, _still),
        "clocks jump": clocks_jump,
        "membership changes": bookies_change,
        "takeover by nobody elected": faults.usurp,
    }
    if cuts:
        found["partition of the leader"] = faults.cut_leader
        found["partition of a minority"] = several(2, _cut_off)
        found["partition of a majority"] = several(3, _cut_off)
    return found
