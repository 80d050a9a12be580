"""Ledgers whose end is given by an operator, or shown by all bookies, instead of recovered."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from ledger import LedgerClient, LedgerState, Quorum
from ledger.errors import (
    BookiesMissing,
    EndBelowConfirmed,
    EndNotHeld,
    EndUncertain,
    LedgerClosed,
    LedgerFenced,
)
from ledger.forced_close import force_close, gather_evidence, union
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.reconciliation import Reconciled, reconcile
from tests.ledger.local_bookies import LocalBookies, local_bookies
from tests.waiting import eventually


def payloads(count: int) -> list[bytes]:
    return [f"entry {i}".encode() for i in range(count)]


async def whole(client: LedgerClient, ledger_id: LedgerId) -> list[bytes]:
    reader = await client.open(ledger_id)
    metadata = await client.describe(ledger_id)
    assert metadata.last_entry is not None
    if metadata.last_entry < 0:
        return []
    return [bytes(entry.payload) for entry in await reader.read(0, metadata.last_entry)]


async def put_back(client: LedgerClient, ledger_id: LedgerId, older: LedgerMetadata) -> None:
    """Let the store say of the ledger what it said before."""
    _, version = await client.ledgers.read(ledger_id, fresh=True)
    await client.ledgers.write(ledger_id, older, version)


async def reconciled(client: LedgerClient, *without: str) -> list[Reconciled]:
    return [each async for each in reconcile(client, 1 << 40, without=without)]


async def written_after_a_change(
    cluster: LocalBookies,
) -> tuple[LedgerClient, LedgerId, LedgerMetadata]:
    """Return a ledger of 20 entries, all acknowledged, whose last 10 are on no more than one bookie
    of the ensemble that its older metadata name."""
    client = await cluster.client()
    writer = await client.create()
    await asyncio.gather(*(writer.add(p) for p in payloads(10)))
    older = await client.describe(writer.ledger_id)
    for name in older.last_fragment.bookies[:2]:
        await cluster.of(name).kill()
    await asyncio.gather(*(writer.add(p) for p in payloads(20)[10:]))
    newer = await client.describe(writer.ledger_id)
    assert len({*older.last_fragment.bookies} & {*newer.last_fragment.bookies}) == 1
    for name in older.last_fragment.bookies[:2]:
        await cluster.of(name).start()
    return client, writer.ledger_id, older


async def test_a_ledger_is_closed_at_the_entry_that_is_given_and_its_writer_is_fenced() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        await asyncio.gather(*(writer.add(p) for p in payloads(10)))
        closed = await force_close(client.environment, writer.ledger_id, 9)
        assert (closed.metadata.last_entry, closed.cut, closed.short) == (9, 0, 0)
        assert all(holding.is_fenced for holding in closed.evidence.holdings)
        with pytest.raises(LedgerFenced):
            await writer.add(b"late")
        assert await whole(client, writer.ledger_id) == payloads(10)
        assert closed.metadata.length == sum(map(len, payloads(10)))
        with pytest.raises(LedgerClosed):
            await force_close(client.environment, writer.ledger_id, 3)


async def test_what_is_proven_to_be_confirmed_is_cut_only_if_that_is_asked_for() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        for payload in payloads(10):
            await writer.add(payload)
        with pytest.raises(EndBelowConfirmed):
            await force_close(client.environment, writer.ledger_id, 3)
        assert (await client.describe(writer.ledger_id)).state is LedgerState.IN_RECOVERY
        closed = await force_close(client.environment, writer.ledger_id, 3, below_confirmed=True)
        assert (closed.metadata.last_entry, closed.cut) == (3, 6)
        assert await whole(client, writer.ledger_id) == payloads(4)


async def test_an_entry_that_nobody_holds_is_no_end() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        await writer.add(b"only")
        with pytest.raises(EndNotHeld):
            await force_close(client.environment, writer.ledger_id, 1)
        closed = await force_close(client.environment, writer.ledger_id, 0)
        assert closed.metadata.last_entry == 0


async def hold_all(client: LedgerClient, ledger_id: LedgerId, count: int) -> bool:
    metadata, _ = await client.ledgers.read(ledger_id)
    keys = client.credentials(ledger_id, metadata, b"")
    evidence = await gather_evidence(client.environment, keys, metadata)
    members = [holding for holding in evidence.holdings if holding.is_member]
    return [member.last_entry for member in members] == [count - 1] * 3


async def test_a_look_changes_nothing() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        await writer.add(b"first")
        metadata, version = await client.ledgers.read(writer.ledger_id)
        keys = client.credentials(writer.ledger_id, metadata, b"")
        evidence = await gather_evidence(client.environment, keys, metadata)
        assert [holding.last_entry for holding in evidence.holdings] == [0, 0, 0]
        assert not any(holding.is_fenced for holding in evidence.holdings)
        await writer.add(b"second")
        assert (await client.ledgers.read(writer.ledger_id, fresh=True))[1] == version


async def test_bookies_that_are_gone_keep_no_ledger_open_and_others_take_their_place() -> None:
    async with local_bookies(5) as cluster:
        client = await cluster.client()
        writer = await client.create()
        await asyncio.gather(*(writer.add(p) for p in payloads(30)))
        await eventually(partial(hold_all, client, writer.ledger_id, 30))
        await writer.abandon()  # or it would replace who dies before the last ack
        gone = writer.metadata.last_fragment.bookies[:2]
        for name in gone:
            await cluster.of(name).kill()
        await client.bookies.look_again()
        with pytest.raises(EndUncertain, match=gone[0]):
            await force_close(client.environment, writer.ledger_id, None)
        closed = await force_close(client.environment, writer.ledger_id, 29)
        assert not {*closed.metadata.last_fragment.bookies} & {*gone}
        assert closed.short == 0, "each entry was copied to those that took the others' place"
        assert await whole(client, writer.ledger_id) == payloads(30)


async def test_with_one_bookie_left_of_three_entries_have_fewer_copies_and_that_is_said() -> None:
    async with local_bookies(3) as cluster:
        client = await cluster.client()
        writer = await client.create()
        await asyncio.gather(*(writer.add(p) for p in payloads(5)))
        for name in writer.metadata.last_fragment.bookies[:2]:
            await cluster.of(name).kill()
        await client.bookies.look_again()
        closed = await force_close(client.environment, writer.ledger_id, 4)
        assert closed.short == 5
        assert await whole(client, writer.ledger_id) == payloads(5)


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 2, 2)])
async def test_what_only_one_bookie_holds_is_copied_before_the_close(
    sizes: tuple[int, int, int],
) -> None:
    async with local_bookies(4) as cluster:
        client = await cluster.client()
        writer = await client.create(Quorum(*sizes))
        await asyncio.gather(*(writer.add(p) for p in payloads(12)))
        held = [cluster.of(name).storage.ledgers for name in writer.metadata.last_fragment.bookies]
        for entry_id in range(12):
            copies = [one for one in held if entry_id in one.get(writer.ledger_id, {})]
            for one in copies[1:]:
                del one[writer.ledger_id][entry_id]
        closed = await force_close(client.environment, writer.ledger_id, 11)
        assert closed.short == 0
        assert await whole(client, writer.ledger_id) == payloads(12)


async def test_entries_of_an_ensemble_that_the_store_has_forgotten_are_not_cut() -> None:
    """Two of three bookies were replaced since the backup: a recovery that asks the recorded
    ensemble hears two true denials."""
    async with local_bookies(5) as cluster:
        client, ledger_id, older = await written_after_a_change(cluster)
        await put_back(client, ledger_id, older)
        [result] = await reconciled(client)
        assert (result.ledger_id, result.end, result.cut) == (ledger_id, 19, 0)
        assert await whole(client, ledger_id) == payloads(20)
        assert await reconciled(client) == []


async def test_what_the_forgotten_ensemble_alone_holds_is_counted_as_found_elsewhere() -> None:
    async with local_bookies(6) as cluster:
        client, ledger_id, older = await written_after_a_change(cluster)
        for name in older.last_fragment.bookies:
            entries = cluster.of(name).storage.ledgers[ledger_id]
            for entry_id in range(10, 20):
                entries.pop(entry_id, None)
        await put_back(client, ledger_id, older)
        [result] = await reconciled(client)
        assert (result.end, result.found_elsewhere) == (19, 10)
        assert await whole(client, ledger_id) == payloads(20)


async def test_without_a_bookie_that_the_store_knows_nothing_is_decided() -> None:
    async with local_bookies(5) as cluster:
        client, ledger_id, older = await written_after_a_change(cluster)
        await put_back(client, ledger_id, older)
        newer = next(b for b in cluster.bookies if b.name not in older.last_fragment.bookies)
        await newer.kill()
        with pytest.raises(BookiesMissing, match=newer.name):
            await reconciled(client)
        assert (await client.describe(ledger_id)).state is LedgerState.OPEN
        [result] = await reconciled(client, newer.name)
        assert result.end == 19, "the other one of the newer ensemble has all"


async def test_a_closed_ledger_that_was_moved_since_comes_back_to_those_that_are_named() -> None:
    async with local_bookies(6) as cluster:
        client = await cluster.client()
        writer = await client.create()
        await asyncio.gather(*(writer.add(p) for p in payloads(10)))
        closed = await writer.close()
        others = tuple(
            BookieId(b.name) for b in cluster.bookies if b.name not in closed.last_fragment.bookies
        )
        wrong = replace(closed, fragments=(Fragment(EntryId(0), others),))
        await put_back(client, writer.ledger_id, wrong)
        [result] = await reconciled(client)
        assert (result.end, result.found_elsewhere, result.lost) == (9, 10, 0)
        for bookie in cluster.bookies:
            if bookie.name not in others:
                await bookie.kill()
        assert await whole(client, writer.ledger_id) == payloads(10)


async def test_entries_that_no_bookie_has_any_more_are_counted_as_lost() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        await asyncio.gather(*(writer.add(p) for p in payloads(10)))
        await writer.close()
        for bookie in cluster.bookies:
            for entry_id in (3, 4):
                del bookie.storage.ledgers[writer.ledger_id][entry_id]
        [result] = await reconciled(client)
        assert (result.end, result.lost, result.found_elsewhere) == (9, 2, 0)


async def test_ledgers_that_were_made_after_the_restore_are_left_to_their_writers() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        before, after = await client.create(), await client.create()
        found = [each async for each in reconcile(client, after.ledger_id)]
        assert [each.ledger_id for each in found] == [before.ledger_id]
        await after.add(b"goes on")


def test_spans_are_joined_where_they_touch() -> None:
    assert list(union([(5, 7), (0, 2), (3, 3), (9, 8), (6, 10)])) == [(0, 3), (5, 10)]
