"""Verifying a log: damage on one bookie is found there, damage of the log itself as such."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dlog.aio import Log
from dlog.aio.admin import log_info, truncate_log, verify_log
from dlog.aio.maintain.verify import VerifyProgress, VerifyReport
from dlog.aio.store import ManifestNode
from dlog.manifest import Segment
from dlog.settings import LogSettings
from ledger.client import LedgerClient
from ledger.entry import ReplicaFault, encode_frame, parse_header, payload_of
from ledger.errors import NoSuchLedger
from ledger.ids import LedgerId
from ledger.metadata import LedgerMetadata
from ledger.quorum import Quorum
from tests.dlog.fake_ledgers import FakeCluster
from tests.ledger.local_bookies import LocalBookies, local_bookies

ENTRIES = 30


@asynccontextmanager
async def written(
    bookies: int = 3, quorum: Quorum | None = None
) -> AsyncIterator[tuple[LocalBookies, LedgerClient, list[Segment]]]:
    """A closed log of two segments with 30 entries of one record each."""
    async with local_bookies(bookies) as cluster:
        client = await cluster.client()
        settings = LogSettings(quorum=quorum or Quorum())
        async with await Log.open("a", client=client, settings=settings) as log:
            for index in range(2 * ENTRIES):
                if index == ENTRIES:
                    await log.roll()
                await log.append(b"%d" % index * 20, txid=index)
        yield cluster, client, list((await log_info("a", client=client)).manifest.segments)


def faults_of(report: VerifyReport) -> list[tuple[str, ReplicaFault, int, int, int]]:
    return [
        (each.bookie, each.fault, each.first_entry, each.last_entry, each.entries)
        for each in report.faults
    ]


async def test_a_whole_log_is_healthy_and_progress_is_told() -> None:
    async with written() as (_, client, segments):
        told: list[VerifyProgress] = []
        report = await verify_log("a", client=client, on_progress=told.append)
        assert report.healthy
        assert (report.segments, report.entries, report.records) == (2, 60, 60)
        assert report.replicas == 180
        assert report.bytes == sum(segment.sealed.bytes for segment in segments if segment.sealed)
        assert told[-1] == VerifyProgress(2, 2, 2, 60, report.bytes)
        assert [each.entries for each in told] == sorted(each.entries for each in told)


async def test_a_striped_log_is_looked_for_where_it_should_be_only() -> None:
    async with written(5, Quorum(5, 3, 2)) as (_, client, _segments):
        report = await verify_log("a", client=client)
        assert report.healthy
        assert report.replicas == 180


async def test_a_damaged_a_missing_and_a_different_replica_are_found_on_their_bookies() -> None:
    async with written() as (cluster, client, segments):
        damaged, missing, different = (bookie.storage.ledgers for bookie in cluster.bookies)
        first, second = (segment.ledger_id for segment in segments)
        for entry_id in (0, 7, 29):
            frame = bytearray(damaged[first][entry_id])
            frame[-1] ^= 1
            damaged[first][entry_id] = bytes(frame)
        for entry_id in range(10, 20):
            del missing[first][entry_id]
        del missing[second]
        header = parse_header(different[second][5])
        different[second][5] = encode_frame(
            ledger_id=second,
            entry_id=5,
            last_add_confirmed=header.last_add_confirmed,
            length=header.length,
            payload=bytes(payload_of(different[second][5], header))[:-1] + b"?",
        )
        report = await verify_log("a", client=client)
        names = [bookie.name for bookie in cluster.bookies]
        # Two replicas of entry 5 are left and differ: the first one in its write set counts.
        counted = [each for each in faults_of(report) if each[1] is not ReplicaFault.DIFFERENT]
        assert sorted(counted, key=lambda each: each[2:]) == [
            (names[0], ReplicaFault.DAMAGED, 0, 29, 3),
            (names[1], ReplicaFault.MISSING, 0, 29, 30),
            (names[1], ReplicaFault.MISSING, 10, 19, 10),
        ]
        assert sum(each.fault is ReplicaFault.DIFFERENT for each in report.faults) == 1
        assert report.entries == 60
        assert not report.healthy


async def test_an_entry_that_no_replica_gives_is_lost_and_what_follows_is_still_looked_at() -> None:
    async with written() as (cluster, client, segments):
        for bookie in cluster.bookies:
            del bookie.storage.ledgers[segments[0].ledger_id][3]
        report = await verify_log("a", client=client)
        (problem,) = report.problems
        assert (problem.segment, problem.entry) == (1, 3)
        assert "lost" in problem.reason
        assert report.entries == 59


async def test_a_bookie_that_does_not_answer_is_one_fault_in_each_fragment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.aio.maintain.verify.ASK_AGAIN_S", 0.05)
    async with written() as (cluster, client, _):
        await cluster.bookies[1].kill()
        report = await verify_log("a", client=client)
        name = cluster.bookies[1].name
        assert faults_of(report) == [(name, ReplicaFault.UNREACHABLE, 0, 29, 30)] * 2
        assert report.problems == ()
        assert report.replicas == 120


async def test_a_log_that_is_being_written_is_verified_up_to_what_is_confirmed() -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        async with await Log.open("a", client=client) as log:
            for _ in range(10):
                await log.append(b"x")
            report = await verify_log("a", client=await cluster.client())
            assert report.problems == ()
            assert report.entries >= 9  # the last one may not be known to be confirmed yet
            assert (await log.append(b"y")).offset == 10


async def test_a_fragment_that_begins_after_a_bookie_failed_is_looked_for_on_the_new_one() -> None:
    async with local_bookies(4) as cluster:
        client = await cluster.client()
        async with await Log.open("a", client=client) as log:
            for _ in range(5):
                await log.append(b"x")
            ledger_id = (await log_info("a", client=client)).manifest.segments[0].ledger_id
            metadata = await client.describe(ledger_id)
            failed = cluster.of(metadata.fragments[0].bookies[0])
            await failed.kill()
            while len((await client.describe(ledger_id)).fragments) == 1:
                await log.append(b"y")
        await failed.start()
        report = await verify_log("a", client=client)
        assert report.problems == ()
        assert {each.fault for each in report.faults} <= {ReplicaFault.MISSING}
        assert all(each.bookie == failed.name for each in report.faults)


@pytest.mark.parametrize("before", [0, 5])
async def test_a_bookie_that_is_replaced_during_the_look_is_not_asked_for_what_came_later(
    before: int,
) -> None:
    """Whether the change begins with the first entries that are looked at, or further on."""
    async with local_bookies(4) as cluster:
        client = await cluster.client()
        async with await Log.open("a", client=await cluster.client()) as log:
            for _ in range(before):
                await log.append(b"x")
            (ledger_id,) = [each async for each in client.list()]
            describe = client.describe

            async def outdated(ledger_id: LedgerId) -> LedgerMetadata:
                """A bookie fails when its ledger was described, and comes back."""
                client.describe = describe  # type: ignore[method-assign]
                metadata = await describe(ledger_id)
                replaced = cluster.of(metadata.fragments[0].bookies[0])
                await replaced.kill()
                while (await describe(ledger_id)).fragments == metadata.fragments:
                    await log.append(b"y")
                for _ in range(3):  # so that some behind the change are known to be confirmed
                    await log.append(b"z")
                await replaced.start()
                return metadata

            client.describe = outdated  # type: ignore[method-assign]
            report = await verify_log("a", client=client)
            assert report.entries > before
            assert report.problems == ()
            first = (await describe(ledger_id)).fragments[-1].first_entry
            assert [each for each in report.faults if each.last_entry >= first] == []


@pytest.mark.slow
async def test_a_manifest_that_does_not_fit_its_ledgers_is_a_problem_of_the_log() -> None:
    async with written() as (_, client, segments):
        node = ManifestNode(client.store, "a")
        manifest, version = await node.read()
        sealed = segments[1].sealed
        assert sealed is not None
        wrong = replace(segments[1], sealed=replace(sealed, records=29, bytes=sealed.bytes + 1))
        await node.write(replace(manifest, segments=(segments[0], wrong)), version)
        report = await verify_log("a", client=client)
        assert [(each.segment, each.entry) for each in report.problems] == [(2, None), (2, None)]
        assert "30 records" in report.problems[0].reason


async def test_entries_that_do_not_join_are_problems_of_the_log() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("a", client=client) as log:
        for index in range(6):
            await log.append(b"x", txid=index)
    (ledger,) = cluster.ledgers.values()
    ledger.entries[2], ledger.entries[3] = ledger.entries[3], ledger.entries[2]
    ledger.entries[5] = b"no batch"
    report = await verify_log("a", client=client)
    assert {each.entry for each in report.problems} == {2, 3, 4, 5, None}
    assert report.faults == ()


async def test_a_segment_that_is_trimmed_meanwhile_is_no_problem_and_a_missing_one_is() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("a", client=client, settings=LogSettings(roll_records=1)) as log:
        for _ in range(3):
            await log.append(b"x")
            await log.roll()
        await log.append(b"x")

    async def trim(*_: object) -> None:
        cluster.hooks.clear()
        await truncate_log("a", before=2, client=client)

    cluster.before("replica", trim)
    report = await verify_log("a", client=client)
    assert report.healthy
    assert report.trimmed == 2
    lost = (await log_info("a", client=client)).manifest.segments[0]
    del cluster.ledgers[lost.ledger_id]
    (problem,) = (await verify_log("a", client=client)).problems
    assert problem.segment == lost.number


async def test_a_replica_is_read_at_one_bookie_and_nowhere_else() -> None:
    async with written() as (cluster, client, segments):
        ledger_id = segments[0].ledger_id
        bookie = cluster.bookies[0]
        metadata = await client.describe(ledger_id)
        name = next(each for each in metadata.fragments[0].bookies if each == bookie.name)
        found = await client.read_replica(ledger_id, name, 3, 5)
        assert sorted(found.headers) == [3, 4, 5]
        del bookie.storage.ledgers[ledger_id][4]
        found = await client.read_replica(ledger_id, name, 3, 5, metadata=metadata)
        assert (sorted(found.headers), found.considered) == ([3, 5], 5)
        await client.delete(ledger_id)
        with pytest.raises(NoSuchLedger):
            await client.describe(ledger_id)


async def test_rot_on_the_disk_of_one_bookie_is_found_there(tmp_path: Path) -> None:
    async with local_bookies(directory=tmp_path) as cluster:
        client = await cluster.client()
        async with await Log.open("a", client=client) as log:
            for index in range(ENTRIES):
                await log.append(b"%05d" % index * 100)
        rotten = cluster.bookies[1]
        await rotten.kill()
        (entry_log,) = (tmp_path / rotten.name).glob("entrylog/*.log")
        stored = bytearray(entry_log.read_bytes())
        stored[stored.index(b"0001100011") + 50] ^= 1
        entry_log.write_bytes(stored)
        await rotten.start()
        report = await verify_log("a", client=client)
        (fault,) = report.faults
        assert (fault.bookie, fault.first_entry, fault.entries) == (rotten.name, 11, 1)
        assert fault.fault in {ReplicaFault.UNREADABLE, ReplicaFault.DAMAGED}
        assert (report.entries, report.replicas, report.problems) == (30, 89, ())
