"""What was in flight to a bookie when it, or its writer, died, and was confirmed by the others."""

from bookie.autorecovery.protocol.repair import RepairOutcome
from bookie.autorecovery.worker import Worker
from ledger.mark import Reason
from tests.bookie.autorecovery.test_worker import AT_ONCE, copies, is_there, mark_of
from tests.ledger.local_bookies import local_bookies
from tests.waiting import eventually, until


async def test_the_writer_that_leaves_a_bookie_marks_what_that_missed() -> None:
    async with local_bookies(4) as cluster:
        client = await cluster.client()
        writer = await client.create()
        missed = writer.metadata.last_fragment.bookies[2]
        storage = cluster.of(missed).storage
        storage.gate.clear()
        await writer.add(b"confirmed by the two others")
        await until(lambda: 0 in storage.ledgers.get(writer.ledger_id, {}))
        del storage.ledgers[writer.ledger_id][0]  # it is not on its disk yet
        await cluster.of(missed).kill()
        await until(lambda: missed not in writer.metadata.last_fragment.bookies)

        async def is_marked() -> bool:
            mark = await mark_of(client, writer.ledger_id)
            return mark is not None and [(each.bookie, each.reason) for each in mark.missing] == [
                (missed, Reason.MISSING)
            ]

        await eventually(is_marked)
        await writer.close()
        await cluster.of(missed).start()
        await eventually(lambda: is_there(client, missed))
        worker = Worker(client, AT_ONCE)
        assert (await worker.run_once()).outcomes == {RepairOutcome.DONE: 1}
        assert worker.pace.entries == 1
        assert (await client.describe(writer.ledger_id)).fragments[0].bookies[2] == missed
        assert await copies(client, writer.ledger_id) == {0: 3}


async def test_what_a_dead_writer_had_in_flight_is_looked_for_after_the_recovery() -> None:
    async with local_bookies(3) as cluster:
        client = await cluster.client()
        writer = await client.create()
        slow = writer.metadata.last_fragment.bookies[1]
        storage = cluster.of(slow).storage
        storage.gate.clear()
        for payload in (b"zero", b"one"):  # the second one says that the first is confirmed
            await writer.add(payload)
        await until(lambda: len(storage.ledgers.get(writer.ledger_id, {})) == 2)
        await writer.abandon()
        storage.ledgers[writer.ledger_id].clear()
        storage.gate.set()
        assert (await client.recover(writer.ledger_id)).last_entry == 1
        assert (await copies(client, writer.ledger_id))[0] == 2

        async def is_marked() -> bool:
            mark = await mark_of(client, writer.ledger_id)
            return mark is not None and slow in mark.bookies

        await eventually(is_marked)
        worker = Worker(client, AT_ONCE)
        assert (await worker.run_once()).outcomes == {RepairOutcome.DONE: 1}
        assert worker.pace.entries >= 1
        assert await copies(client, writer.ledger_id) == {0: 3, 1: 3}
