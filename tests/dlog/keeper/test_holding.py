"""What a keeper does with its logs: real sinks on ledgers in memory, rivals, crashes."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dlog.aio import Log
from dlog.aio.admin import create_log, delete_log, log_info, seal_log
from dlog.aio.write.sink import Committed, Staged, Stager
from dlog.columns import Columns
from dlog.errors import AppendOutcomeUnknown, LogSealed, LostOwnership, NoSuchLog
from dlog.receipts import Receipt
from dlog.recordbatch import encode_batch
from dlog.spark.errors import StagedBefore
from dlog.spark.sink.keeper.held_logs import Batch, ClusterOpener, Holding
from dlog.spark.sink.keeper.ownership import Ownership
from ledger.errors import MetadataDenied
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers

Q1, Q2 = b"1" * 16, b"2" * 16


def payload(*values: bytes) -> bytes:
    return encode_batch(Columns(list(values)), base_index=0, base_timestamp_ms=1)


class Desk:
    """A cluster, and keepers of it that come and go."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.client = self.cluster.client()
        self.saved: dict[str, dict[str, object]] = {}
        self.now = 0.0
        self.holding = self.keeper()

    def keeper(self, **more: Any) -> Holding:
        """Return the next keeper, which knows what the one before has saved."""
        known = {log: Ownership.from_facts(facts) for log, facts in self.saved.items()}
        return Holding(
            ClusterOpener(self._connect, owner="keeper"),
            known=known,
            save=self._save,
            clock=lambda: self.now,
            **more,
        )

    async def _connect(self) -> FakeLedgers:
        return self.client

    def _save(self, owners: dict[str, Ownership]) -> None:
        self.saved = {log: ownership.to_facts() for log, ownership in owners.items()}

    async def claim(self, log: str = "a", run: str | None = None) -> Any:
        return await self.holding.claim(log, run=run, create=True, settings=None)

    async def commit(
        self,
        run: str,
        number: int,
        parts: Sequence[bytes | Staged],
        *,
        log: str = "a",
        origin: bytes = Q1,
        create: bool = True,
        final: bool = False,
    ) -> Committed:
        return await self.holding.commit(
            Batch(
                log=log,
                run=run,
                receipt=Receipt(origin, number),
                parts=parts,
                entry_bytes_max=1 << 20,
                create=create,
                settings=None,
                final=final,
            )
        )

    async def stage(
        self, assignment: Any, number: int, *values: bytes, origin: bytes = Q1
    ) -> Staged:
        stager = await Stager.begin(self.client, assignment, Receipt(origin, number))
        await stager.add(payload(*values))
        return await stager.seal()

    async def rival(self, *values: bytes, log: str = "a") -> None:
        """An application opens the log, appends, and goes on to hold it."""
        self.log = await Log.open(log, client=self.client)
        for value in values:
            await self.log.append(value)

    async def values(self, log: str = "a") -> list[bytes]:
        async with await Log.tail(log, client=self.client, stop="end") as reader:
            return [record.value async for record in reader]

    async def epoch(self, log: str = "a") -> int:
        return (await log_info(log, client=self.client)).manifest.epoch

    async def segments(self, log: str = "a") -> int:
        return len((await log_info(log, client=self.client)).manifest.segments)


async def test_batches_of_one_run_are_entries_of_one_segment() -> None:
    desk = Desk()
    for number in range(200):
        assert (await desk.claim()).epoch == 1
        await desk.commit("r1", number, [payload(b"%d" % number)])
    assert await desk.segments() == 1
    assert await desk.values() == [b"%d" % number for number in range(200)]


async def test_numbered_writes_of_one_name_share_a_segment_over_runs() -> None:
    desk = Desk()
    for number in range(30):
        await desk.claim(run=f"run {number}")
        await desk.commit(f"run {number}", number, [payload(b"%d" % number)], final=True)
    assert await desk.segments() == 1
    assert await desk.values() == [b"%d" % number for number in range(30)]


async def test_a_batch_that_comes_again_is_answered_and_not_appended() -> None:
    desk = Desk()
    first = await desk.commit("r1", 0, [payload(b"x", b"y")])
    again = await desk.commit("r1", 0, [payload(b"x", b"y")])
    assert (first.already, again.already) == (False, True)
    assert await desk.values() == [b"x", b"y"]


async def test_a_killed_keeper_is_followed_by_one_that_goes_on_in_its_epoch() -> None:
    desk = Desk()
    assignment = await desk.claim()
    await desk.commit("r1", 0, [payload(b"x")])
    staged = await desk.stage(assignment, 1, b"y", b"z")
    desk.holding = desk.keeper()
    again = await desk.commit("r1", 0, [payload(b"x")])
    assert again.already
    await desk.commit("r1", 1, [staged])
    assert await desk.epoch() == assignment.epoch == 1
    assert await desk.values() == [b"x", b"y", b"z"]


