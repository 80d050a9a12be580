"""The auditor marks what lost bookies leave without copies: bookies in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bookie.autorecovery.auditor import Auditor
from bookie.autorecovery.checks import Audit
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.audit import AuditConfig
from bookie.autorecovery.worker import Worker
from ledger.client import LedgerClient
from ledger.ids import LedgerId
from ledger.mark import Reason, UnderreplicatedLedger
from tests.bookie.autorecovery.test_worker import AT_ONCE, closed_ledger, copies, mark_of, world
from tests.patience import PATIENT
from tests.waiting import eventually

SOON = AuditConfig(delay_s=0.01)


async def audited(client: LedgerClient) -> Audit:
    async def is_there() -> bool:
        return await Audit.last(client.store) is not None

    await eventually(is_there, "a pass has ended")
    audit = await Audit.last(client.store)
    assert audit is not None
    return audit


async def marked(client: LedgerClient) -> dict[LedgerId, UnderreplicatedLedger]:
    found = {}
    async for ledger_id in Marks(client.store).list():
        mark = await mark_of(client, ledger_id)
        if mark is not None:  # else it was repaired since it was listed
            found[ledger_id] = mark
    return found


async def test_who_died_before_the_first_auditor_started_is_lost_all_the_same() -> None:
    async with world() as (cluster, client):
        ledgers = [await closed_ledger(client, entries=2) for _ in range(8)]
        lost = cluster.bookies[0].name
        await cluster.kill_bookie(0)
        async with Auditor(client, SOON):
            expected = {
                ledger_id
                for ledger_id in ledgers
                if lost in (await client.describe(ledger_id)).fragments[0].bookies
            }

            async def all_marked() -> bool:
                return set(await marked(client)) == expected

            await eventually(all_marked, "the ledgers of the lost bookie are marked")

            async def recorded() -> bool:
                audit = await Audit.last(client.store)
                return audit is not None and (audit.lost, audit.marked) == ((lost,), len(expected))

            await eventually(recorded, "the record of the pass counts all of them")
        assert len(expected) > 1
        for mark in (await marked(client)).values():
            assert [(replica.bookie, replica.reason) for replica in mark.missing] == [
                (lost, Reason.LOST)
            ]


async def test_nothing_is_marked_and_an_alarm_raised_while_most_bookies_are_away() -> None:
    async with world(3) as (cluster, client):
        await closed_ledger(client)
        await cluster.kill_bookie(0)
        await cluster.kill_bookie(1)
        async with Auditor(client, AuditConfig(delay_s=0)):
            audit = await audited(client)
        assert audit.alarm == "2 of 3 bookies are away"
        assert await marked(client) == {}


@pytest.mark.slow
async def test_auditor_and_worker_together_bring_back_every_copy() -> None:
    async with world(5) as (cluster, client):
        ledgers = [await closed_ledger(client, entries=20) for _ in range(20)]
        async with Auditor(client, SOON), Worker(client, AT_ONCE):
            await cluster.kill_bookie(2)
            lost = cluster.bookies[2].name

            async def healed() -> bool:
                if await marked(client):
                    return False
                found = [await client.describe(ledger_id) for ledger_id in ledgers]
                return all(lost not in metadata.fragments[0].bookies for metadata in found)

            await eventually(healed, "every ledger has left the lost bookie")
        for ledger_id in ledgers:
            assert set((await copies(client, ledger_id)).values()) == {3}
        assert await Marks(client.store).locked() == {}


async def test_a_second_auditor_waits_until_the_first_one_stops() -> None:
    async with world() as (cluster, client), another_client(cluster.uri) as other:
        first, second = Auditor(client, SOON), Auditor(other, SOON)
        await first.start()
        await audited(client)
        await second.start()
        ledger_id = await closed_ledger(client)
        await first.close()
        [lost, *_] = (await client.describe(ledger_id)).fragments[0].bookies
        await next(b for b in cluster.bookies if b.name == lost).kill()

        async def is_marked() -> bool:
            return await mark_of(client, ledger_id) is not None

        await eventually(is_marked, "the second one took over")
        await second.close()


@asynccontextmanager
async def another_client(uri: str) -> AsyncIterator[LedgerClient]:
    client = await LedgerClient.connect(uri, PATIENT)
    try:
        yield client
    finally:
        await client.close()
