"""Repairs that a command does itself: on marks that only it sees, with the locks of all."""

from bookie.autorecovery.marks import Marks
from bookie.autorecovery.move_job import LedgerMove, MoveJob
from bookie.autorecovery.protocol.repair import RepairOutcome
from bookie.autorecovery.repair_io import CopyPace
from ledger.client import LedgerClient
from ledger.ids import BookieId, LedgerId
from ledger.mark import MissingReplica, Reason
from tests.bookie.autorecovery.test_worker import closed_ledger, kill, mark_of, world


def job(client: LedgerClient) -> MoveJob:
    return MoveJob(client, CopyPace(0))


async def first_member(client: LedgerClient, ledger_id: LedgerId) -> BookieId:
    return (await client.describe(ledger_id)).fragments[0].bookies[0]


def lost(bookie: BookieId) -> LedgerMove:
    return LedgerMove((MissingReplica(bookie, Reason.LOST, 1),), into=None)


async def test_a_move_leaves_neither_mark_nor_lock() -> None:
    async with world(bookies=4) as (cluster, client):
        ledger_id = await closed_ledger(client, entries=5)
        gone = await first_member(client, ledger_id)
        await kill(cluster, client, gone)
        done = await job(client).move(ledger_id, lost(gone))
        assert (done.end.outcome, done.mark) == (RepairOutcome.DONE, None)
        assert await first_member(client, ledger_id) != gone
        assert await mark_of(client, ledger_id) is None
        assert await Marks(client.store).locked() == {}


async def test_what_could_not_be_done_is_said_by_a_mark_that_nobody_else_sees() -> None:
    async with world(bookies=3) as (cluster, client):
        ledger_id = await closed_ledger(client, entries=5)
        gone = await first_member(client, ledger_id)
        await kill(cluster, client, gone)
        moving = job(client)
        for _ in range(2):  # it is not put off for long, as a mark of the store would be
            done = await moving.move(ledger_id, lost(gone))
            assert done.end.outcome is RepairOutcome.DEFERRED
            assert done.mark is not None
            assert done.mark.wants_bookie
        assert await mark_of(client, ledger_id) is None
        assert await Marks(client.store).locked() == {}


async def test_a_ledger_that_a_worker_repairs_is_left_to_it() -> None:
    async with world(bookies=4) as (cluster, client):
        ledger_id = await closed_ledger(client, entries=5)
        gone = await first_member(client, ledger_id)
        await kill(cluster, client, gone)
        worker = Marks(client.store)
        assert await worker.lock(ledger_id)
        done = await job(client).move(ledger_id, lost(gone))
        assert done.end.outcome is RepairOutcome.BUSY
        assert await first_member(client, ledger_id) == gone
        assert list(await worker.locked()) == [ledger_id]