async def test_the_run_that_an_application_took_the_log_from_fails_and_says_who() -> None:
    desk = Desk()
    await desk.commit("r1", 0, [payload(b"x")])
    await desk.rival(b"mine")
    await desk.claim()
    for _ in range(2):
        with pytest.raises(LostOwnership, match="took it over"):
            await desk.commit("r1", 1, [payload(b"y")])
    await desk.log.append(b"still mine")
    assert await desk.values() == [b"x", b"mine", b"still mine"]


async def test_a_run_that_is_started_later_takes_the_log_again() -> None:
    desk = Desk()
    await desk.commit("r1", 0, [payload(b"x")])
    await desk.rival(b"mine")
    await desk.claim()
    await desk.log.append(b"a claim takes nothing")
    await desk.commit("r2", 1, [payload(b"y")])
    with pytest.raises((LostOwnership, AppendOutcomeUnknown)):
        await desk.log.append(b"too late")
    assert await desk.values() == [b"x", b"mine", b"a claim takes nothing", b"y"]
    with pytest.raises(LostOwnership):
        await desk.commit("r1", 2, [payload(b"z")])


async def test_once_a_run_was_told_of_its_loss_the_next_claim_takes_the_log_again() -> None:
    desk = Desk()
    await desk.commit("r1", 0, [payload(b"x")])
    await desk.rival(b"mine")
    with pytest.raises(LostOwnership):
        await desk.commit("r1", 1, [payload(b"y")])
    await desk.log.append(b"still mine")
    staged = await desk.stage(await desk.claim(), 1, b"y")
    await desk.commit("r2", 1, [staged])
    assert await desk.values() == [b"x", b"mine", b"still mine", b"y"]
    with pytest.raises(LostOwnership):
        await desk.commit("r1", 2, [payload(b"z")])


async def test_a_run_that_lost_the_log_while_the_keeper_was_dead_fails_too() -> None:
    desk = Desk()
    await desk.commit("r1", 0, [payload(b"x")])
    await desk.rival(b"mine")
    desk.holding = desk.keeper()
    await desk.claim()
    with pytest.raises(LostOwnership, match="took it over"):
        await desk.commit("r1", 1, [payload(b"y")])
    desk.holding = desk.keeper()
    with pytest.raises(LostOwnership, match="took it over"):
        await desk.commit("r1", 1, [payload(b"y")])
    await desk.log.append(b"still mine")
    await desk.commit("r2", 1, [payload(b"y")])
    assert await desk.values() == [b"x", b"mine", b"still mine", b"y"]


async def test_a_run_whose_keeper_dies_before_its_commit_takes_nothing_back_by_it() -> None:
    desk = Desk()
    await desk.commit("r1", 0, [payload(b"x")])
    await desk.rival(b"mine")
    desk.holding = desk.keeper()
    with pytest.raises(LostOwnership, match="took it over"):
        await desk.commit("r1", 1, [payload(b"y")])
    await desk.log.append(b"still mine")


async def test_what_was_staged_before_a_takeover_fails_its_batch_once() -> None:
    desk = Desk()
    await desk.commit("r1", 0, [payload(b"x")])
    await desk.rival()
    desk.holding = desk.keeper()  # r1 was stopped, and never told
    staged = await desk.stage(await desk.claim(), 1, b"y")
    with pytest.raises(StagedBefore, match="restart the query"):
        await desk.commit("r2", 1, [staged])
    staged = await desk.stage(await desk.claim(), 1, b"y")
    await desk.commit("r3", 1, [staged])
    assert await desk.values() == [b"x", b"y"]


async def test_the_second_query_of_an_application_takes_the_log_from_the_first() -> None:
    desk = Desk()
    await desk.commit("r1", 7, [payload(b"x")], origin=Q1)
    await desk.claim()
    await desk.commit("r2", 0, [payload(b"y")], origin=Q2)
    with pytest.raises(LostOwnership, match="run r2 of the same Spark application"):
        await desk.commit("r1", 8, [payload(b"z")], origin=Q1)
    # Both numbers are kept: the first query, started again, goes on where it was.
    again = await desk.commit("r3", 7, [payload(b"x")], origin=Q1)
    assert again.already
    await desk.commit("r3", 8, [payload(b"z")], origin=Q1)
    assert await desk.values() == [b"x", b"y", b"z"]


async def test_jobs_after_each_other_lose_nothing_to_an_application_in_between() -> None:
    desk = Desk()
    for number in range(3):
        run = f"job {number}"
        assignment = await desk.claim(run=run)
        origin = b"%016d" % number
        staged = await desk.stage(assignment, 0, b"%d" % number, origin=origin)
        await desk.commit(run, 0, [staged], origin=origin, final=True)
        await desk.rival(b"app")
    assert await desk.values() == [b"0", b"app", b"1", b"app", b"2", b"app"]


