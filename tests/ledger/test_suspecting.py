"""What readers find is marked, so that repair looks for itself; and no read waits for it."""

import asyncio
from typing import cast

import pytest

from ledger.client import LedgerClient
from ledger.ids import BookieId, LedgerId
from ledger.mark import MissingReplica, Reason, UnderreplicatedLedger
from ledger.metastore import open_store
from ledger.metastore.port import MetadataStore
from ledger.protocol.answers import Fault, RepairHint
from ledger.repair_marks import (
    AGAIN_MS,
    REMEMBERED_MAX,
    WAITING_MAX,
    RepairHints,
    path_of_mark,
    read_mark,
)
from tests.ledger.flaky_store import FlakyStore
from tests.ledger.local_bookies import LocalBookies, local_bookies
from tests.waiting import eventually

SEVEN = LedgerId(7)
NAME = BookieId("bookie-9")


def hint(fault: Fault = Fault.DAMAGED, bookie: BookieId = NAME) -> RepairHint:
    return RepairHint(bookie, fault, 3)


async def mark_of(client: LedgerClient, ledger_id: LedgerId) -> UnderreplicatedLedger | None:
    found = await read_mark(client.store, ledger_id)
    return None if found is None else found[0]


async def read_all(client: LedgerClient, ledger_id: LedgerId, last: int) -> None:
    reader = await client.open_no_recovery(ledger_id)
    for entry_id in range(last + 1):  # each from another bookie first
        await reader.read(entry_id, entry_id)
    await reader.close()


async def written(client: LedgerClient) -> LedgerId:
    writer = await client.create()
    for _ in range(9):
        await writer.add(b"entry")
    await writer.close()
    return writer.ledger_id


async def damage(cluster: LocalBookies, client: LedgerClient, ledger_id: LedgerId) -> BookieId:
    bookie = (await client.describe(ledger_id)).fragments[0].bookies[1]
    frames = cluster.of(bookie).storage.ledgers[ledger_id]
    for entry_id, frame in frames.items():
        frames[entry_id] = frame[:-1] + bytes([frame[-1] ^ 1])
    return bookie


async def test_a_damaged_replica_that_a_reader_met_is_marked() -> None:
    async with local_bookies(3) as cluster:
        client = await cluster.client()
        ledger_id = await written(client)
        bookie = await damage(cluster, client, ledger_id)
        await read_all(client, ledger_id, 8)

        async def is_marked() -> bool:
            return await mark_of(client, ledger_id) is not None

        await eventually(is_marked)
        mark = await mark_of(client, ledger_id)
        assert mark is not None
        assert [(replica.bookie, replica.reason) for replica in mark.missing] == [
            (bookie, Reason.DAMAGED)
        ]


async def test_of_an_open_ledger_nothing_is_suspected() -> None:
    """An entry may be on its way to the last of its bookies, and nobody could repair it."""
    async with local_bookies(3) as cluster:
        client = await cluster.client()
        heard: list[LedgerId] = []
        readers = [await cluster.client() for _ in range(2)]  # the first one avoids who is damaged
        for reader in readers:
            reader.environment.suspect = lambda ledger_id, _: heard.append(ledger_id)
        writer = await client.create()
        for _ in range(9):
            await writer.add(b"entry")
        await damage(cluster, client, writer.ledger_id)
        await read_all(readers[0], writer.ledger_id, 7)
        assert heard == []
        await writer.close()
        await read_all(readers[1], writer.ledger_id, 8)
        assert set(heard) == {writer.ledger_id}


async def settle(suspicions: RepairHints) -> None:
    while (writing := suspicions._writing) is not None:
        await asyncio.gather(writing, return_exceptions=True)


