"""How long a bounded read waits: counted while it waits, not while nobody reads."""

import asyncio

import pytest

from dlog.aio import Log
from dlog.aio.read.chunks import ChunkReader
from dlog.aio.store import ManifestNode
from dlog.errors import NotThereYet
from ledger.errors import EntryUnavailable
from ledger.ids import LedgerId
from tests.dlog.fake_ledgers import FakeCluster
from tests.waiting import ended

READ_S = 10.0
"""How long the read that is left alone waits; less than a test may take."""


async def test_a_bounded_read_that_was_left_alone_for_long_outlives_trouble_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        for _ in range(2):
            await log.append(b"a")
    reader = ChunkReader(
        client,
        ManifestNode(client.store, "log"),
        0,
        stop=2,
        patience_s=READ_S,
        read_bytes_max=1,
    )
    assert [chunk.begin for chunk in await reader.read()] == [0]
    loop = asyncio.get_running_loop()
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + 1.5 * READ_S)
    cluster.fail_next("read", EntryUnavailable(LedgerId(1), 1, "by the test"))
    assert [chunk.begin for chunk in await reader.read()] == [1]
    await reader.close()


async def test_a_bounded_read_gives_up_when_its_patience_ends() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("log", client=client) as log:
        await log.append(b"a")
        reader = ChunkReader(
            client,
            ManifestNode(client.store, "log"),
            1,
            stop=2,
            patience_s=0.01,
            wait_s=0.005,
        )
        with pytest.raises(NotThereYet):
            await ended(reader.read(), "it gave up")
        await reader.close()
