"""Where the copies of a ledger are, who of those bookies is there, and what they lack."""

import pytest

import dlog.testing
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.replica_scan import BookieState, locate, states_of
from bookie.tools.format import retire
from ledger.client import LedgerClient
from ledger.ids import BookieId, LedgerId
from ledger.mark import MissingReplica, Reason
from ledger.registry import COOKIES
from tests.bookie.autorecovery.test_checking import LATE, ledger_with_a_hole
from tests.bookie.autorecovery.test_worker import closed_ledger, kill, mark_lost, world
from tests.waiting import eventually


async def state_of_first(client: LedgerClient, ledger_id: LedgerId) -> BookieState:
    located = await locate(client, ledger_id, await states_of(client))
    return located.places[0].holders[0].state


async def test_what_a_member_says_that_it_lacks_is_named() -> None:
    async with dlog.testing.cluster(bookies=3) as cluster:
        client = await LedgerClient.connect(cluster.uri, LATE)
        ledger_id, absent = await ledger_with_a_hole(cluster, client)
        located = await locate(client, ledger_id, await states_of(client))
        assert not located.is_whole
        missing = {h.bookie: h.missing for place in located.places for h in place.holders}
        assert missing.pop(BookieId(absent)) == ((3, 6),)
        assert set(missing.values()) == {()}
        await client.close()


async def test_a_member_that_is_away_was_retired_or_forgotten_is_shown_as_that() -> None:
    async with world(bookies=4) as (cluster, client):
        ledger_id = await closed_ledger(client)
        first = (await client.describe(ledger_id)).fragments[0].bookies[0]

        async def is_whole() -> bool:
            return (await locate(client, ledger_id, await states_of(client))).is_whole

        await eventually(is_whole, "the slowest bookie has the last entries too")
        assert await state_of_first(client, ledger_id) is BookieState.WRITABLE
        await Marks(client.store).announce(first)
        assert await state_of_first(client, ledger_id) is BookieState.LEAVING
        await Marks(client.store).withdraw(first)

        index = [bookie.name for bookie in cluster.bookies].index(first)
        await cluster.set_read_only(index)

        async def is_read_only() -> bool:
            return await state_of_first(client, ledger_id) is BookieState.READ_ONLY

        await eventually(is_read_only, "the client sees that it is read-only")
        await kill(cluster, client, first)
        located = await locate(client, ledger_id, await states_of(client))
        assert not located.is_whole
        assert located.places[0].holders[0].state is BookieState.AWAY
        assert located.places[0].holders[0].unsure == ((0, 49),)
        await retire(client.store, first, None)
        assert await state_of_first(client, ledger_id) is BookieState.RETIRED
        await client.store.delete(f"{COOKIES}/{first}")
        assert await state_of_first(client, ledger_id) is BookieState.UNKNOWN


@pytest.mark.parametrize("marked", [True, False])
async def test_what_repair_knows_of_the_ledger_is_shown(*, marked: bool) -> None:
    async with world(bookies=3) as (_, client):
        ledger_id = await closed_ledger(client, entries=1)
        if marked:
            await mark_lost(client, ledger_id, "bookie-9")
        located = await locate(client, ledger_id, await states_of(client))
        missing = None if located.mark is None else located.mark.missing
        assert missing == (
            (MissingReplica(BookieId("bookie-9"), Reason.LOST, 1),) if marked else None
        )


async def test_of_what_is_written_nobody_is_asked() -> None:
    async with world(bookies=3) as (_, client):
        writer = await client.create()
        await writer.add(b"x")
        located = await locate(client, writer.ledger_id, await states_of(client))
        [place] = located.places
        assert place.last is None
        assert located.is_whole
        await writer.close()
