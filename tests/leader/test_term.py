"""What a term believes by its own clock, and what it takes for a proof."""

import asyncio

from leader import Term
from leader.election import Candidacy, leaders_path, node_prefix
from ledger.metastore import open_store
from ledger.metastore.memory import MemoryStore
from tests.leader.stores import TroubledStore
from tests.waiting import until

LOG = "flights"
LEASE_S = 1000.0
"""By the clock of the test; no test takes so long."""


class SlowStore(TroubledStore):
    """Takes its time by a clock of its own."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.now_s = 0.0
        self.sync_s = 0.0
        self.syncs_max = 1000
        """It answers no more of them."""
        self.tells_of_nodes = True

    async def sync(self, path: str = "/") -> None:
        await super().sync(path)
        self.now_s += self.sync_s
        if self.calls["sync"] > self.syncs_max:
            await asyncio.Event().wait()

    async def exists(self, path: str) -> int | None:
        if not self.tells_of_nodes:
            await asyncio.Event().wait()
        return await super().exists(path)


async def led(*, sync_s: float = 0.0) -> tuple[SlowStore, Term, str]:
    """Return the term of a leader that was proven at 0 s and asked once more then, and its node."""
    memory = await open_store("memory://election")
    assert isinstance(memory, MemoryStore)
    store = SlowStore(memory)
    store.sync_s = sync_s
    path = await stood(store)
    name = path.rpartition("/")[2]
    own = Candidacy.parse(name)
    assert own is not None
    term = Term(
        store,
        store.session,
        log=LOG,
        candidate="a",
        candidacy=own,
        proven_at=0.0,
        lease_s=LEASE_S,
        clock=lambda: store.now_s,
    )
    await until(lambda: store.calls["exists"] == 1, "the term asks for its node")
    return store, term, path


async def stood(store: SlowStore) -> str:
    """Return a new node of the candidate."""
    for path in ("/leaders", leaders_path(LOG)):
        if await store.inner.exists(path) is None:
            await store.inner.create(path)
    prefix = f"{leaders_path(LOG)}/{node_prefix('token')}"
    return await store.inner.create(prefix, ephemeral=True, sequential=True)


async def test_a_leader_whose_lease_is_over_knows_it_before_any_task_of_it_has_run() -> None:
    """So does one that was paused, at the first thing that it does."""
    store, term, _ = await led()
    store.now_s = LEASE_S
    assert term.is_current()
    store.now_s = LEASE_S + 0.5
    assert not term.is_current()
    assert not term.lost.is_set(), "nothing but the clock has told it"
    assert not await term.verify(), "the store still has its node, which is no proof any more"
    await term.resign()


async def test_seeing_its_node_proves_that_it_led_when_it_asked_and_not_when_it_was_answered() -> (
    None
):
    store, term, path = await led(sync_s=200.0)
    store.syncs_max = 1
    await store.inner.set(path, b"changed")
    await until(lambda: store.calls["sync"] == 2, "it has its answer, and asks again")
    store.now_s = LEASE_S
    assert term.is_current()
    store.now_s = LEASE_S + 0.5
    assert not term.is_current()
    await term.resign()


async def test_what_is_verified_held_when_it_was_asked_for_and_not_when_it_was_answered() -> None:
    store, term, _ = await led()
    store.now_s, store.sync_s = 100.0, 200.0
    assert await term.verify()
    store.now_s = 100.0 + LEASE_S
    assert term.is_current()
    store.now_s = 100.0 + LEASE_S + 0.5
    assert not term.is_current()
    await term.resign()


async def test_a_create_of_ours_that_landed_late_does_not_stand_for_our_node_that_is_gone() -> None:
    """Its epoch is another one."""
    store, term, path = await led()
    store.tells_of_nodes = False
    await store.inner.delete(path)
    await stood(store)
    assert not await term.verify()
    assert term.lost_reason == "node_gone"
    await term.resign()
