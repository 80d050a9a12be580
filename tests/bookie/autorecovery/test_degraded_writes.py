"""Logs on a cluster of three bookies while one is away, and repair when it is back."""

import pytest

import dlog.testing
from bookie.autorecovery.worker import Worker
from dlog.aio import Log
from dlog.aio.admin import create_log, update_settings
from dlog.settings import LogSettings
from dlog.testing.cluster import AsyncCluster
from ledger.client import LedgerClient
from ledger.errors import NotEnoughBookies
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.mark import MissingReplica, Reason
from ledger.quorum import Quorum
from ledger.registry import DECOMMISSIONING
from tests.bookie.autorecovery.test_worker import AT_ONCE, copies, kill, mark_of, world
from tests.patience import PATIENT
from tests.waiting import eventually, until

LOG = "degraded"


async def ledgers_of(client: LedgerClient) -> list[LedgerId]:
    return sorted([ledger_id async for ledger_id in client.list()])


async def come_back(cluster: AsyncCluster, client: LedgerClient, name: str) -> None:
    await next(bookie for bookie in cluster.bookies if bookie.name == name).start()

    async def is_back() -> bool:
        return name in client.bookies.writable()

    await eventually(is_back)


async def is_whole(client: LedgerClient, ledger_id: LedgerId) -> bool:
    return set((await copies(client, ledger_id)).values()) == {3}


async def test_a_log_is_opened_and_written_while_one_of_three_bookies_is_away() -> None:
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        away = cluster.bookies[0].name
        await kill(cluster, client, away)
        async with await Log.open(LOG, client=client) as log:
            await log.append(b"one")
            (ledger_id,) = await ledgers_of(client)
            mark = await mark_of(client, ledger_id)
            assert mark is not None
            (replica,) = mark.missing
            assert replica == MissingReplica(
                BookieId(away), Reason.AWAY, replica.since_ms, EntryId(0)
            )
            assert away in (await client.describe(ledger_id)).fragments[0].bookies
        await client.close()


async def test_a_ledger_is_marked_before_its_first_entry() -> None:
    """A writer that dies with that entry needs nobody who knows of the bookie."""
    async with world(bookies=3) as (cluster, client):
        away = cluster.bookies[0].name
        await kill(cluster, client, away)
        writer = await client.create(degraded_writes=True)
        mark = await mark_of(client, writer.ledger_id)
        assert mark is not None
        assert mark.bookies == {away}
        await writer.abandon()


async def test_what_a_bookie_missed_is_copied_to_it_while_the_log_is_written() -> None:
    """The writer begins a new fragment when the bookie is back; the one before can be repaired."""
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        away = cluster.bookies[0].name
        await kill(cluster, client, away)
        async with Worker(client, AT_ONCE), await Log.open(LOG, client=client) as log:
            await log.append(b"one")
            (ledger_id,) = await ledgers_of(client)
            await come_back(cluster, client, away)

            async def is_unmarked() -> bool:
                return await mark_of(client, ledger_id) is None

            await eventually(is_unmarked, "the mark is gone", timeout_s=60)
            metadata = await client.describe(ledger_id)
            assert [fragment.first_entry for fragment in metadata.fragments] == [0, 1]
            assert 0 in (await client.read_replica(ledger_id, BookieId(away), 0, 0)).frames
            await log.append(b"two")
        assert await is_whole(client, ledger_id)
        await client.close()


async def test_a_log_that_was_closed_meanwhile_is_whole_when_the_bookie_is_back() -> None:
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        away = cluster.bookies[0].name
        await kill(cluster, client, away)
        async with await Log.open(LOG, client=client) as log:
            await log.append(b"one")
        (ledger_id,) = await ledgers_of(client)
        worker = Worker(client, AT_ONCE)
        await worker.run_once()
        assert await mark_of(client, ledger_id) is not None
        await come_back(cluster, client, away)
        await worker.run_once()
        assert await mark_of(client, ledger_id) is None
        assert await is_whole(client, ledger_id)
        await client.close()


