"""What befalls bookies and their disks, and what an operator does about it.

A function of the seed are the troubles and whom they hit; processes keep their own time. Each ends
with as many bookies as there were. At most one copy of an entry is lost at a time: the scene sees
that every entry has every copy before the next trouble begins.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Final, Protocol

from bookie.entrylog.format import path_of
from dlog.aio.admin import log_info
from dlog.local.bookie_process import BookieProcess
from ledger import LedgerClient
from ledger.entry import HEADER_BYTES
from ledger.ids import LedgerId
from tests.integration.chaos.processes import Cluster

COLD: Final = "cold"
"""A log that nobody writes any more."""
ROTTEN_MAX: Final = 5


class Scene(Protocol):
    """What troubles act on."""

    cluster: Cluster

    @property
    def client(self) -> LedgerClient: ...
    def note(self, what: str) -> None: ...
    def new_name(self) -> str: ...
    async def dlog(self, *arguments: str) -> tuple[int, str]: ...
    async def dlog_process(self, *arguments: str) -> asyncio.subprocess.Process: ...
    async def audited_without(self, bookie: str) -> None: ...


Trouble = Callable[[Scene, Random], Awaitable[None]]


async def dies_for_a_moment(scene: Scene, random: Random) -> None:
    """A bookie is killed, and back before anybody copies: only what was in flight is copied."""
    index, bookie = _one(scene, random)
    scene.cluster.kill_bookie(index)
    scene.note(f"{bookie.name} is killed")
    await asyncio.sleep(random.uniform(0.1, 1.0))
    await scene.cluster.restart_bookie(index)


async def two_die_and_come_back(scene: Scene, random: Random) -> None:
    """Two bookies are away until repair is under way; what was copied meanwhile stays moved."""
    every = range(len(scene.cluster.processes))
    for index in (both := random.sample(every, 2)):
        scene.cluster.kill_bookie(index)
    names = [scene.cluster.processes[index].name for index in both]
    scene.note(f"{' and '.join(names)} are killed")
    for name in names:
        await scene.audited_without(name)
    await asyncio.sleep(random.uniform(0.0, 3.0))
    for index in both:
        await scene.cluster.restart_bookie(index)


async def disk_is_replaced(scene: Scene, random: Random) -> None:
    """The disk is gone, its bookie's name is retired, and a bookie of another name has the new."""
    index, bookie = _one(scene, random)
    scene.cluster.kill_bookie(index)
    scene.note(f"{bookie.name} is killed, and its disk wiped")
    await _unregistered(scene, bookie)  # a name is not retired while it may still be in use
    status, printed = await scene.dlog(
        *("bookie", "format", "--dir", str(bookie.directory)),
        *("--wipe", "--forget", "--yes", "--json"),
    )
    assert status == 0, printed
    assert json.loads(printed)["forgotten"] is True, printed
    await scene.cluster.replace_bookie(index, scene.new_name())


async def machine_burns(scene: Scene, random: Random) -> None:
    """A machine is gone for good, and nobody says so; once repaired its name is retired."""
    index, bookie = _one(scene, random)
    scene.cluster.kill_bookie(index)
    shutil.rmtree(bookie.directory)
    scene.note(f"{bookie.name} is gone for good")
    await scene.audited_without(bookie.name)
    status, printed = await scene.dlog("bookie", "decommission", bookie.name, "--json")
    assert status == 0, printed
    assert _outcome(printed) == "retired", printed
    await scene.cluster.replace_bookie(index, scene.new_name())


async def leaves_in_order(scene: Scene, random: Random) -> None:
    """A bookie that runs is emptied and stops, and another one comes."""
    index = await is_emptied(scene, random)
    await scene.cluster.replace_bookie(index, scene.new_name())


async def is_emptied(scene: Scene, random: Random) -> int:
    """Empty a bookie that runs, by a command that is sometimes interrupted, stop it, and have
    its name retired; return which."""
    index, bookie = _one(scene, random)
    scene.note(f"{bookie.name} is decommissioned")
    if random.random() < 0.5:
        process = await scene.dlog_process("bookie", "decommission", bookie.name)
        await asyncio.sleep(random.uniform(1.0, 4.0))
        if process.returncode is None:
            process.kill()
        await process.communicate()
    for wanted in ("empty", "retired"):
        status, printed = await scene.dlog("bookie", "decommission", bookie.name, "--json")
        assert status == 0, printed
        assert _outcome(printed) == wanted, printed
        await scene.cluster.stop_bookie(index)
    return index


