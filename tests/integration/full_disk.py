"""A real bookie on a small file system that fills up, seen from outside.

python -m tests.integration.full_disk TMPFS OTHER: a small file system to be filled, and a directory
with space. Run by `test_bookie_full_disk`, in a namespace that may mount the first.
"""

import asyncio
import os
import sys
from pathlib import Path
from random import Random
from typing import Final

from ledger.cluster import make_namespace
from ledger.ids import LedgerId
from ledger.manager import LedgerStore
from ledger.metastore import open_store
from ledger.registry import BookieDirectory, find_registration
from ledger.requests import AddRun, LacQuery, ReadQuery, Status
from ledger.transport.operator import BookieOperator
from ledger.transport.sockets import SocketTransport
from tests.bookie.processes import SmallBookie
from tests.integration.test_bookie_chaos import BOOKIE, KEY, frame_of, metadata
from tests.patience import patient_transport
from tests.waiting import eventually

WAIT_S: Final = 60.0
RUN: Final = 20
BALLAST_STEP: Final = 64 * 1024
RESERVE_BYTES: Final = 1024 * 1024
"""Of the bookie; see `small_bookie`."""


class Scene:
    def __init__(self, disk: Path, other: Path) -> None:
        self.uri = f"file://{other}/metadata"
        self.directory = other / "bookie"
        (disk / "data").mkdir()
        self.directory.symlink_to(disk / "data", target_is_directory=True)
        self.ballast = disk / "ballast"
        self.address = ""
        self.transport: SocketTransport
        self.acked: dict[LedgerId, dict[int, None]] = {}
        self.fenced: dict[LedgerId, None] = {}
        self.ledgers: LedgerStore
        self.process: SmallBookie

    async def start(self) -> None:
        self.process = SmallBookie(self.uri, self.directory)
        _, self.address = await asyncio.to_thread(self.process.ready)

    async def new_ledger(self) -> LedgerId:
        ledger_id = await self.ledgers.create(metadata(Random()))
        self.acked[ledger_id] = {}
        return ledger_id

    async def add(self, ledger_id: LedgerId, *, recovery: bool = False) -> Status:
        """Add the next run of entries, once."""
        first = max(self.acked[ledger_id], default=-1) + 1
        entries = range(first, first + RUN)
        frames = [frame_of(ledger_id, entry) for entry in entries]
        run = AddRun(ledger_id, KEY, entries, [*map(len, frames)], b"".join(frames), recovery)
        answer: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self.transport.add(BOOKIE, run, answer.set_result)
        status = await answer
        if status is Status.OK:
            self.acked[ledger_id].update(dict.fromkeys(entries))
        return status

    async def add_until(
        self, ledger_id: LedgerId, *wanted: Status, recovery: bool = False
    ) -> Status:
        async with asyncio.timeout(WAIT_S):
            while (status := await self.add(ledger_id, recovery=recovery)) not in wanted:
                assert self.process.popen.poll() is None, self.process.output()
                await asyncio.sleep(0 if status is Status.OK else 0.05)
            return status

    async def fence(self, ledger_id: LedgerId) -> None:
        answer = await self.transport.read_lac(BOOKIE, LacQuery(ledger_id, KEY, fence=True))
        assert answer.status is Status.OK, answer.status.name
        assert answer.fenced
        self.fenced[ledger_id] = None

    async def check(self) -> int:
        """Everything that was acknowledged is there; return how many entries that are."""
        assert self.process.popen.poll() is None, self.process.output()
        for ledger_id, acked in self.acked.items():
            found: dict[int, bytes] = {}
            first, last = 0, max(acked, default=0)
            while first <= last:
                answer = await self.transport.read(BOOKIE, ReadQuery(ledger_id, KEY, first, last))
                if answer.status is Status.UNREACHABLE:
                    await asyncio.sleep(0.05)
                    continue
                assert answer.status is Status.OK, answer.status.name
                found.update((entry, bytes(frame)) for entry, frame in answer.each())
                first = answer.considered + 1
            for entry in acked:
                assert found[entry] == frame_of(ledger_id, entry)
            lac = await self.transport.read_lac(BOOKIE, LacQuery(ledger_id, KEY))
            assert lac.fenced == (ledger_id in self.fenced)
        return sum(map(len, self.acked.values()))

    async def met_by_a_checkpoint(self) -> None:
        """Return once a checkpoint has found no space. Fences are taken until then, as a little
        may fit into the last block of a file."""
        store = await open_store(self.uri)
        try:
            registration = await find_registration(store, BOOKIE)
        finally:
            await store.close()
        assert registration is not None
        async with BookieOperator(registration.operator_address) as operator:

            async def met() -> bool:
                await asyncio.to_thread(self.fill)
                await self.fence(await self.ledgers.create(metadata(Random())))
                reasons = (await operator.status()).reasons
                return any("a checkpoint found no space" in reason for reason in reasons)

            await eventually(met, "a checkpoint has found no space", timeout_s=WAIT_S)

    def fill(self, left_bytes: int = 0) -> None:
        """Let the ballast take what space there is."""
        with self.ballast.open("ab") as file:
            while True:
                free = os.statvfs(self.ballast.parent)
                step = min(BALLAST_STEP, free.f_bavail * free.f_frsize - left_bytes)
                if step <= 0:
                    return
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step)
                except OSError:
                    return

    def leave(self, free_bytes: int) -> None:
        """Give back ballast until so much is free."""
        free = os.statvfs(self.ballast.parent)
        missing = free_bytes - free.f_bavail * free.f_frsize
        if missing > 0:
            os.truncate(self.ballast, max(0, self.ballast.stat().st_size - missing))

    def make_space(self) -> None:
        self.ballast.unlink()

    async def is_registered(self, *, read_only: bool) -> None:
        store = await open_store(self.uri)
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    registry = BookieDirectory(store)
                    await registry.start()
                    await registry.close()
                    found = registry.available()
                    if [one.read_only for one in found] == [read_only]:
                        return
                    await asyncio.sleep(0.1)
        finally:
            await store.close()