async def test_the_end_of_a_job_is_noted() -> None:
    desk = Desk()
    for number in range(3):
        run, origin = f"job {number}", b"%016d" % number
        await desk.claim(run=run)
        await desk.commit(run, 0, [payload(b"x")], origin=origin, final=True)
        assert desk.saved["a"]["run"] is None
        await desk.holding.close()
        await desk.rival(b"app")
        await desk.claim()  # of a query that nobody took anything from
        with pytest.raises((LostOwnership, AppendOutcomeUnknown)):
            await desk.log.append(b"y")


async def test_a_job_loses_the_log_to_an_application_that_opens_it_meanwhile() -> None:
    desk = Desk()
    await desk.claim(run="job")
    await desk.rival(b"mine")
    with pytest.raises(LostOwnership):
        await desk.commit("job", 0, [payload(b"x")], final=True)
    await desk.holding.finish("a", "job")
    assert await desk.values() == [b"mine"]


async def test_an_idle_log_is_closed_and_goes_on_in_its_epoch() -> None:
    desk = Desk()
    await desk.commit("r1", 0, [payload(b"x")])
    desk.now = 899.0
    await desk.holding.close_idle()
    assert [assignment.log for assignment in desk.holding.assignments()] == ["a"]
    desk.now = 900.0
    await desk.holding.close_idle()
    assert desk.holding.assignments() == []
    await desk.commit("r1", 1, [payload(b"y")])
    assert await desk.epoch() == 1
    assert await desk.values() == [b"x", b"y"]


async def test_an_idle_log_that_was_taken_is_not_taken_back() -> None:
    desk = Desk()
    await desk.commit("r1", 0, [payload(b"x")])
    await desk.holding.close()
    await desk.rival(b"mine")
    await desk.claim()
    with pytest.raises(LostOwnership):
        await desk.commit("r1", 1, [payload(b"y")])
    await desk.log.append(b"still mine")


async def test_only_so_many_logs_are_open_and_the_longest_unused_is_closed() -> None:
    desk = Desk()
    desk.holding = desk.keeper(open_max=2)
    for log in ("a", "b", "a", "c"):
        await desk.claim(log)
    assert [assignment.log for assignment in desk.holding.assignments()] == ["a", "c"]
    await desk.commit("r1", 0, [payload(b"x")], log="b")
    assert await desk.epoch("b") == 1


async def test_a_log_that_was_sealed_or_deleted_fails_the_run() -> None:
    desk = Desk()
    await desk.commit("r1", 0, [payload(b"x")])
    await seal_log("a", client=desk.client)
    with pytest.raises(LogSealed):
        await desk.commit("r1", 1, [payload(b"y")])
    await desk.commit("r1", 0, [payload(b"x")], log="b")
    await delete_log("b", client=desk.client)
    with pytest.raises(NoSuchLog):
        await desk.commit("r1", 1, [payload(b"y")], log="b")
    with pytest.raises(LostOwnership, match="there is no log 'b'"):
        await desk.commit("r1", 1, [payload(b"y")], log="b")
    await desk.claim("b")
    await desk.commit("r2", 0, [payload(b"new")], log="b")
    assert await desk.values("b") == [b"new"]


async def test_a_log_that_was_deleted_is_not_made_anew_for_the_run_that_lost_it() -> None:
    desk = Desk()
    await desk.commit("r1", 0, [payload(b"x")])
    await delete_log("a", client=desk.client)
    desk.holding = desk.keeper()
    with pytest.raises(NoSuchLog):  # the next batch of r1, perhaps
        await desk.claim()


async def test_what_a_successor_has_to_know_is_saved_when_it_changes() -> None:
    desk = Desk()
    saved: list[dict[str, Ownership]] = []
    desk.holding = desk.keeper()
    desk.holding._save = saved.append
    for number in range(5):
        await desk.claim()
        await desk.commit("r1", number, [payload(b"x")])
    assert len(saved) == 2  # it was opened, and r1 writes it


async def test_a_log_is_made_only_if_that_is_allowed() -> None:
    desk = Desk()
    with pytest.raises(NoSuchLog):
        await desk.holding.claim("a", run=None, create=False, settings=None)
    with pytest.raises(NoSuchLog):
        await desk.commit("r1", 0, [payload(b"x")], create=False)
    await create_log("a", client=desk.client)
    await desk.commit("r1", 0, [payload(b"x")], create=False)


async def test_trouble_while_a_log_is_opened_changes_nothing() -> None:
    desk = Desk()
    desk.cluster.fail_next("create", MetadataDenied("zk://a", "create", "no"))
    with pytest.raises(MetadataDenied):
        await desk.claim()
    assert (await desk.claim()).epoch == 1


async def test_two_that_commit_the_same_batch_at_once_append_it_once() -> None:
    desk = Desk()
    done = await asyncio.gather(*(desk.commit("r1", 0, [payload(b"x")]) for _ in range(5)))
    assert sorted(each.already for each in done) == [False, True, True, True, True]
    assert await desk.values() == [b"x"]
