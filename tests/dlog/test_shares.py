"""What a reader of several logs holds, when logs are added to it and taken out of it."""

from os import urandom

import pytest

from dlog.aio import Log, ManyReader
from ledger.ids import LedgerId
from tests.dlog.fake_ledgers import FakeCluster
from tests.waiting import settled, until

ENTRY_BYTES = 16 * 1024
ENTRIES = 16
NAMES = [f"log{i}" for i in range(16)]
AHEAD_ENTRIES = 8


class Reads:
    """Logs with records, and which entry of each was asked for last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dlog.aio.read.many.READ_AHEAD_BYTES", AHEAD_ENTRIES * ENTRY_BYTES)
        monkeypatch.setattr("dlog.aio.read.many.SHARE_BYTES_MIN", 1)
        self.cluster = FakeCluster()
        self.client = self.cluster.client()
        self.last: dict[object, int] = {}
        self.cluster.before("read", self._note)

    async def write(self) -> None:
        for name in NAMES:
            async with await Log.open(name, client=self.client) as log:
                for _ in range(ENTRIES):
                    await log.append(urandom(ENTRY_BYTES))

    async def tail(self, *names: str) -> ManyReader:
        return await Log.tail_many(names, client=self.client)

    async def ahead(self) -> int:
        """Return how many entries were read, once nothing more is."""
        await settled()
        return sum(self.last.values())

    async def _note(self, ledger_id: object, first: int) -> None:
        self.last[ledger_id] = first


async def test_logs_that_are_added_share_the_read_ahead_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = Reads(monkeypatch)
    await reads.write()
    many = await reads.tail(NAMES[0])
    for name in NAMES[1:]:
        await many.add(name)
    # The first had all of it for a moment, the next ones a half, a third, ..., and an entry each.
    assert await reads.ahead() <= 4 * AHEAD_ENTRIES + len(NAMES)
    await many.close()


async def test_a_log_that_is_left_has_the_shares_of_those_that_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = Reads(monkeypatch)
    await reads.write()
    many = await reads.tail(*NAMES)
    assert await reads.ahead() == 0, "each has its first entry, which is more than its share"
    for name in NAMES[1:]:
        await many.remove(name)
    await until(lambda: reads.last[LedgerId(1)] > 0, "it reads on")
    await many.close()
