"""One bookie is killed with SIGKILL again and again under the load of several writers.

Everything is seen from outside, through the client's transport: after each start every add and
fence that was ever acknowledged has to be there, and nothing that nobody sent. Ledgers are
deleted from the metadata store meanwhile, so that collection and compaction run as well; what
the bookie has once forgotten must not come back.

DLOG_TEST_CHAOS_S is how long it goes on, DLOG_TEST_CHAOS_SEED which moments and sizes.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import pytest

from ledger.cluster import make_namespace
from ledger.entry import access_key, encode_frame
from ledger.ids import BookieId, LedgerId
from ledger.manager import LedgerStore
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore import open_store
from ledger.quorum import Quorum
from ledger.registry import BookieDirectory
from ledger.requests import AddRun, LacQuery, ReadQuery, Status
from ledger.transport.sockets import SocketTransport
from tests.bookie.processes import SmallBookie
from tests.bookie.small_bookie import NAME
from tests.waiting import PATIENCE_S

CHAOS_S: Final = float(os.environ.get("DLOG_TEST_CHAOS_S", "10"))
SEED: Final = os.environ.get("DLOG_TEST_CHAOS_SEED", "1")
SLACK_S: Final = 240.0
WRITERS: Final = 6
RUNS_IN_FLIGHT: Final = 8
LIVE_MAX: Final = 40
"""With more ledgers, the oldest is deleted."""
RETRY_S: Final = 0.05
CLIENT_TIMEOUT_S: Final = 5.0
ANSWER_S_MAX: Final = 60.0
BOOKIE: Final = BookieId(NAME)
KEY: Final = access_key(b"")

pytestmark = [pytest.mark.integration, pytest.mark.timeout(CHAOS_S + SLACK_S + 60)]


def frame_of(ledger_id: int, entry_id: int) -> bytes:
    lot = Random(ledger_id * 1_000_003 + entry_id)
    payload = lot.randbytes(lot.choice((20, 60, 200, 1500)))
    return encode_frame(
        ledger_id=ledger_id,
        entry_id=entry_id,
        last_add_confirmed=max(-1, entry_id - 50),
        length=entry_id,
        payload=payload,
    )


@dataclass(slots=True)
class Ledger:
    ledger_id: LedgerId
    sent: int = 0
    """Entries from 0 up to here may be there."""
    acked: dict[int, None] = field(default_factory=dict)
    fencing: bool = False
    fenced: bool = False
    deleting: bool = False
    gone: bool = False
    """The bookie said that there is no such ledger."""
    changed: bool = True


class Load:
    """Writers, and what they were told."""

    def __init__(self, transport: SocketTransport, ledgers: LedgerStore, lot: Random) -> None:
        self.transport = transport
        self.ledgers = ledgers
        self.lot = lot
        self.all: list[Ledger] = []
        self.told: Counter[str] = Counter()
        self.stopping = False
        self.broken: list[str] = []

    async def write(self) -> None:
        """One writer: one ledger after the other, until stopped."""
        while not self.stopping:
            ledger = Ledger(await self.ledgers.create(metadata(self.lot)))
            self.all.append(ledger)
            self.told["ledgers"] += 1
            await self._fill(ledger, self.lot.randint(50, 600))
            if self.lot.random() < 0.5:
                await self._fence(ledger)
            live = [one for one in self.all if not one.deleting]
            if len(live) > LIVE_MAX:
                oldest = live[0]
                oldest.deleting = True
                await self.ledgers.delete(oldest.ledger_id)
                self.told["ledgers deleted"] += 1

    async def _fill(self, ledger: Ledger, count: int) -> None:
        fence_at = count // 2 if self.lot.random() < 0.2 else count
        window = asyncio.Semaphore(RUNS_IN_FLIGHT)
        async with asyncio.TaskGroup() as group:
            while ledger.sent < count and not self.stopping and not ledger.fenced:
                entries = range(ledger.sent, min(count, ledger.sent + self.lot.randint(1, 20)))
                ledger.sent = entries.stop
                await window.acquire()
                group.create_task(self._add(ledger, entries, window))
                if ledger.sent >= fence_at and not ledger.fencing:
                    group.create_task(self._fence(ledger))  # with adds in flight

    async def _add(
        self, ledger: Ledger, entries: range, window: asyncio.Semaphore | None = None
    ) -> Status:
        """Add until there is an answer that says what became of it."""
        frames = [frame_of(ledger.ledger_id, entry) for entry in entries]
        run = AddRun(ledger.ledger_id, KEY, entries, [*map(len, frames)], b"".join(frames))
        try:
            while True:
                was_fenced = ledger.fenced
                status = await self._send(run)
                ledger.changed = True
                if status is Status.OK:
                    if was_fenced:
                        self.broken.append(f"{ledger.ledger_id} took an add after its fence")
                    ledger.acked.update(dict.fromkeys(entries))
                    self.told["entries acknowledged"] += len(entries)
                elif status in (
                    Status.UNREACHABLE, Status.TOO_MANY_REQUESTS, Status.READ_ONLY
                ):  # fmt: skip
                    self.told[f"adds answered {status.name}"] += 1
                    if not self.stopping:
                        await asyncio.sleep(RETRY_S)
                        continue
                elif not (status is Status.FENCED and ledger.fencing):
                    self.broken.append(f"an add to {ledger.ledger_id} was answered {status.name}")
                return status
        finally:
            if window is not None:
                window.release()

    def _send(self, run: AddRun) -> "asyncio.Future[Status]":
        answer: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self.transport.add(BOOKIE, run, answer.set_result)
        return answer

    async def _fence(self, ledger: Ledger) -> None:
        ledger.fencing = True
        while not self.stopping and not ledger.deleting:
            answer = await self.transport.read_lac(
                BOOKIE, LacQuery(ledger.ledger_id, KEY, fence=True)
            )
            if answer.status is Status.OK:
                assert answer.fenced
                ledger.fenced = ledger.changed = True
                self.told["fences acknowledged"] += 1
                return
            await asyncio.sleep(RETRY_S)

    # From outside.

    async def check(self, *, everything: bool = False) -> None:
        """Compare with the bookie what it has acknowledged before this was called."""
        assert not self.broken, self.broken
        old = [one for one in self.all if not one.changed and not one.deleting]
        chosen = [one for one in self.all if one.changed or (one.deleting and everything)]
        chosen += old if everything else self.lot.sample(old, min(5, len(old)))
        gone = [one for one in self.all if one.gone]
        chosen += self.lot.sample(gone, min(5, len(gone)))
        for ledger in chosen:
            await self._check(ledger)

    async def _check(self, ledger: Ledger) -> None:
        acked, was_fenced = list(ledger.acked), ledger.fenced
        ledger.changed = False
        found = await self._read(ledger)
        if found is None:
            assert ledger.deleting or not (acked or was_fenced), f"{ledger.ledger_id} is lost"
            ledger.gone = ledger.gone or ledger.deleting
            return
        assert not ledger.gone, f"ledger {ledger.ledger_id} was forgotten and came back"
        entries, is_fenced = found
        self.told["entries compared"] += len(entries)
        lost = [entry for entry in acked if entry not in entries]
        if ledger.deleting:
            return
        assert not lost, f"acknowledged entries of {ledger.ledger_id} are lost: {lost[:20]}"
        for entry, frame in entries.items():
            assert entry < ledger.sent, f"nobody sent {ledger.ledger_id}/{entry}"
            assert frame == frame_of(ledger.ledger_id, entry), f"{ledger.ledger_id}/{entry}"
        assert is_fenced or not was_fenced, f"{ledger.ledger_id} lost its fence"
        assert ledger.fencing or not is_fenced, f"nobody fenced {ledger.ledger_id}"

    async def _read(self, ledger: Ledger) -> tuple[dict[int, bytes], bool] | None:
        entries: dict[int, bytes] = {}
        first, last, fenced = 0, 1 << 20, False
        deadline = time.monotonic() + ANSWER_S_MAX
        while first <= last:
            query = ReadQuery(ledger.ledger_id, KEY, first, last, bytes_max=64 * 1024)
            answer = await self.transport.read(BOOKIE, query)
            if answer.status is Status.NO_SUCH_LEDGER:
                return None
            if answer.status in (Status.TOO_MANY_REQUESTS, Status.UNREACHABLE):
                assert time.monotonic() < deadline, answer.status.name
                await asyncio.sleep(RETRY_S)  # the connection backs off from the kill before
                continue
            assert answer.status is Status.OK, answer.status.name
            entries.update((entry, bytes(frame)) for entry, frame in answer.each())
            first, fenced = answer.considered + 1, answer.fenced
        return entries, fenced


def metadata(lot: Random) -> LedgerMetadata:
    return LedgerMetadata(
        quorum=Quorum(1, 1, 1),
        fragments=(Fragment(0, (BOOKIE,)),),  # type: ignore[arg-type]
        access_key=KEY,
        creation_token=lot.randbytes(16),
    )


class Chaos:
    """One bookie's directory, and the process that is killed on it."""

    def __init__(self, tmp_path: Path, *, several: bool) -> None:
        self.uri = f"file://{tmp_path}/metadata"
        self.directory = tmp_path / "bookie"
        self.options = ("several",) if several else ()
        self.process: SmallBookie | None = None
        self.address: str | None = None
        self.starts: list[float] = []

    async def start(self) -> None:
        started = time.monotonic()
        self.process = SmallBookie(self.uri, self.directory, *self.options)
        _, self.address = await asyncio.to_thread(self.process.ready)
        self.starts.append(time.monotonic() - started)

    async def start_and_kill(self, after_s: float) -> None:
        """Kill it again, maybe before it has come up."""
        self.process = SmallBookie(self.uri, self.directory, *self.options)
        await asyncio.sleep(after_s)
        self.kill()

    def kill(self) -> None:
        if self.process is not None:
            assert self.process.popen.poll() is None, self.process.output()
            self.process.kill()

    async def stop(self) -> None:
        assert self.process is not None
        assert await asyncio.to_thread(self.process.stop) == 0, self.process.output()


