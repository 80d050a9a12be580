"""What the machine of recovery leaves to its driver, with the driver of production: #2614, rule 17.

The stories beside this file have a driver of their own, which a mistake in
`ledger.recovery` would not show in. So that one is watched here at the same bookies: what it
asks, and which bytes it sends.
"""

import asyncio
from collections.abc import Callable
from random import Random

from ledger.cluster import make_namespace
from ledger.entry import access_key
from ledger.environment import Credentials, Environment
from ledger.ids import BookieId, EntryId
from ledger.manager import LedgerStore
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.metastore import open_store
from ledger.quorum import Quorum
from ledger.recovery import recover
from ledger.registry import BookieDirectory
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    InfoAnswer,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)
from tests.simulation.scenarios.post import Kind
from tests.simulation.scenarios.world import World


class Watched:
    """A transport to the bookies of a hand-held world that remembers what went over it."""

    def __init__(self, world: World) -> None:
        self.reads: list[ReadQuery] = []
        self.fences: list[LacQuery] = []
        self.runs: list[AddRun] = []
        self._world = world

    def add(self, bookie: BookieId, run: AddRun, on_done: Callable[[Status], None]) -> None:
        self.runs.append(run)
        answers: list[Status] = []
        self._world.post.do(lambda: self._world.bookies[bookie].add(run, answers.append))
        asyncio.get_running_loop().call_soon(on_done, answers[0])

    def is_watched(self, bookie: BookieId) -> bool:
        return True

    async def read(self, bookie: BookieId, query: ReadQuery) -> ReadAnswer:
        self.reads.append(query)
        answers: list[ReadAnswer] = []
        self._world.post.do(lambda: self._world.bookies[bookie].read(query, answers.append))
        return answers[0]

    async def read_lac(self, bookie: BookieId, query: LacQuery) -> LacAnswer:
        self.fences.append(query)
        answers: list[LacAnswer] = []
        self._world.post.do(lambda: self._world.bookies[bookie].read_lac(query, answers.append))
        return answers[0]

    async def read_held(self, bookie: BookieId, query: HeldQuery) -> HeldAnswer:
        return HeldAnswer(Status.UNREACHABLE)

    async def info(self, bookie: BookieId) -> InfoAnswer | None:
        return None

    async def close(self) -> None:
        """Nothing is open."""


async def _recover(world: World) -> tuple[Watched, LedgerMetadata]:
    """Write "a" to all and "b" to b1 alone; recover as `LedgerClient.recover` does."""
    store = await open_store("memory://recovery-driver")
    ledgers = LedgerStore(store, (await make_namespace(store)).layout)
    metadata = LedgerMetadata(
        quorum=Quorum(3, 3, 2),
        fragments=(Fragment(EntryId(0), tuple(world.bookies)),),
        access_key=access_key(b""),
        creation_token=b"test",
    )
    world.ledger_id = await ledgers.create(metadata)
    writing = world.writer()
    writing.append("a")
    cut = [world.hold(Kind.ADD, at=name) for name in ("b2", "b3")]
    writing.append("b")
    assert writing.acknowledged == [0]
    assert [len(adds) for adds in cut] == [1, 1]

    transport, directory = Watched(world), BookieDirectory(store)
    await directory.start()
    environment = Environment(
        uri=store.uri,
        ledgers=ledgers,
        bookies=directory,
        transport=transport,
        random=Random(0),
        pending_bytes_max=1 << 20,
    )
    credentials = Credentials(world.ledger_id, access_key(b""), None)
    closed = await recover(environment, credentials, metadata, 0)
    await directory.close()
    await store.close()
    return transport, closed


def test_2614_the_driver_fences_with_each_question_that_decides_anything() -> None:
    """Only the look at the last confirmed entry, for its length, decides nothing."""
    world = World(bookies=3)

    transport, closed = asyncio.run(_recover(world))

    assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 1)
    assert len(transport.fences) == 3
    assert all(query.fence for query in transport.fences)
    deciding = [query for query in transport.reads if query.first > 0]
    assert len(deciding) >= 3
    assert all(query.fence for query in deciding)


def test_rule_17_the_driver_writes_back_the_bytes_that_it_found_as_recovery_adds() -> None:
    world = World(bookies=3)

    transport, _ = asyncio.run(_recover(world))

    written_by_the_writer = world.bookie("b1").frame(world.ledger_id, 1)
    assert len(transport.runs) == 3
    for run in transport.runs:
        assert run.recovery
        assert list(run.entries) == [1]
        assert bytes(run.frames) == written_by_the_writer
