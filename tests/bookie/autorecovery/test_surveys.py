"""Checks that no lost bookie brings about: placement, living replicas, unread entries."""

from pathlib import Path

import pytest

from bookie.autorecovery.auditor import Auditor, _Auditing
from bookie.autorecovery.checks import (
    CheckRecord,
    PlacementRecord,
    ReplicasRecord,
    Scrub,
    check_all,
    check_placement,
    check_replicas,
)
from bookie.autorecovery.protocol.audit import AuditConfig
from bookie.autorecovery.protocol.repair import RepairOutcome
from bookie.autorecovery.repair_io import CopyPace
from bookie.autorecovery.worker import Worker
from ledger.client import LedgerClient
from ledger.entry import Digest, encode_frame, mac_key, parse_header, payload_of
from ledger.ids import BookieId, LedgerId
from ledger.mark import MissingReplica, Reason
from ledger.registry import COOKIES, retired_cookie
from ledger.requests import ReadAnswer, ReadQuery, Status
from tests.bookie.autorecovery.test_worker import (
    AT_ONCE,
    closed_ledger,
    copies,
    mark_lost,
    mark_of,
)
from tests.ledger.local_bookies import LocalBookies, local_bookies
from tests.waiting import PATIENCE_S, eventually

NOW_MS = 1_000_000


def frames_of(cluster: LocalBookies, bookie: str, ledger_id: LedgerId) -> dict[int, bytes]:
    return cluster.of(bookie).storage.ledgers[ledger_id]


async def kill(cluster: LocalBookies, client: LedgerClient, *bookies: str) -> None:
    for bookie in bookies:
        await cluster.of(bookie).kill()

    async def are_gone() -> bool:
        return not any(found.bookie in bookies for found in client.bookies.available())

    await eventually(are_gone)


@pytest.mark.slow
async def test_a_ledger_that_is_all_on_one_rack_is_spread_when_there_are_others() -> None:
    async with local_bookies(0) as cluster:
        for _ in range(3):
            await cluster.add("r1")
        client = await cluster.client()
        await client.bookies.wait_for(3, PATIENCE_S)
        ledger_id = await closed_ledger(client, entries=9)
        assert (await check_placement(client, now_ms=NOW_MS)).misplaced == 0
        for rack in ("r2", "r3"):
            await cluster.add(rack)
        await client.bookies.wait_for(5, PATIENCE_S)
        found = await check_placement(client, now_ms=NOW_MS)
        assert found == PlacementRecord(at_ms=NOW_MS, ledgers=1, misplaced=1)
        mark = await mark_of(client, ledger_id)
        assert mark is not None
        assert {replica.reason for replica in mark.missing} == {Reason.MISPLACED}
        assert (await Worker(client, AT_ONCE).run_once()).outcomes == {RepairOutcome.DONE: 1}
        bookies = (await client.describe(ledger_id)).fragments[0].bookies
        assert {client.bookies.racks()[bookie] for bookie in bookies} == {"r1", "r2", "r3"}
        assert set((await copies(client, ledger_id)).values()) == {3}
        assert (await check_placement(client, now_ms=NOW_MS)).misplaced == 0


async def test_ledgers_with_bookies_away_are_counted_and_nothing_is_marked() -> None:
    async with local_bookies(3) as cluster:
        client = await cluster.client()
        ledger_id = await closed_ledger(client, entries=3)
        bookies = (await client.describe(ledger_id)).fragments[0].bookies
        for gone, (away, urgent) in enumerate([(0, 0), (1, 0), (1, 1)]):
            await kill(cluster, client, *bookies[:gone])
            found = await check_replicas(client, now_ms=NOW_MS)
            assert found == ReplicasRecord(at_ms=NOW_MS, ledgers=1, away=away, urgent=urgent)
        assert await mark_of(client, ledger_id) is None


async def test_a_member_that_has_no_cookie_any_more_is_marked_as_lost() -> None:
    async with local_bookies(4) as cluster:
        client = await cluster.client()
        ledger_id = await closed_ledger(client, entries=3)
        forgotten = (await client.describe(ledger_id)).fragments[0].bookies[2]
        await client.store.delete(f"{COOKIES}/{forgotten}")
        assert (await check_replicas(client, now_ms=NOW_MS)).unknown == 0  # it still serves
        await kill(cluster, client, forgotten)
        assert (await check_replicas(client, now_ms=NOW_MS)).unknown == 1
        mark = await mark_of(client, ledger_id)
        assert mark is not None
        assert mark.missing == (MissingReplica(forgotten, Reason.LOST, NOW_MS),)
        assert (await Worker(client, AT_ONCE).run_once()).outcomes == {RepairOutcome.DONE: 1}
        assert forgotten not in (await client.describe(ledger_id)).fragments[0].bookies


