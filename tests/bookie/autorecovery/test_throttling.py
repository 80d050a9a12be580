"""Workers go as fast as an operator says, from then on; and say how fast they go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from bookie.autorecovery.marks import FORMAT_VERSION
from bookie.autorecovery.protocol.repair import RepairOutcome
from bookie.autorecovery.status import left_s, open_work
from bookie.autorecovery.worker import (
    THROTTLE,
    RepairThrottle,
    Worker,
    WorkerConfig,
    WorkerReport,
    keep_reporting,
    keep_throttled,
    read_throttle,
    reports,
    set_throttle,
)
from ledger.client import LedgerClient
from ledger.errors import DamagedMetadata
from ledger.wire import metadata_pb2 as pb
from tests.bookie.autorecovery.test_worker import closed_ledger, mark_lost, world
from tests.waiting import eventually


@asynccontextmanager
async def running(work: "asyncio.Future[None]") -> AsyncIterator[None]:
    try:
        yield
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


async def goes(worker: Worker, bytes_per_s: float, ledgers_max: int) -> None:
    async def so() -> bool:
        return (worker.pace.bytes_per_s, worker.ledgers_max) == (bytes_per_s, ledgers_max)

    await eventually(so, f"it goes {bytes_per_s} and {ledgers_max}")


@pytest.mark.parametrize(
    "throttle",
    [
        RepairThrottle(),
        RepairThrottle(bytes_per_s=0.0),
        RepairThrottle(ledgers_max=3),
        RepairThrottle(bytes_per_s=1e6, ledgers_max=1),
    ],
)
async def test_what_is_set_is_read_and_no_limit_is_not_nothing(throttle: RepairThrottle) -> None:
    async with world(bookies=1) as (_, client):
        await set_throttle(client.store, RepairThrottle(bytes_per_s=5.0, ledgers_max=5))
        await set_throttle(client.store, throttle)
        assert await read_throttle(client.store) == throttle


async def test_a_worker_that_runs_heeds_each_change_and_goes_back_to_its_own() -> None:
    async with world(bookies=1) as (_, client):
        worker = Worker(client, WorkerConfig(bytes_per_s=1000.0, ledgers_max=2))
        async with running(asyncio.ensure_future(keep_throttled(client.store, worker))):
            await set_throttle(client.store, RepairThrottle(bytes_per_s=50.0))
            await goes(worker, 50.0, 2)
            await set_throttle(client.store, RepairThrottle(bytes_per_s=0.0, ledgers_max=7))
            await goes(worker, 0.0, 7)
            await set_throttle(client.store, RepairThrottle())
            await goes(worker, 1000.0, 2)


async def test_a_throttle_that_cannot_be_read_changes_nothing() -> None:
    async with world(bookies=1) as (_, client):
        worker = Worker(client, WorkerConfig(bytes_per_s=1000.0))
        node = pb.RepairThrottleNode(version=FORMAT_VERSION + 1, bytes_per_s=7.0)
        await client.store.create(THROTTLE, node.SerializeToString())
        with pytest.raises(DamagedMetadata):
            await read_throttle(client.store)
        async with running(asyncio.ensure_future(keep_throttled(client.store, worker))):
            await set_throttle(client.store, RepairThrottle(ledgers_max=9))
            await goes(worker, 1000.0, 9)


async def test_fewer_ledgers_at_a_time_hold_for_the_scan_under_way() -> None:
    async with world() as (_, client):
        worker = Worker(client, WorkerConfig(bytes_per_s=0, ledgers_max=4))
        worker.throttle(None, 0)
        assert worker.ledgers_max == 1
        ledger_id = await closed_ledger(client)
        await mark_lost(
            client, ledger_id, (await client.describe(ledger_id)).fragments[0].bookies[0]
        )
        assert (await worker.run_once()).outcomes == {RepairOutcome.DONE: 1}


async def test_a_worker_writes_down_what_it_has_done_and_goes_with_its_session() -> None:
    async with world(bookies=1) as (cluster, client):
        other = await LedgerClient.connect(cluster.uri)
        worker = Worker(other, WorkerConfig(bytes_per_s=1000.0, ledgers_max=2))
        worker.pace.copied(3, 300)
        work = asyncio.ensure_future(keep_reporting(other.store, worker, every_s=0.01))
        async with running(work):

            async def reported(ledgers: int) -> bool:
                return [each.ledgers for each in await reports(client.store)] == [ledgers]

            await eventually(lambda: reported(0), "it has reported")
            worker.outcomes[RepairOutcome.DONE] += 2
            await eventually(lambda: reported(2), "it has reported again")
            [found] = await reports(client.store)
            assert (found.bytes, found.bytes_per_s_max, found.ledgers_max) == (300, 1000.0, 2)
            assert found.at_ms > 0
            assert (await open_work(client.store)).ledgers == 0
        await other.close()
        assert await reports(client.store) == []


def report(ledgers_per_s: float) -> WorkerReport:
    return WorkerReport(
        worker="host:1",
        at_ms=1,
        ledgers=1,
        bytes=1,
        bytes_per_s=1.0,
        ledgers_per_s=ledgers_per_s,
        bytes_per_s_max=0.0,
        ledgers_max=1,
    )


def test_the_time_left_goes_by_what_all_workers_repaired_lately() -> None:
    assert left_s(30, [report(1.0), report(2.0)]) == 10.0
    assert left_s(0, []) == 0.0
    assert left_s(30, [report(0.0)]) is None
