"""Logs are written while bookies die for good, and new ones take their place."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Final

import pytest

import dlog.testing
from bookie.autorecovery.auditor import Auditor
from bookie.autorecovery.checks import check_all
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.audit import AuditConfig
from bookie.autorecovery.protocol.repair import RepairConfig
from bookie.autorecovery.worker import Worker, WorkerConfig
from dlog.aio import Log
from dlog.aio.admin import verify_log
from dlog.settings import LogSettings
from dlog.testing.bookie import InProcessBookie
from dlog.testing.cluster import AsyncCluster
from ledger.client import LedgerClient
from ledger.cluster import make_namespace
from ledger.metastore import open_store
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.slow

CHAOS_S: Final = float(os.environ.get("DLOG_TEST_REPAIR_S", "5"))
LOGS: Final = ("one", "two", "three")
BOOKIES: Final = 6
AUDITING: Final = AuditConfig(delay_s=0.3, check_all_s=5)
WORKING: Final = WorkerConfig(
    bytes_per_s=0, look_s=0.5, repair=RepairConfig(open_fragment_grace_ms=300)
)


async def test_every_record_keeps_every_copy_while_bookies_die_for_good() -> None:
    random = Random(1)
    async with dlog.testing.cluster(bookies=BOOKIES) as cluster, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(cluster)) for _ in range(2)]
        marks = Marks(clients[0].store)
        for client in clients:
            await stack.enter_async_context(Auditor(client, AUDITING))
            await stack.enter_async_context(Worker(client, WORKING))

        async def nothing_is_marked() -> bool:
            return not [ledger_id async for ledger_id in marks.list()]

        async def all_is_there() -> bool:
            return (await check_all(clients[0])).lacking == 0 and await nothing_is_marked()

        stop = asyncio.Event()
        writing = [asyncio.create_task(write(cluster, log, stop, random)) for log in LOGS]
        end = time.monotonic() + CHAOS_S
        number = BOOKIES
        while time.monotonic() < end:
            dead = random.choice([bookie for bookie in cluster.bookies if bookie.running])
            await dead.kill()
            await replace(cluster, dead, f"bookie-{number}")
            number += 1
            await gone_from_all(clients[0], dead.name)
        stop.set()
        records = await asyncio.gather(*writing)
        await eventually(all_is_there, "every copy is there", timeout_s=3 * PATIENCE_S)
        for log, count in zip(LOGS, records, strict=True):
            report = await verify_log(log, uri=cluster.uri)
            assert report.healthy, report
            assert report.records == count
        assert number > BOOKIES


@asynccontextmanager
async def connected(cluster: AsyncCluster) -> AsyncIterator[LedgerClient]:
    client = await LedgerClient.connect(cluster.uri, PATIENT)
    try:
        yield client
    finally:
        await client.close()


async def write(cluster: AsyncCluster, name: str, stop: asyncio.Event, random: Random) -> int:
    count = 0
    settings = LogSettings(roll_records=40)
    async with await Log.open(name, uri=cluster.uri, settings=settings) as log:
        while not stop.is_set():
            await log.append(b"%d" % count)
            count += 1
            await asyncio.sleep(random.random() * 0.02)
    return count


async def replace(cluster: AsyncCluster, dead: InProcessBookie, name: str) -> None:
    """Let a new, empty bookie of another name take the place of *dead*, for good."""
    store = await open_store(cluster.uri)
    new = InProcessBookie(name, await make_namespace(store), store, 1 << 28)
    await new.start()
    cluster._bookies[cluster._bookies.index(dead)] = new
    cluster._stack.push_async_callback(store.close)
    cluster._stack.push_async_callback(new.kill)


async def gone_from_all(client: LedgerClient, bookie: str) -> None:
    async def has_left() -> bool:
        return await is_named_nowhere(client, bookie)

    await eventually(has_left, f"nothing is on {bookie} any more")


async def is_named_nowhere(client: LedgerClient, bookie: str) -> bool:
    """Return whether no fragment with an entry names *bookie*."""
    async for ledger_id in client.list():
        metadata = await client.describe(ledger_id)
        for fragment in metadata.fragments:
            end = metadata.settled_end(fragment)
            empty = end is not None and end < fragment.first_entry
            if bookie in fragment.bookies and not empty:
                return False
    return True
