"""What a verification finds is handed to repair, which looks for itself."""

import pytest

from bookie.autorecovery.protocol.repair import RepairOutcome
from bookie.autorecovery.status import underreplicated
from bookie.autorecovery.worker import Worker
from dlog.aio.admin import verify_log
from ledger.client import LedgerClient
from ledger.entry import ReplicaFault, encode_frame, parse_header
from ledger.mark import Reason
from tests.bookie.autorecovery.test_worker import AT_ONCE
from tests.dlog.aio.test_verifying import written


async def marked(client: LedgerClient) -> dict[int, set[tuple[str, Reason]]]:
    return {
        each.ledger_id: {(replica.bookie, replica.reason) for replica in each.mark.missing}
        for each in await underreplicated(client.store)
    }


@pytest.mark.slow
async def test_missing_replicas_that_were_found_are_made_good() -> None:
    async with written() as (cluster, client, segments):
        first = segments[0].ledger_id
        for entry_id in range(10, 20):
            del cluster.bookies[1].storage.ledgers[first][entry_id]
        assert (await verify_log("a", client=client)).marked == 0
        assert await marked(client) == {}
        assert (await verify_log("a", client=client, repair=True)).marked == 1
        assert await marked(client) == {first: {(cluster.bookies[1].name, Reason.MISSING)}}
        worker = Worker(client, AT_ONCE)
        assert (await worker.run_once()).outcomes == {RepairOutcome.DONE: 1}
        assert worker.pace.entries == 10
        assert (await verify_log("a", client=client)).healthy


async def test_a_damaged_replica_is_marked_so_that_all_is_read() -> None:
    async with written() as (cluster, client, segments):
        first = segments[0].ledger_id
        frames = cluster.bookies[2].storage.ledgers[first]
        frames[7] = frames[7][:-1] + b"?"
        await verify_log("a", client=client, repair=True)
        assert await marked(client) == {first: {(cluster.bookies[2].name, Reason.DAMAGED)}}


@pytest.mark.slow
async def test_who_does_not_answer_or_differs_is_not_handed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.aio.maintain.verify.ASK_AGAIN_S", 0.05)
    async with written() as (cluster, client, segments):
        first = segments[0].ledger_id
        frames = cluster.bookies[0].storage.ledgers[first]
        header = parse_header(frames[5])
        frames[5] = encode_frame(
            ledger_id=first,
            entry_id=5,
            last_add_confirmed=header.last_add_confirmed,
            length=header.length,
            payload=bytes(header.payload_bytes),
        )
        await cluster.bookies[2].kill()
        report = await verify_log("a", client=client, repair=True)
        faults = {fault.fault for fault in report.faults}
        assert faults == {ReplicaFault.DIFFERENT, ReplicaFault.UNREACHABLE}
        assert report.marked == 0
        assert await marked(client) == {}


@pytest.mark.slow
async def test_a_suspicion_that_is_none_is_unmarked_without_a_copy() -> None:
    async with written() as (cluster, client, segments):
        first = segments[0].ledger_id
        frames = cluster.bookies[1].storage.ledgers[first]
        kept = frames.pop(3)
        await verify_log("a", client=client, repair=True)
        frames[3] = kept
        worker = Worker(client, AT_ONCE)
        assert (await worker.run_once()).outcomes == {RepairOutcome.DONE: 1}
        assert worker.pace.entries == 0