async def fills_up_slowly(scene: Scene) -> None:
    scene.fill(left_bytes=6 << 20)
    ledger_id = await scene.new_ledger()
    await scene.add_until(ledger_id, Status.READ_ONLY)
    told(f"read-only after {len(scene.acked[ledger_id])} entries")
    await scene.is_registered(read_only=True)
    # The last adds may have come so fast that not even half of the reserve was left: then recovery
    # adds are refused as well. So much is less than what makes it writable again.
    scene.leave(RESERVE_BYTES * 5 // 4)
    other = await scene.new_ledger()
    await scene.add_until(other, Status.OK, recovery=True)
    assert await scene.add(other) is Status.READ_ONLY
    await scene.fence(other)
    assert await scene.add(other) is Status.FENCED
    await scene.add_until(other, Status.OK, recovery=True)
    told(f"{await scene.check()} entries are read; a fence and recovery adds are taken")
    scene.make_space()
    await scene.add_until(ledger_id, Status.OK)
    await scene.is_registered(read_only=False)
    told("takes adds again when there is space")
    await scene.check()


async def fills_up_at_once(scene: Scene) -> None:
    """To the last byte, in the middle of a load."""
    ledger_ids = [await scene.new_ledger() for _ in range(4)]
    writing = [
        asyncio.create_task(scene.add_until(ledger_id, Status.READ_ONLY, Status.TOO_MANY_REQUESTS))
        for ledger_id in ledger_ids
    ]
    await scene.add_until(await scene.new_ledger(), Status.OK)
    await asyncio.to_thread(scene.fill)
    await asyncio.gather(*writing)
    told("refuses adds with no byte left")
    await scene.fence(ledger_ids[0])
    told(f"{await scene.check()} entries are read; a fence is taken")
    await scene.met_by_a_checkpoint()
    await asyncio.to_thread(scene.fill)
    await scene.check()
    for _ in range(2):
        scene.process.kill()
        await scene.start()
        told(f"{await scene.check()} entries are read after SIGKILL and a start on the full disk")
        await scene.is_registered(read_only=True)
        assert await scene.add(ledger_ids[1]) in {Status.READ_ONLY, Status.TOO_MANY_REQUESTS}
        await asyncio.to_thread(scene.fill)
        await scene.check()
    scene.make_space()
    for ledger_id in ledger_ids[1:]:
        await scene.add_until(ledger_id, Status.OK)
    assert scene.process.stop() == 0
    await scene.start()
    await scene.check()
    told("and after a clean stop")


def told(what: str) -> None:
    print(what, flush=True)


async def main(disk: Path, other: Path) -> None:
    scene = Scene(disk, other)
    store = await open_store(scene.uri)
    registry = BookieDirectory(store)
    try:
        namespace = await make_namespace(store)
        scene.ledgers = LedgerStore(store, namespace.layout)
        await registry.start()
        scene.transport = patient_transport(lambda _: scene.address, meant=registry.identity)
        await scene.start()
        await fills_up_slowly(scene)
        await fills_up_at_once(scene)
    finally:
        await scene.transport.close()
        await registry.close()
        await store.close()
        scene.process.kill()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
