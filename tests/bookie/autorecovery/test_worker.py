"""Workers repair real ledgers on bookies in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import dlog.testing
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.repair import RepairConfig, RepairOutcome
from bookie.autorecovery.repair_io import CopyPace, RepairCache, RepairContext, repair_ledger
from bookie.autorecovery.worker import Worker, WorkerConfig
from dlog.testing.cluster import AsyncCluster
from ledger.client import LedgerClient
from ledger.entry import Digest
from ledger.ids import BookieId, LedgerId
from ledger.log_events import now_ms
from ledger.mark import MissingReplica, Reason, UnderreplicatedLedger
from ledger.metadata import LedgerState
from ledger.quorum import Quorum, holds
from tests.patience import PATIENT
from tests.waiting import eventually

AT_ONCE = WorkerConfig(bytes_per_s=0, repair=RepairConfig(open_fragment_grace_ms=0))


@asynccontextmanager
async def world(bookies: int = 4) -> AsyncIterator[tuple[AsyncCluster, LedgerClient]]:
    async with dlog.testing.cluster(bookies=bookies) as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        try:
            yield cluster, client
        finally:
            await client.close()


async def closed_ledger(
    client: LedgerClient,
    *,
    entries: int = 50,
    quorum: Quorum | None = None,
    password: bytes = b"",
    digest: Digest = Digest.CRC32C,
) -> LedgerId:
    writer = await client.create(quorum, password=password, digest=digest)
    for number in range(entries):
        await writer.add(b"entry %d" % number)
    await writer.close()
    return writer.ledger_id


async def mark_lost(
    client: LedgerClient, ledger_id: LedgerId, bookie: str, reason: Reason = Reason.LOST
) -> None:
    await Marks(client.store).add(ledger_id, [MissingReplica(BookieId(bookie), reason, 1)])


async def mark_of(client: LedgerClient, ledger_id: LedgerId) -> UnderreplicatedLedger | None:
    found = await Marks(client.store).read(ledger_id)
    return None if found is None else found[0]


async def kill(cluster: AsyncCluster, client: LedgerClient, name: str) -> None:
    revision = client.bookies.revision
    await next(b for b in cluster.bookies if b.name == name).kill()
    while any(found.bookie == name for found in client.bookies.available()):
        await client.bookies.after(revision)
        revision = client.bookies.revision


async def copies(
    client: LedgerClient, ledger_id: LedgerId, *, password: bytes = b""
) -> dict[int, int]:
    """Return how many right copies each entry has on the bookies that should have it."""
    metadata = await client.describe(ledger_id)
    assert metadata.last_entry is not None
    found: dict[int, int] = {}
    for entry_id in range(metadata.last_entry + 1):
        found[entry_id] = 0
        for index, bookie in enumerate(metadata.fragment_of(entry_id).bookies):
            if holds(index, entry_id, metadata.quorum):
                read = await client.read_replica(
                    ledger_id, bookie, entry_id, entry_id, metadata=metadata, password=password
                )
                found[entry_id] += entry_id in read.frames
    return found


async def test_a_ledger_of_a_lost_bookie_gets_its_copies_elsewhere() -> None:
    async with world() as (cluster, client):
        ledger_id = await closed_ledger(client)
        lost = (await client.describe(ledger_id)).fragments[0].bookies[1]
        await kill(cluster, client, lost)
        await mark_lost(client, ledger_id, lost)
        scan = await Worker(client, AT_ONCE).run_once()
        assert scan.outcomes == {RepairOutcome.DONE: 1}
        assert lost not in (await client.describe(ledger_id)).fragments[0].bookies
        assert set((await copies(client, ledger_id)).values()) == {3}
        assert await mark_of(client, ledger_id) is None
        assert await Marks(client.store).locked() == {}


async def test_a_returned_bookie_with_everything_is_unmarked_without_a_copy() -> None:
    async with world() as (_, client):
        ledger_id = await closed_ledger(client)
        before = await client.describe(ledger_id)
        await mark_lost(client, ledger_id, before.fragments[0].bookies[0])
        worker = Worker(client, AT_ONCE)
        assert (await worker.run_once()).outcomes == {RepairOutcome.DONE: 1}
        assert worker.pace.entries == 0
        assert await client.describe(ledger_id) == before
        assert await mark_of(client, ledger_id) is None


async def test_without_a_bookie_to_copy_to_the_mark_waits_and_nothing_is_copied() -> None:
    async with world(3) as (cluster, client):
        ledger_id = await closed_ledger(client)
        lost = (await client.describe(ledger_id)).fragments[0].bookies[0]
        await kill(cluster, client, lost)
        await mark_lost(client, ledger_id, lost)
        worker = Worker(client, AT_ONCE)
        assert (await worker.run_once()).outcomes == {RepairOutcome.DEFERRED: 1}
        assert worker.pace.entries == 0
        mark = await mark_of(client, ledger_id)
        assert mark is not None
        assert mark.wants_bookie
        assert (await worker.run_once()).deferred == 1  # its time has not come
        assert await Marks(client.store).locked() == {}


async def test_a_mark_that_waits_for_a_bookie_is_taken_up_when_one_comes() -> None:
    async with world(3) as (cluster, client):
        ledger_id = await closed_ledger(client)
        lost = (await client.describe(ledger_id)).fragments[0].bookies[0]
        await kill(cluster, client, lost)
        await mark_lost(client, ledger_id, lost)
        worker = Worker(client, AT_ONCE)
        await worker.run_once()
        await next(b for b in cluster.bookies if b.name == lost).start()
        await eventually(lambda: is_there(client, lost))
        assert (await worker.run_once()).outcomes == {RepairOutcome.DONE: 1}
        assert await mark_of(client, ledger_id) is None


class Sleepy(CopyPace):
    """Sleeps before it sends anything, until *bookies* are to be emptied."""

    def __init__(self, marks: Marks, bookies: list[BookieId]) -> None:
        super().__init__(0)
        self._marks, self._bookies = marks, bookies

    async def take(self, size_bytes: int) -> None:
        await super().take(size_bytes)
        for bookie in self._bookies:
            await self._marks.announce(bookie)


async def test_a_worker_that_slept_names_no_bookie_that_is_to_be_emptied_meanwhile() -> None:
    async with world(5) as (cluster, client):
        ledger_id = await closed_ledger(client)
        before = await client.describe(ledger_id)
        lost = before.fragments[0].bookies[1]
        await kill(cluster, client, lost)
        await mark_lost(client, ledger_id, lost)
        members = before.fragments[0].bookies
        spares = [BookieId(b.name) for b in cluster.bookies if b.name not in members]
        marks = Marks(client.store)
        pace = Sleepy(marks, spares)
        context = RepairContext(client.environment, marks, pace, RepairConfig(), RepairCache(marks))
        finish = await repair_ledger(context, ledger_id)
        assert pace.entries > 0
        assert finish.outcome is RepairOutcome.DEFERRED
        assert await client.describe(ledger_id) == before


@pytest.mark.slow
@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(4, 3, 2), Quorum(3, 2, 2)])
@pytest.mark.parametrize("digest", list(Digest))
async def test_ledgers_with_passwords_are_repaired_without_them(
    quorum: Quorum, digest: Digest
) -> None:
    async with world(5) as (cluster, client):
        ledger_id = await closed_ledger(client, quorum=quorum, password=b"secret", digest=digest)
        lost = (await client.describe(ledger_id)).fragments[0].bookies[2]
        await kill(cluster, client, lost)
        await mark_lost(client, ledger_id, lost)
        assert (await Worker(client, AT_ONCE).run_once()).outcomes == {RepairOutcome.DONE: 1}
        found = await copies(client, ledger_id, password=b"secret")
        assert set(found.values()) == {quorum.write}


async def test_an_open_ledger_is_recovered_after_its_grace_and_then_moved() -> None:
    async with world() as (cluster, client):
        writer = await client.create(password=b"secret", digest=Digest.HMAC_SHA256)
        for number in range(20):
            await writer.add(b"entry %d" % number)
        await writer.abandon()  # a writer with an add in flight to it would leave the lost bookie
        lost = writer.metadata.last_fragment.bookies[0]
        await kill(cluster, client, lost)
        await mark_lost(client, writer.ledger_id, lost)
        assert (await Worker(client, AT_ONCE).run_once()).outcomes == {RepairOutcome.DONE: 1}
        metadata = await client.describe(writer.ledger_id)
        assert metadata.state is LedgerState.CLOSED
        assert metadata.last_entry == 19
        assert set((await copies(client, writer.ledger_id, password=b"secret")).values()) == {3}


async def test_an_open_ledger_is_left_to_its_writer_within_the_grace() -> None:
    async with world() as (cluster, client):
        writer = await client.create(Quorum(3, 3, 3))
        await writer.add(b"one")  # confirmed by all three: nothing is in flight to the lost one
        lost = writer.metadata.last_fragment.bookies[0]
        await kill(cluster, client, lost)
        marks = Marks(client.store)
        await marks.add(writer.ledger_id, [MissingReplica(BookieId(lost), Reason.LOST, now_ms())])
        worker = Worker(client, WorkerConfig(bytes_per_s=0))
        assert (await worker.run_once()).outcomes == {RepairOutcome.DEFERRED: 1}
        await writer.add(b"two")  # it leaves the lost bookie
        await eventually(lambda: has_left(client, writer.ledger_id, lost))
        mark = await mark_of(client, writer.ledger_id)
        assert mark is not None
        assert mark.attempts == 0
        later = Worker(client, AT_ONCE, wall_clock_ms=lambda: now_ms() + 60_000)
        assert (await later.run_once()).outcomes == {RepairOutcome.DONE: 1}
        metadata = await client.describe(writer.ledger_id)
        assert metadata.state is LedgerState.OPEN
        assert all(lost not in fragment.bookies for fragment in metadata.fragments)
        await writer.add(b"three")
        await writer.close()
        assert set((await copies(client, writer.ledger_id)).values()) == {3}


async def is_there(client: LedgerClient, bookie: str) -> bool:
    return any(found.bookie == bookie for found in client.bookies.available())


async def has_left(client: LedgerClient, ledger_id: LedgerId, bookie: str) -> bool:
    return bookie not in (await client.describe(ledger_id)).last_fragment.bookies
