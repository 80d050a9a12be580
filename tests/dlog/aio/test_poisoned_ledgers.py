"""Logs go on although a stranger fenced their next ledgers in advance, under another key.

The bookies here do not ask the metadata store who made a ledger: as one that could not ask it.
"""

from pathlib import Path

import pytest

from dlog.aio import Log
from dlog.errors import AppendFailed
from ledger import LedgerClient
from ledger.entry import access_key
from ledger.errors import KeyDiffers
from ledger.ids import BookieId, LedgerId
from ledger.manager.ids import BLOCK_SIZE
from ledger.requests import LacQuery
from tests.ledger.local_bookies import LocalBookies, local_bookies

STRANGER = access_key(b"stranger")


async def poison(cluster: LocalBookies, client: LedgerClient, count: int, bookies: int) -> None:
    """Fence the next *count* ids at so many bookies."""
    next_id = (await client.ledgers.vitals()).next_id
    transport = client._environment.transport
    for bookie in cluster.bookies[:bookies]:
        for ledger_id in range(next_id, next_id + count):
            query = LacQuery(LedgerId(ledger_id), STRANGER, fence=True)
            assert (await transport.read_lac(BookieId(bookie.name), query)).fenced


async def values(client: LedgerClient) -> list[bytes]:
    async with await Log.tail("log", client=client, follow=False) as reader:
        return [record.value async for record in reader]


@pytest.mark.slow
@pytest.mark.parametrize("bookies", [1, 3])
async def test_a_log_goes_on_in_ledgers_that_nobody_poisoned(tmp_path: Path, bookies: int) -> None:
    async with local_bookies(3, tmp_path) as cluster:
        client = await cluster.client()
        await poison(cluster, client, 2 * BLOCK_SIZE, bookies)
        log = await Log.open("log", client=client)
        for offset in range(3):
            assert (await log.append(b"%d" % offset)).offset == offset
            await log.roll()
            await poison(cluster, client, 1, bookies)
        await log.append(b"3")
        await log.abandon()
        assert await values(client) == [b"0", b"1", b"2", b"3"]
        async with await Log.open("log", client=client) as log:
            assert (await log.append(b"4")).offset == 4


@pytest.mark.slow
async def test_a_log_that_finds_no_honest_ledger_says_so_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.protocol.log_writer.EMPTY_CLOSES_MAX", 2)
    async with local_bookies(3, tmp_path) as cluster:
        client = await cluster.client()
        await poison(cluster, client, 3 * BLOCK_SIZE, 2)
        log = await Log.open("log", client=client)
        with pytest.raises(AppendFailed, match="a key that differs") as caught:
            await log.append(b"not kept")
        assert not caught.value.outcome_unknown
        await log.abandon()
        async with await Log.open("log", client=client) as log:
            assert (await log.append(b"kept")).offset == 0
        assert await values(client) == [b"kept"]


@pytest.mark.slow
async def test_a_ledger_whose_poison_its_writer_did_not_see_is_told_as_such(tmp_path: Path) -> None:
    async with local_bookies(3, tmp_path) as cluster:
        client = await cluster.client()
        await poison(cluster, client, BLOCK_SIZE, 2)
        writer = await client.create()
        with pytest.raises(KeyDiffers, match="is damaged"):
            await client.recover(writer.ledger_id)
        reader = await client.open_no_recovery(writer.ledger_id)
        with pytest.raises(KeyDiffers, match="is damaged"):
            await reader.read_last_add_confirmed()
        await writer.abandon()
