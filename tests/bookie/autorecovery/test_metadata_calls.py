"""How often the metadata store is asked for a ledger that moves."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.repair import RepairOutcome
from bookie.autorecovery.worker import Worker
from ledger.client import LedgerClient
from ledger.mark import Reason
from ledger.metastore import open_store
from ledger.metastore.port import MetadataStore
from tests.bookie.autorecovery.test_worker import (
    AT_ONCE,
    closed_ledger,
    kill,
    mark_lost,
    mark_of,
    world,
)

LEDGERS = 12
CALLS = ("get", "exists", "create", "set", "delete", "children", "multi", "sync")


class CountingStore:
    """A metadata store that counts what it is asked."""

    def __init__(self, store: MetadataStore) -> None:
        self.calls: Counter[str] = Counter()
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in CALLS:
            return found

        def counted(*args: object, **options: object) -> Awaitable[object]:
            self.calls[name] += 1
            return cast("Callable[..., Awaitable[object]]", found)(*args, **options)

        return counted


@pytest.mark.slow
async def test_a_ledger_that_moves_costs_six_calls_from_its_mark_to_the_marks_end() -> None:
    async with world(4) as (cluster, client):
        ledgers = [await closed_ledger(client, entries=3) for _ in range(LEDGERS)]
        lost = (await client.describe(ledgers[0])).fragments[0].bookies[0]
        concerned = [
            each for each in ledgers if lost in (await client.describe(each)).fragments[0].bookies
        ]
        store = CountingStore(await open_store(cluster.uri))
        counting = await LedgerClient.connect(cast("MetadataStore", store))
        worker = Worker(counting, AT_ONCE)
        fresh = Worker(counting, AT_ONCE)
        await kill(cluster, client, lost)
        await kill_seen(counting, lost)
        # The nodes above are made by the first mark of all; all bookies are seen.
        await mark_lost(client, concerned[0], lost)
        await worker.run_once()
        store.calls.clear()
        await worker.run_once()
        listing = store.calls.total()
        store.calls.clear()
        for ledger_id in concerned[1:]:
            await mark_lost(counting, ledger_id, lost)
        scan = await fresh.run_once()  # for which all bookies have just come
        moved = len(concerned) - 1
        assert scan.outcomes == {RepairOutcome.DONE: moved}
        spent = store.calls.total()
        # Each ledger is in a bucket of its own here, which is listed once for up to 400 of them.
        # Four calls a second show what is common to all: see `RepairCache`.
        assert spent <= 6 * moved + moved + listing + 4, store.calls
        assert store.calls["sync"] <= 1
        assert await Marks(counting.store).locked() == {}
        await counting.close()
        await store.close()


async def kill_seen(client: LedgerClient, name: str) -> None:
    revision = client.bookies.revision
    while any(found.bookie == name for found in client.bookies.available()):
        await client.bookies.after(revision)
        revision = client.bookies.revision


async def test_who_is_to_be_emptied_is_read_again_for_marks_that_say_more_than_is_known() -> None:
    async with world(4) as (_, client):
        ledger_id = await closed_ledger(client, entries=3)
        worker = Worker(client, AT_ONCE)
        await worker.run_once()  # nobody is to be emptied
        marks = Marks(client.store)
        leaves = (await client.describe(ledger_id)).fragments[0].bookies[0]
        await marks.announce(leaves)
        await mark_lost(client, ledger_id, leaves, Reason.DECOMMISSIONING)
        assert (await worker.run_once()).outcomes == {RepairOutcome.DONE: 1}
        assert leaves not in (await client.describe(ledger_id)).fragments[0].bookies
        assert await mark_of(client, ledger_id) is None
