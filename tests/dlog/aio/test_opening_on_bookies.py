"""What opening a log needs of real bookies: those of its open segments, and no others."""

from collections.abc import Collection

from dlog.aio import Log
from dlog.testing import AsyncCluster, cluster
from ledger import LedgerClient
from tests.patience import PATIENT
from tests.waiting import until

FIRST, SECOND = (0, 1, 2), (3, 4, 5)


async def only(made: AsyncCluster, writable: Collection[int], client: LedgerClient) -> None:
    """Let new ledgers go to the bookies *writable* alone; return when *client* knows it."""
    for index in FIRST + SECOND:
        await made.set_read_only(index, read_only=index not in writable)
    wanted = {made.bookies[index].name for index in writable}
    await until(
        lambda: {each.bookie for each in client.bookies.available() if not each.read_only} == wanted
    )


async def test_a_log_opens_without_the_bookies_of_a_segment_that_is_sealed() -> None:
    async with cluster(6) as made:
        client = await LedgerClient.connect(made.uri, PATIENT)
        await only(made, FIRST, client)
        log = await Log.open("log", client=client)
        await log.append(b"old")
        await only(made, SECOND, client)
        await log.roll()
        await log.append(b"new")
        manifest, _ = await log.writer.node.read()
        assert [segment.sealed is not None for segment in manifest.segments] == [True, False]
        await log.abandon()
        for index in FIRST:
            await made.kill_bookie(index)
        async with await Log.open("log", client=client) as again:
            assert (await again.append(b"newer")).offset == 2
        await client.close()