async def entry_log_rots(scene: Scene, random: Random) -> None:
    """Entries of a log that nobody writes any more rot on a bookie's disk; an operator verifies the
    log, and what is found is repaired."""
    index, bookie = _one(scene, random)
    await scene.dlog("autorecovery", "disable")  # else what it has is moved meanwhile
    await scene.cluster.stop_bookie(index)  # in order: nothing comes back from its journal
    rotten = await _rot(scene, random, bookie)
    await scene.cluster.restart_bookie(index)
    status, printed = await scene.dlog("log", "verify", COLD, "--repair", "--json")
    found = {
        (fault["ledger"], fault["bookie"])
        for fault in json.loads(printed)["faults"]
        if fault["fault"] in {"damaged", "unreadable"}
    }
    scene.note(f"{len(rotten)} entries rot on {bookie.name}; found: {sorted(found)}")
    assert bool(status) == bool(rotten), printed
    assert found == {(ledger_id, bookie.name) for ledger_id, _ in rotten}, printed
    await scene.dlog("autorecovery", "enable")


async def _rot(scene: Scene, random: Random, bookie: BookieProcess) -> list[tuple[LedgerId, int]]:
    """Change a byte of some entries that *bookie* should hold; return which: ledger and entry."""
    wanted: list[tuple[LedgerId, int]] = []
    for segment in (await log_info(COLD, client=scene.client)).manifest.segments:
        metadata = await scene.client.describe(segment.ledger_id)
        for fragment in metadata.fragments:
            end = metadata.settled_end(fragment)
            if bookie.name in fragment.bookies and end is not None:
                wanted += [(segment.ledger_id, e) for e in range(fragment.first_entry, end + 1)]
    rotten = random.sample(wanted, min(ROTTEN_MAX, len(wanted)))
    for path, offset in await places_of(scene, bookie, rotten):
        flip(path, offset, 0xFF)
    return rotten


async def places_of(
    scene: Scene, bookie: BookieProcess, entries: list[tuple[LedgerId, int]]
) -> list[tuple[Path, int]]:
    """Return where *entries*, ledger and entry, lie on the disk of a bookie that is stopped: file
    and offset of a byte of each."""
    _, printed = await scene.dlog(
        "bookie", "index", "dump", "--dir", str(bookie.directory), "--entries", "--json"
    )
    places = [
        (bookie.directory / path_of(place["log"]), place["offset"] + HEADER_BYTES + 1)
        for ledger in map(json.loads, printed.splitlines())
        for place in ledger.get("places", ())
        if (ledger["ledger"], place["entry"]) in entries
    ]
    assert len(places) == len(entries), "all of them lie in entry logs"
    return places


def flip(path: Path, offset: int, bits: int) -> None:
    """Change *bits* of one byte of a file, whoever has it open."""
    with path.open("r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, offset)[0]
        os.pwrite(file.fileno(), bytes([byte ^ bits]), offset)


def _one(scene: Scene, random: Random) -> tuple[int, BookieProcess]:
    index = random.randrange(len(scene.cluster.processes))
    return index, scene.cluster.processes[index]


async def _unregistered(scene: Scene, bookie: BookieProcess) -> None:
    """Return once the session of a bookie that was killed is over."""
    bookies = scene.client.bookies
    while True:
        revision = bookies.revision
        if bookie.name not in {found.bookie for found in bookies.available()}:
            return
        await bookies.after(revision)


def _outcome(printed: str) -> str:
    return str(json.loads(printed.splitlines()[-1])["outcome"])


TROUBLES: Final[dict[str, Trouble]] = {
    "a bookie that dies for a moment": dies_for_a_moment,
    "two bookies that die and come back": two_die_and_come_back,
    "a disk that is replaced": disk_is_replaced,
    "a machine that burns": machine_burns,
    "a bookie that leaves in order": leaves_in_order,
    "an entry log that rots": entry_log_rots,
}