async def test_a_replica_is_reported_once_in_a_while() -> None:
    store = await open_store("memory://suspicions-once")
    now = [1_000_000]
    suspicions = RepairHints(store, wall_clock_ms=lambda: now[0])

    async def marked() -> tuple[MissingReplica, ...]:
        """Let one more reader meet the replica; take away what is marked then."""
        suspicions.heard(SEVEN, hint())
        await settle(suspicions)
        found = await read_mark(store, SEVEN)
        if found is None:
            return ()
        await store.delete(path_of_mark(SEVEN))
        return found[0].missing

    assert await marked() == (MissingReplica(NAME, Reason.DAMAGED, now[0]),)
    assert await marked() == ()
    now[0] += AGAIN_MS
    assert await marked() == (MissingReplica(NAME, Reason.DAMAGED, now[0]),)
    await suspicions.close()
    await store.close()


async def test_a_missing_replica_is_marked_as_such() -> None:
    store = await open_store("memory://suspicions-missing")
    suspicions = RepairHints(store)
    suspicions.heard(SEVEN, hint(Fault.MISSING))
    await settle(suspicions)
    found = await read_mark(store, SEVEN)
    assert found is not None
    assert found[0].missing[0].reason is Reason.MISSING
    await suspicions.close()
    await store.close()


async def test_what_waits_and_what_is_remembered_is_bounded() -> None:
    store = await open_store("memory://suspicions-bounded")
    suspicions = RepairHints(store)
    for number in range(REMEMBERED_MAX + 10):
        suspicions.heard(LedgerId(number), hint())
        if number % WAITING_MAX == 0:
            await settle(suspicions)
    assert len(suspicions._waiting) <= WAITING_MAX
    assert len(suspicions._reported) <= REMEMBERED_MAX
    await suspicions.close()
    await store.close()


async def test_what_is_heard_while_workers_are_called_is_marked_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = await open_store("memory://suspicions-late")
    suspicions = RepairHints(store)
    rings: list[MetadataStore] = []

    async def notify_workers(called: MetadataStore) -> None:
        rings.append(called)
        suspicions.heard(LedgerId(8), hint())

    monkeypatch.setattr("ledger.repair_marks.notify_workers", notify_workers)
    suspicions.heard(SEVEN, hint())
    await settle(suspicions)
    assert await read_mark(store, LedgerId(8)) is not None
    assert len(rings) == 2
    await suspicions.close()
    await store.close()


async def test_a_store_that_does_not_answer_is_asked_again_by_the_next_reader() -> None:
    real = await open_store("memory://suspicions-flaky")
    store = FlakyStore(real)
    suspicions = RepairHints(cast("MetadataStore", store))
    store.lose_requests.append("create")
    suspicions.heard(SEVEN, hint())
    await settle(suspicions)
    assert await read_mark(real, SEVEN) is None
    suspicions.heard(SEVEN, hint())
    await settle(suspicions)
    assert await read_mark(real, SEVEN) is not None
    await suspicions.close()
    suspicions.heard(LedgerId(8), hint())
    assert suspicions._writing is None
    await real.close()


async def test_what_waits_is_marked_before_the_client_is_closed() -> None:
    """Who recovers a ledger and ends has doubts too."""
    store = await open_store("memory://suspicions-last")
    suspicions = RepairHints(store)
    suspicions.doubted(SEVEN, [NAME, BookieId("bookie-8")])
    await suspicions.close()
    found = await read_mark(store, SEVEN)
    assert found is not None
    assert {(replica.bookie, replica.reason) for replica in found[0].missing} == {
        (NAME, Reason.MISSING),
        ("bookie-8", Reason.MISSING),
    }
    await store.close()


async def test_a_recovery_is_one_mark_whomever_it_doubts() -> None:
    store = await open_store("memory://suspicions-together")
    suspicions = RepairHints(store)
    suspicions.doubted(SEVEN, [NAME, BookieId("bookie-7"), BookieId("bookie-8")])
    await suspicions.close()
    assert await store.exists(path_of_mark(SEVEN)) == 0  # it was never changed
    await store.close()
