"""Polls of a log's tail: they wait, also where there is no open segment to wait at."""

import asyncio
import time

import pytest

from dlog.aio import Log
from dlog.aio.admin import TailTracker, delete_log, rename_log
from dlog.errors import NoSuchLog
from ledger.metadata import LedgerState
from tests.dlog.fake_ledgers import FakeCluster
from tests.waiting import PATIENCE_S, settled


@pytest.mark.parametrize("sealed", [True, False])
async def test_a_poll_of_a_log_without_a_writer_waits_until_somebody_writes(sealed: bool) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"a")
    if sealed:
        await log.close()
    else:  # its writer died between closing the ledger and telling the manifest
        await log.abandon()
        for ledger in cluster.ledgers.values():
            ledger.state = LedgerState.CLOSED
    tracker = TailTracker(client, "log")
    assert (await tracker.poll()).next_offset == 1
    began = time.monotonic()
    assert (await tracker.poll(wait_s=0.05)).next_offset == 1
    assert time.monotonic() - began >= 0.05
    polling = asyncio.create_task(tracker.poll(wait_s=PATIENCE_S))
    await settled()
    assert not polling.done()
    began = time.monotonic()
    async with await Log.open("log", client=client) as log:
        await polling
        assert time.monotonic() - began < PATIENCE_S
    await tracker.close()


async def test_a_poll_ends_as_soon_as_the_writer_goes_on_in_another_segment() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"a")
        tracker = TailTracker(client, "log")
        assert (await tracker.poll()).next_offset == 1
        polling = asyncio.create_task(tracker.poll(wait_s=PATIENCE_S))
        await settled()
        assert not polling.done()
        began = time.monotonic()
        await log.roll()
        await polling
        assert time.monotonic() - began < PATIENCE_S / 2
        await tracker.close()


async def test_a_tracker_follows_a_log_through_a_new_name() -> None:
    client = FakeCluster().client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"a")
        tracker = TailTracker(client, "log")
        tracker.follow((await tracker.poll()).incarnation)
        await rename_log("log", "moved", client=client)
        await log.append(b"b")
        assert (await tracker.poll()).next_offset == 2
        await tracker.close()


async def test_a_poll_outlives_the_ledger_at_which_it_waits() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"a")
    tracker = TailTracker(client, "log")
    await tracker.poll()
    polling = asyncio.create_task(tracker.poll(wait_s=PATIENCE_S))
    await settled()
    await delete_log("log", client=client)
    with pytest.raises(NoSuchLog):
        await polling
    await tracker.close()
    await log.abandon()
