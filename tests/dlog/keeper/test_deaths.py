"""The keeper, a task or the whole application dies at each step of its work: every row is in the
log once, rows of a partition in order, and batches in order."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from dlog.aio import Log
from dlog.aio.admin import log_info
from dlog.aio.write.sink import Assignment, Staged, Stager
from dlog.columns import Columns
from dlog.receipts import Receipt
from dlog.recordbatch import encode_batch
from dlog.spark.sink.keeper.held_logs import Batch, ClusterOpener, Holding
from dlog.spark.sink.keeper.ownership import Ownership
from ledger.metastore.memory import MemoryStore
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.dlog.keeper.mortal import Life, MortalLedgers

QUERY = b"q" * 16
STEPS_MAX = 200
TAKEOVER_STEPS = 5
TURNS_MAX = 20_000
_numbers = count()

Rows = tuple[bytes, ...]
SMALL: list[list[Rows]] = [[(b"a0", b"a1")], [(b"b0",)], [(b"c0",), (b"c1", b"c2")]]
LARGE: list[list[Rows]] = [[(b"A0", b"A1"), (b"A2",)], [(b"B0",)]]
MIXED: list[list[Rows]] = [[(b"a0",)], [(b"B0", b"B1"), (b"b2",)], [(b"c0",)], [(b"D0",)]]
"""Batches of a query; a batch is what its tasks wrote, and upper case is staged."""


def payload(rows: Rows) -> bytes:
    return encode_batch(Columns(list(rows)), base_index=0, base_timestamp_ms=1)


@dataclass
class Application:
    """A Spark application, as it goes on over the deaths of its keepers; a new one has *saved*
    nothing, and another *run*."""

    client: FakeLedgers
    run: str
    saved: dict[str, Any]

    def keeper(self, life: Life) -> Holding:
        async def connect() -> Any:
            return MortalLedgers(life, self.client)

        def save(owners: dict[str, Ownership]) -> None:
            if not life.ended.is_set():
                self.saved = {log: each.to_facts() for log, each in owners.items()}

        known = {log: Ownership.from_facts(facts) for log, facts in self.saved.items()}
        opener = ClusterOpener(connect, owner="keeper")
        return Holding(opener, known=known, save=save, clock=lambda: 0.0)

    async def stage(self, life: Life, assignment: Assignment, number: int, rows: Rows) -> Staged:
        client = MortalLedgers(life, self.client)
        stager = await Stager.begin(client, assignment, Receipt(QUERY, number))
        for row in rows:
            await stager.add(payload((row,)))
        return await stager.seal()

    def batch(self, number: int, parts: Sequence[bytes | Staged]) -> Batch:
        return Batch(
            log="a",
            run=self.run,
            receipt=Receipt(QUERY, number),
            parts=parts,
            entry_bytes_max=1 << 20,
            create=True,
            settings=None,
            final=False,
        )


async def unless_it_dies(life: Life, work: Any) -> Any:
    """Return what *work* gives; None if who does it dies first."""
    doing, dying = asyncio.ensure_future(work), asyncio.ensure_future(life.ended.wait())
    await asyncio.wait([doing, dying], return_when=asyncio.FIRST_COMPLETED)
    dying.cancel()
    return doing.result() if doing.done() and not life.ended.is_set() else None


async def bury() -> None:
    """End all that the dead have left."""
    for _ in range(TURNS_MAX):
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if not left:
            return
        for task in left:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
    raise AssertionError("the dead do not rest")


async def write(
    batches: list[list[Rows]], who: str, dies_at: int, *, done: bool
) -> tuple[bool, list[bytes], int]:
    """Run the query while *who* dies at one of its steps; return whether it did, and the log."""
    cluster = FakeCluster()
    store = f"deaths{next(_numbers)}"  # stores of one name are one store
    client = cluster.client(MemoryStore(f"memory://{store}", store))
    doomed = Life(dies_at, done=done)
    application = Application(client, "r1", {})
    life = doomed if who != "task" else Life()
    holding = application.keeper(life)
    number = 0
    while number < len(batches):
        assignment = await unless_it_dies(
            life, holding.claim("a", run=None, create=True, settings=None)
        )
        committed = parts = None
        if assignment is not None:
            parts = await _tasks(
                application,
                doomed if who == "task" else Life(),
                assignment,
                number,
                batches[number],
            )
            committed = await unless_it_dies(life, holding.commit(application.batch(number, parts)))
        if committed is not None:
            number += 1
            continue
        life = Life()
        if who == "application":
            application = Application(client, "r2", {})
        holding = application.keeper(life)
        if parts is not None and who == "keeper":  # the caller asks again
            await holding.commit(application.batch(number, parts))
            number += 1
    async with await Log.tail("a", client=client, stop="end") as reader:
        found = [record.value async for record in reader]
    epoch = (await log_info("a", client=client)).manifest.epoch
    await bury()
    return doomed.ended.is_set(), found, epoch


async def _tasks(
    application: Application, life: Life, assignment: Assignment, number: int, tasks: list[Rows]
) -> list[bytes | Staged]:
    """Run the tasks of a batch; one that dies is run again."""
    parts: list[bytes | Staged] = []
    for rows in tasks:
        if not rows[0].isupper():
            parts.append(payload(rows))
            continue
        staged = await unless_it_dies(life, application.stage(life, assignment, number, rows))
        parts.append(staged or await application.stage(Life(), assignment, number, rows))
    return parts


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("who", ["keeper", "task", "application"])
@pytest.mark.parametrize("batches", [SMALL, LARGE, MIXED], ids=["small", "large", "mixed"])
async def test_who_dies_at_any_step_takes_no_row_along_and_leaves_none_twice(
    batches: list[list[Rows]], who: str, done: bool
) -> None:
    expected = [row for batch in batches for rows in batch for row in rows]
    for dies_at in range(1, STEPS_MAX):
        died, found, epoch = await write(batches, who, dies_at, done=done)
        assert found == expected, f"{who} died at step {dies_at}"
        # A keeper that dies before it has noted that it took the log over takes it over again.
        assert epoch == 1 or who == "application" or dies_at < TAKEOVER_STEPS
        if not died:
            assert who == "task" or dies_at > TAKEOVER_STEPS
            return
    raise AssertionError(f"{who} has more steps than {STEPS_MAX}")
