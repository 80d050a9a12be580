"""The commit of a unit is stopped at each of its actions, in every way, while others come in."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Literal

import pytest

from dlog.aio import Log
from dlog.aio.maintain.janitor import Janitor
from dlog.aio.write.sink import Sink, Staged, Stager
from dlog.errors import LostOwnership
from dlog.protocol import unit_commit
from dlog.receipts import Receipt
from ledger import procedures
from ledger.errors import MetadataUnavailable
from ledger.metastore.memory import MemoryStore
from ledger.protocol.procedure import Action
from tests.dlog.aio.test_sink import QUERY, batch, manifest_of, values_of
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers

Fate = Literal["killed before", "killed after", "lost request", "lost reply"]
FATES: Final[list[Fate]] = ["killed before", "killed after", "lost request", "lost reply"]
Between = Callable[[FakeLedgers], Awaitable[None]]

pytestmark = pytest.mark.parametrize("size", ["small", "large", "both"])


async def nobody(client: FakeLedgers) -> None:
    """Nobody comes in between."""


async def application(client: FakeLedgers) -> None:
    log = await Log.open("log", client=client)
    await log.append(b"other")
    await log.abandon()


async def another_attempt(client: FakeLedgers) -> None:
    """The query was started again while this one sleeps, and commits the same unit."""
    sink = await Sink.open("log", client=client)
    await sink.commit(Receipt(QUERY, 1), [batch(b"b", b"c")])
    await sink.abandon()


async def janitor(client: FakeLedgers) -> None:
    await Janitor(client).run_once()


@dataclass
class Stop:
    """Lets the action *number* of a commit end as *fate* says, after *between* was there."""

    number: int
    fate: Fate
    between: Between
    client: FakeLedgers
    reached: bool = False
    killed: asyncio.Event = field(default_factory=asyncio.Event)
    numbers: "count[int]" = field(default_factory=count)

    async def __call__(self, action: Action[Any], perform: procedures.Perform) -> object:
        if self.reached or next(self.numbers) != self.number:
            return await perform(action)
        self.reached = True
        if self.fate in {"killed after", "lost reply"}:
            await perform(action)
        await self.between(self.client)
        if self.fate in {"killed before", "killed after"}:
            self.killed.set()
            await asyncio.Event().wait()
        raise MetadataUnavailable("memory://fake", "this", 0.1)


async def parts_of(client: FakeLedgers, sink: Sink, size: str) -> list[bytes | Staged]:
    """Return a unit of the records b and c."""
    if size == "small":
        return [batch(b"b"), batch(b"c")]
    stager = await Stager.begin(client, sink.assignment, Receipt(QUERY, 1))
    await stager.add(batch(b"b"))
    if size == "both":
        return [await stager.seal(), batch(b"c")]
    await stager.add(batch(b"c"))
    return [await stager.seal()]


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("between", [nobody, application, another_attempt, janitor])
@pytest.mark.parametrize("opened", [True, False])
async def test_a_unit_is_in_the_log_once_wherever_its_commit_was_stopped(
    monkeypatch: pytest.MonkeyPatch, size: str, between: Between, fate: Fate, *, opened: bool
) -> None:
    """*opened*: whether a segment is open when the commit begins."""
    monkeypatch.setattr(unit_commit, "BACKOFF_S", 0.0)
    monkeypatch.setattr(unit_commit, "BACKOFF_S_MAX", 0.0)
    undisturbed = procedures.answer_to
    for number in count():
        store = MemoryStore(f"memory://{number}", f"{number}")
        client = FakeCluster().client(store)
        sink = await Sink.open("log", client=client)
        await sink.commit(Receipt(QUERY, 0), [batch(b"a")], entry_bytes_max=1000 if opened else 0)
        parts = await parts_of(client, sink, size)
        stop = Stop(number, fate, between, client)
        monkeypatch.setattr(procedures, "answer_to", stop)
        commit = asyncio.ensure_future(sink.commit(Receipt(QUERY, 1), parts))
        killing = asyncio.ensure_future(stop.killed.wait())
        await asyncio.wait([commit, killing], return_when=asyncio.FIRST_COMPLETED)
        monkeypatch.setattr(procedures, "answer_to", undisturbed)
        killing.cancel()
        if not stop.reached:
            break
        killed = not commit.done()
        if killed:
            commit.cancel()
            await asyncio.wait([commit])
        assert killed == fate.startswith("killed")
        error = None if killed else commit.exception()
        lost = isinstance(error, LostOwnership)
        assert lost or error is None, error
        assert not lost or between in {application, another_attempt}
        await sink.abandon()
        async with await Sink.open("log", client=client) as again:
            redone = await again.commit(Receipt(QUERY, 1), await parts_of(client, again, size))
            assert redone.already or lost or killed
            await again.commit(Receipt(QUERY, 2), [batch(b"d")])
        found = await values_of(client)
        assert [value for value in found if value != b"other"] == [b"a", b"b", b"c", b"d"], number
        assert found.index(b"c") == found.index(b"b") + 1, "a unit is whole"
        await Janitor(client).run_once()
        listed = {segment.ledger_id for segment in (await manifest_of(client)).segments}
        assert set(client.cluster.ledgers) == listed, "no ledger is left that no log needs"
    assert number >= (1 if size == "small" and opened else 3)