async def test_a_ledger_that_names_an_emptied_bookie_is_marked() -> None:
    """A client that slept has put it there: the name never comes back."""
    async with local_bookies(4) as cluster:
        client = await cluster.client()
        ledger_id = await closed_ledger(client, entries=3)
        emptied = (await client.describe(ledger_id)).fragments[0].bookies[2]
        await kill(cluster, client, emptied)
        path = f"{COOKIES}/{emptied}"
        cookie = (await client.store.get(path)).value
        await client.store.set(
            path, retired_cookie(cookie, path, why="it left", now_ms=NOW_MS, emptied=True)
        )
        assert (await check_replicas(client, now_ms=NOW_MS)).unknown == 1
        mark = await mark_of(client, ledger_id)
        assert mark is not None
        assert mark.missing == (MissingReplica(emptied, Reason.LOST, NOW_MS),)


@pytest.mark.slow
async def test_what_rots_unread_is_found_by_reading_a_share_with_digests() -> None:
    async with local_bookies(3) as cluster:
        client = await cluster.client()
        ledger_id = await closed_ledger(client, entries=30)
        rotten = (await client.describe(ledger_id)).fragments[0].bookies[1]
        frames = frames_of(cluster, rotten, ledger_id)
        frames[17] = frames[17][:-1] + b"?"
        found = await check_all(client)
        assert (found.lacking, found.bytes) == (0, 3 * sum(len(b"entry %d" % n) for n in range(30)))
        pace = CopyPace(0)
        check = await check_all(client, scrub=Scrub(1.0, pace))
        assert check.lacking == 1
        mark = await mark_of(client, ledger_id)
        assert mark is not None
        assert [(replica.bookie, replica.reason) for replica in mark.missing] == [
            (rotten, Reason.DAMAGED)
        ]
        assert mark.thorough


async def test_an_auditor_reads_no_more_than_ends_in_time() -> None:
    async with local_bookies(0) as cluster:
        client = await cluster.client()
        config = AuditConfig(scrub_share=0.5, scrub_bytes_per_s=100, check_all_s=80)
        auditing = _Auditing(client, config, lambda: NOW_MS)
        assert (await auditing._scrub()).share == 0.5
        for held, share in ((2000, 0.5), (4000, 0.25)):  # a thousand bytes in ten seconds
            report = CheckRecord(at_ms=1, ledgers=1, lacking=0, unsure=0, unreadable=0, bytes=held)
            await report.write(client.store)
            assert (await auditing._scrub()).share == share


async def test_the_auditor_makes_all_checks_and_leaves_when() -> None:
    async with local_bookies(3) as cluster:
        client = await cluster.client()
        await closed_ledger(client, entries=3)
        async with Auditor(client, wall_clock_ms=lambda: NOW_MS):

            async def are_made() -> bool:
                last = (
                    await CheckRecord.last(client.store),
                    await PlacementRecord.last(client.store),
                    await ReplicasRecord.last(client.store),
                )
                return all(record is not None and record.at_ms == NOW_MS for record in last)

            await eventually(are_made)
        check = await CheckRecord.last(client.store)
        assert check is not None
        assert check.bytes == 3 * len(b"entry 0entry 1entry 2")


@pytest.mark.slow
async def test_a_witness_that_does_not_answer_is_asked_once_and_keeps_no_copy_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_bookies(4, tmp_path) as cluster:
        client = await cluster.client()
        writer = await client.create()
        for _ in range(6):
            await writer.add(bytes(700_000))  # two reads and more
        await writer.close()
        lost, one, other = writer.metadata.fragments[0].bookies
        await kill(cluster, client, lost)
        await mark_lost(client, writer.ledger_id, lost)
        asked: list[BookieId] = []
        read = client.environment.transport.read

        async def first_only(bookie: BookieId, query: ReadQuery) -> ReadAnswer:
            asked.append(bookie)
            if bookie == asked[0]:
                return await read(bookie, query)
            return ReadAnswer(Status.UNREACHABLE)

        monkeypatch.setattr(client.environment.transport, "read", first_only)
        assert (await Worker(client, AT_ONCE).run_once()).outcomes == {RepairOutcome.DONE: 1}
        assert set(asked) == {one, other}
        assert asked.count(asked[1]) == 1
        assert asked.count(asked[0]) > 2


async def test_of_two_authenticated_frames_that_differ_none_is_copied_without_the_key() -> None:
    """A code that was made with another key: without the key both frames look whole."""
    async with local_bookies(4) as cluster:
        client = await cluster.client()
        ledger_id = await closed_ledger(
            client, entries=9, password=b"secret", digest=Digest.HMAC_SHA256
        )
        lost, changed, right = (await client.describe(ledger_id)).fragments[0].bookies
        frames = frames_of(cluster, changed, ledger_id)
        header = parse_header(frames[5])
        frames[5] = encode_frame(
            ledger_id=ledger_id,
            entry_id=5,
            last_add_confirmed=header.last_add_confirmed,
            length=header.length,
            payload=bytes(payload_of(frames[5], header)),
            mac=mac_key(b"another"),
        )
        await kill(cluster, client, lost)
        await mark_lost(client, ledger_id, lost)
        assert (await Worker(client, AT_ONCE).run_once()).outcomes == {RepairOutcome.DEFERRED: 1}
        mark = await mark_of(client, ledger_id)
        assert mark is not None
        assert mark.differing == ((5, 5),)
        assert {BookieId(changed), BookieId(right)} <= set(mark.deferred_why.split())
        assert lost in (await client.describe(ledger_id)).fragments[0].bookies
