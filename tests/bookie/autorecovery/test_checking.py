"""All ledgers are checked by what bookies say they hold."""

import dlog.testing
from bookie.autorecovery.auditor import Auditor
from bookie.autorecovery.checks import CheckRecord, check_all
from bookie.autorecovery.protocol.repair import RepairOutcome
from bookie.autorecovery.worker import Worker
from dlog.testing.cluster import AsyncCluster
from ledger.client import ClientConfig, LedgerClient
from ledger.ids import LedgerId
from ledger.mark import Reason
from ledger.quorum import Quorum
from ledger.repair_marks import path_of_mark
from tests.bookie.autorecovery.test_worker import (
    AT_ONCE,
    closed_ledger,
    copies,
    kill,
    mark_of,
    world,
)
from tests.waiting import PATIENCE_S, SESSION_S, eventually

LATE = ClientConfig(
    session_timeout_s=SESSION_S,
    metadata_timeout_s=PATIENCE_S,
    bookie_timeout_s=PATIENCE_S,
    delay_ensemble_change=True,
)


async def ledger_with_a_hole(cluster: AsyncCluster, client: LedgerClient) -> tuple[LedgerId, str]:
    """Return a CLOSED ledger, and its bookie that was away when the last entries were added.

    Its writer knows of that, and has marked it; the mark is lost."""
    writer = await client.create()
    for _ in range(3):
        await writer.add(b"x")
    absent = writer.metadata.last_fragment.bookies[2]

    async def has_them() -> bool:
        return len((await client.read_replica(writer.ledger_id, absent, 0, 2)).frames) == 3

    await eventually(has_them, "two of three suffice for an answer; the third has them too")
    await journals_synced(client)
    await kill(cluster, client, absent)
    for _ in range(4):
        await writer.add(b"y")
    await writer.close()
    await next(b for b in cluster.bookies if b.name == absent).start()

    async def is_back() -> bool:
        return any(found.bookie == absent for found in client.bookies.available())

    await eventually(is_back)
    await forget_mark(client, writer.ledger_id)
    return writer.ledger_id, absent


async def journals_synced(client: LedgerClient) -> None:
    """Return when what each of three bookies can be asked for is on its disk too.

    A journal is in order: what all three acknowledge now was written after it."""
    behind = await client.create(Quorum(3, 3, 3))
    await behind.add(b"")
    await behind.close()
    await client.delete(behind.ledger_id)


async def forget_mark(client: LedgerClient, ledger_id: LedgerId) -> None:
    """Wait until the writer has marked the ledger, which it does beside, and delete the mark."""

    async def is_marked() -> bool:
        return await mark_of(client, ledger_id) is not None

    await eventually(is_marked)
    await client.store.delete(path_of_mark(ledger_id))


async def test_entries_that_passed_a_bookie_by_are_found_without_reading_and_made_good() -> None:
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri, LATE)
        whole = await closed_ledger(client)
        ledger_id, absent = await ledger_with_a_hole(cluster, client)
        check = await check_all(client)
        assert (check.ledgers, check.lacking, check.unsure) == (2, 1, 0)
        assert await mark_of(client, whole) is None
        mark = await mark_of(client, ledger_id)
        assert mark is not None
        assert [(k.bookie, k.reason) for k in mark.missing] == [(absent, Reason.MISSING)]
        before = await client.describe(ledger_id)
        worker = Worker(client, AT_ONCE)
        scan = await worker.run_once()
        assert scan.outcomes == {RepairOutcome.DONE: 1}, await mark_of(client, ledger_id)
        assert set((await copies(client, ledger_id)).values()) == {3}
        assert await client.describe(ledger_id) == before
        assert 0 < worker.pace.entries <= 7
        assert (await check_all(client)).lacking == 0
        await client.close()


async def test_a_bookie_that_is_away_lacks_nothing_yet() -> None:
    async with world(4) as (cluster, client):
        ledger_id = await closed_ledger(client)
        away = (await client.describe(ledger_id)).fragments[0].bookies[0]
        await kill(cluster, client, away)
        check = await check_all(client)
        assert (check.lacking, check.unsure) == (0, 1)
        assert await mark_of(client, ledger_id) is None


async def test_the_auditor_checks_by_itself_and_leaves_when() -> None:
    async with world(3) as (_, client):
        await closed_ledger(client)
        async with Auditor(client):

            async def is_checked() -> bool:
                return await CheckRecord.last(client.store) is not None

            await eventually(is_checked)
        checked = await CheckRecord.last(client.store)
        assert checked is not None
        assert (checked.ledgers, checked.lacking, checked.unreadable) == (1, 0, 0)
