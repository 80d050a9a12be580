"""What a query knows of the ends of its logs when it plans a batch: ledgers in memory, no Spark."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dlog.aio import Log
from dlog.spark.log_ends import NewsFile, TailWatch
from dlog.spark.offsets import StreamPosition
from dlog.spark.plan import LogEnd, plan_partitions
from dlog.spark.selection import Selection
from ledger.ids import LedgerId
from tests.dlog.fake_ledgers import FakeCluster
from tests.waiting import PATIENCE_S


class Watched:
    """Logs `a` and `b` with a record each, and the watch of a query."""

    def __init__(self, cluster: FakeCluster, logs: list[Log], watch: TailWatch) -> None:
        self.cluster, self.logs, self.watch = cluster, logs, watch

    async def ends(self, *, after: int = 0, wait_s: float = 0.0) -> list[int]:
        """Return the ends as the query is told them; wait for one that lies after *after*."""
        tails = await self.watch.tails(
            {},
            enough=lambda tails: any(tail.next_offset > after for tail in tails.values()),
            wait_s=wait_s,
        )
        return [tails[log].next_offset for log in sorted(tails)]


@asynccontextmanager
async def watching() -> AsyncIterator[Watched]:
    cluster = FakeCluster()
    client = cluster.client()
    logs = [await Log.open(name, client=client) for name in ("a", "b")]
    for log in logs:
        await log.append(b"0")
    watch = TailWatch(cluster.client(client.store), Selection(("a", "b")))
    yield Watched(cluster, logs, watch)
    cluster.hooks.clear()
    await watch.close()
    for log in logs:
        await log.close()


async def turns() -> None:
    """Let what can go on without time go on."""
    for _ in range(200):
        await asyncio.sleep(0)


async def test_what_was_appended_while_nobody_asked_is_known_to_who_asks() -> None:
    async with watching() as watched:
        assert await watched.ends(after=1, wait_s=0.01) == [
            1,
            1,
        ]  # in vain: both logs are waited for from now on
        await watched.logs[0].append(b"1")
        await turns()  # the news of it have come, and lie there
        await watched.logs[0].append(b"2")
        assert await watched.ends() == [3, 1]
        for row in range(3, 6):
            await watched.logs[0].append(b"%d" % row)
            assert await watched.ends() == [row + 1, 1]


async def test_a_log_that_is_silent_is_not_looked_at_for_the_news_of_another() -> None:
    async with watching() as watched:
        assert await watched.ends() == [1, 1]
        looked: list[object] = []

        async def note(*arguments: object) -> None:
            looked.append(arguments)

        watched.cluster.before("lac", note)
        assert await watched.ends(after=1, wait_s=0.01) == [1, 1]
        await turns()
        looked.clear()
        for row in range(1, 20):
            await watched.logs[0].append(b"%d" % row)
            assert await watched.ends(after=row, wait_s=PATIENCE_S) == [row + 1, 1]
        assert (LedgerId(2),) not in looked


async def test_whoever_waits_for_news_ends_with_those_of_another_source(tmp_path: Path) -> None:
    path = tmp_path / "news"
    path.touch()
    async with watching() as watched:
        busy, quiet = (
            TailWatch(
                watched.cluster.client(watched.logs[0]._ledgers.store),
                Selection((log,)),
                NewsFile(path),
            )
            for log in ("a", "b")
        )

        async def ask(watch: TailWatch, after: int, wait_s: float) -> bool:
            tails = await watch.tails(
                {},
                enough=lambda tails: any(t.next_offset > after for t in tails.values()),
                wait_s=wait_s,
            )
            return any(tail.next_offset > after for tail in tails.values())

        assert not await ask(busy, 1, 0.0)
        assert not await ask(quiet, 1, 0.0)
        async with asyncio.timeout(PATIENCE_S):
            for row in range(2, 6):
                assert not await ask(busy, row - 1, 0.0)
                # Spark waits for the quiet one, while news of the other come ...
                waiting = asyncio.create_task(ask(quiet, 1, 100 * PATIENCE_S))
                await turns()
                assert not waiting.done()
                await watched.logs[0].append(b"%d" % row)
                assert not await waiting
                # ... which has them when it is asked, and the quiet one does not wait then either.
                assert await ask(busy, row - 1, 100 * PATIENCE_S)
                assert not await ask(quiet, 1, 100 * PATIENCE_S)
        await busy.close()
        await quiet.close()


async def test_the_sizes_of_records_are_those_of_their_segments() -> None:
    async with watching() as watched:
        log = watched.logs[0]
        for _ in range(9):
            await log.append(b"small")
        await log.roll()
        for _ in range(20):
            await log.append(bytes(10_000))
        await watched.ends()
        tails = await watched.watch.tails({}, enough=lambda _: True, wait_s=0.0)
        (small, large) = stored_sizes(tails["a"])
        assert (small[0], large[0]) == (10, 30)
        assert small[1] < 200
        assert 10_000 <= large[1] < 10_200  # of a segment that is open
        tasks = plan_partitions(
            {"a": StreamPosition(tails["a"].incarnation, 0)},
            {"a": StreamPosition(tails["a"].incarnation, 30)},
            partitions_max=1,
            task_records_min=1000,
            task_bytes_max=51_000,
            tails=tails,
        )
        assert len(tasks) == 4
        assert (tasks[0][0].first, tasks[-1][0].end) == (0, 30)


def stored_sizes(tail: LogEnd) -> list[tuple[int, float]]:
    assert tail.committed is not None
    return tail.committed.stored_sizes()


def test_a_bell_wakes_the_others_and_the_files_of_dead_drivers_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    one, other = NewsFile.of_driver(), NewsFile.of_driver()
    assert not one.has_changed()
    one.touch()
    assert (one.has_changed(), other.has_changed(), other.has_changed()) == (False, True, False)
    (own,) = tmp_path.glob("*/*.news")
    left = own.with_name("1-0.news")  # process 1 began at another time
    left.touch()
    NewsFile.of_driver()
    assert (own.exists(), left.exists()) == (True, False)


async def test_a_log_that_cannot_be_looked_at_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with watching() as watched:
        for _ in range(2):  # the second time nothing is new, so both logs are waited for
            assert await watched.ends() == [1, 1]
        for log in watched.logs:
            await log.append(b"1")
        await turns()

        async def hang(ledger_id: LedgerId, *_: object) -> None:
            if ledger_id == LedgerId(2):
                await asyncio.Event().wait()

        watched.cluster.before("lac", hang)
        await watched.logs[0].append(b"2")
        monkeypatch.setattr("dlog.spark.log_ends.LOOK_S", 0.01)
        async with asyncio.timeout(PATIENCE_S):
            while (ends := await watched.ends()) != [3, 2]:  # of the second one, what its news said
                assert ends == [2, 2], "a look at the first one took longer than it may"