async def test_another_bookie_that_comes_gets_the_copies_of_one_that_stays_away() -> None:
    async with dlog.testing.cluster(bookies=4) as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        away, other = cluster.bookies[0].name, cluster.bookies[1].name
        await kill(cluster, client, away)
        await kill(cluster, client, other)
        async with await Log.open(LOG, client=client) as log:
            await log.append(b"one")
        (ledger_id,) = await ledgers_of(client)
        named = {away, other} & set((await client.describe(ledger_id)).fragments[0].bookies)
        (comes,) = {away, other} - named
        await come_back(cluster, client, comes)
        await Worker(client, AT_ONCE).run_once()
        assert await mark_of(client, ledger_id) is None
        assert comes in (await client.describe(ledger_id)).fragments[0].bookies
        assert await is_whole(client, ledger_id)
        await client.close()


async def test_a_log_that_does_not_want_degraded_writes_waits_for_bookies() -> None:
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        await create_log(LOG, settings=LogSettings(degraded_writes=False), client=client)
        await kill(cluster, client, cluster.bookies[0].name)
        with pytest.raises(NotEnoughBookies):
            await Log.open(LOG, client=client)
        await update_settings(LOG, {"degraded_writes": True}, client=client)
        async with await Log.open(LOG, client=client) as log:
            await log.append(b"one")
        await client.close()


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_roll_goes_by_the_setting_as_it_is_now(*, wanted: bool) -> None:
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        await create_log(LOG, settings=LogSettings(degraded_writes=not wanted), client=client)
        async with await Log.open(LOG, client=client) as log:
            await log.append(b"one")
            await kill(cluster, client, cluster.bookies[0].name)
            await update_settings(LOG, {"degraded_writes": wanted}, client=client)
            if wanted:
                await log.roll()
            await log.append(b"two")
        assert len(await ledgers_of(client)) == 1 + wanted
        await client.close()


@pytest.mark.parametrize("quorum", [(3, 3, 3), (3, 2, 2), (2, 2, 1)])
async def test_where_every_bookie_is_needed_nobody_who_is_away_is_named(
    quorum: tuple[int, int, int],
) -> None:
    async with dlog.testing.cluster(bookies=quorum[0]) as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        await kill(cluster, client, cluster.bookies[0].name)
        with pytest.raises(NotEnoughBookies):
            await client.create(Quorum(*quorum), degraded_writes=True)
        await client.close()


async def test_a_bookie_that_is_to_be_emptied_is_not_named() -> None:
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        away = cluster.bookies[0].name
        await client.store.create(f"{DECOMMISSIONING}/{away}")
        await kill(cluster, client, away)
        with pytest.raises(NotEnoughBookies):
            await client.create(degraded_writes=True)
        await client.store.delete(f"{DECOMMISSIONING}/{away}")
        writer = await client.create(degraded_writes=True)
        assert away in writer.metadata.fragments[0].bookies
        await writer.close()
        await client.close()


async def test_a_log_is_opened_and_written_while_one_of_three_bookies_is_read_only() -> None:
    """Its disk is full: that must not stop a log of three bookies."""
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        full = await fill_up(cluster, client)
        async with await Log.open(LOG, client=client) as log:
            await log.append(b"one")
            (ledger_id,) = await ledgers_of(client)
            assert full in (await client.describe(ledger_id)).fragments[0].bookies
            mark = await mark_of(client, ledger_id)
            assert mark is not None
            assert mark.bookies == {full}
        await client.close()


@pytest.mark.slow
async def test_a_bookie_that_was_read_only_gets_its_copies_when_it_takes_them() -> None:
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        await fill_up(cluster, client)
        async with Worker(client, AT_ONCE), await Log.open(LOG, client=client) as log:
            await log.append(b"one")
            (ledger_id,) = await ledgers_of(client)
            await cluster.set_read_only(1, read_only=False)

            async def is_unmarked() -> bool:
                return await mark_of(client, ledger_id) is None

            await eventually(is_unmarked, "the mark is gone", timeout_s=60)
            assert len((await client.describe(ledger_id)).fragments) > 1
            await log.append(b"two")
        assert await is_whole(client, ledger_id)
        await client.close()


async def fill_up(cluster: AsyncCluster, client: LedgerClient) -> str:
    full = cluster.bookies[1].name
    await cluster.set_read_only(1)
    await until(lambda: full not in client.bookies.writable())
    return full


async def test_an_ordinary_ledger_names_nobody_who_is_away() -> None:
    async with world(bookies=3) as (cluster, client):
        await kill(cluster, client, cluster.bookies[0].name)
        with pytest.raises(NotEnoughBookies):
            await client.create()