@asynccontextmanager
async def running(chaos: Chaos, lot: Random) -> AsyncIterator[Load]:
    store = await open_store(chaos.uri)
    directory = BookieDirectory(store)
    transport = SocketTransport(
        lambda _: chaos.address, timeout_s=CLIENT_TIMEOUT_S, meant=directory.identity
    )
    try:
        namespace = await make_namespace(store)
        await directory.start()
        directory.on_change(transport.check_identities)
        yield Load(transport, LedgerStore(store, namespace.layout), lot)
    finally:
        await transport.close()
        await directory.close()
        await store.close()
        if chaos.process is not None:
            chaos.process.kill()


@pytest.mark.parametrize("several", [False, True], ids=["one directory", "several directories"])
async def test_a_bookie_that_is_killed_again_and_again_keeps_every_promise(
    tmp_path: Path, several: bool
) -> None:
    chaos = Chaos(tmp_path, several=several)
    lot = Random(f"{SEED}/{several}")

    async with asyncio.timeout(CHAOS_S + SLACK_S), running(chaos, lot) as load:
        await chaos.start()
        writers = [asyncio.create_task(load.write()) for _ in range(WRITERS)]
        end = time.monotonic() + CHAOS_S / 2
        while time.monotonic() < end:
            await asyncio.wait(
                writers, timeout=lot.uniform(0.05, 1.5), return_when=asyncio.FIRST_COMPLETED
            )
            assert not any(writer.done() for writer in writers), "a writer gave up"
            chaos.kill()
            load.told["kills"] += 1
            while lot.random() < 0.4:
                await chaos.start_and_kill(lot.uniform(0.2, 1.2))
                load.told["kills"] += 1
            await chaos.start()
            await load.check()
        load.stopping = True
        await asyncio.gather(*writers)
        chaos.kill()
        await chaos.start()
        await load.check(everything=True)
        await chaos.stop()
        await chaos.start()
        await load.check(everything=True)
        await forgets_what_was_deleted(load)
        tell(chaos, load)
        assert load.told["entries acknowledged"] > 0 < load.told["fences acknowledged"]


async def forgets_what_was_deleted(load: Load) -> None:
    async with asyncio.timeout(2 * PATIENCE_S):
        while any(one.deleting and not one.gone for one in load.all):
            await load.check(everything=True)
            await asyncio.sleep(0.2)


def tell(chaos: Chaos, load: Load) -> None:
    told = ", ".join(f"{count} {what}" for what, count in sorted(load.told.items()))
    logs = sum(len(list(path.glob("*.log"))) for path in chaos.directory.rglob("entrylog"))
    print(
        f"\n{' '.join(chaos.options) or 'one directory'}: {told}; "
        f"slowest start {max(chaos.starts):.1f} s; entry logs left: {logs}"
    )
