"""What a sink commits, on real bookies: read, verified, truncated, and outliving its writer."""

from typing import Final

import dlog.testing
from dlog.aio import Log
from dlog.aio.admin import truncate_log, verify_log
from dlog.aio.maintain.janitor import Janitor
from dlog.aio.write.sink import Sink, Staged, Stager
from dlog.receipts import Receipt
from dlog.settings import LogSettings
from ledger.client import LedgerClient
from tests.dlog.aio.test_sink import QUERY, batch

ROWS: Final = 500


async def staged(client: LedgerClient, sink: Sink, number: int, name: bytes) -> Staged:
    stager = await Stager.begin(client, sink.assignment, Receipt(QUERY, number))
    for entry in range(5):
        await stager.add(batch(*(b"%s %d.%d" % (name, entry, row) for row in range(ROWS))))
    return await stager.seal()


async def test_units_of_both_kinds_are_read_and_verified_and_outlive_a_crash() -> None:
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri)
        settings = LogSettings(roll_records=50)
        sink = await Sink.open("log", client=client, settings=settings)
        for number in range(0, 30, 3):
            small: list[bytes] = [batch(*(b"small %d.%d" % (number, row) for row in range(20)))]
            await sink.commit(Receipt(QUERY, number), small)
            await staged(client, sink, number + 1, b"zombie")
            large = await staged(client, sink, number + 1, b"large %d" % number)
            parts: list[bytes | Staged] = [large, *small]
            await sink.commit(Receipt(QUERY, number + 1), parts)
            await sink.commit(Receipt(QUERY, number + 2), small)
        await sink.abandon()
        async with await Sink.open("log", client=client) as after:
            assert after.last_unit(QUERY) == 29
            assert (await after.commit(Receipt(QUERY, 29), [batch(b"again")])).already
            await after.commit(Receipt(QUERY, 30), [batch(b"last")])
        assert len((await Janitor(client).run_once()).orphans) >= 10  # the zombies'
        report = await verify_log("log", client=client)
        assert report.healthy, report
        async with await Log.tail("log", client=client, follow=False) as reader:
            found = [record async for record in reader]
        assert [record.offset for record in found] == list(range(len(found)))
        assert len(found) == 10 * (20 + 5 * ROWS + 20 + 20) + 1
        assert not [record for record in found if record.value.startswith(b"zombie")]
        await truncate_log("log", before=5000, client=client)
        async with await Log.tail("log", client=client, follow=False) as reader:
            assert [record.value async for record in reader] == [r.value for r in found[5000:]]
        await client.close()
