"""Old bugs of the writer's handle, as stories: #3806, #1712/#1889, BK-795.

The stories beside this file drive the writer's machine; here it is driven by production's
`LedgerWriter`, on metadata in memory and bookies that answer at once or on command.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from ledger import writer as ledger_writer
from ledger.cluster import make_namespace
from ledger.entry import ENTRY_BYTES_MAX, access_key, parse_header
from ledger.environment import Credentials, Environment
from ledger.errors import EntryTooLarge, HandleClosed, LedgerFenced, LogError
from ledger.ids import BookieId, EntryId
from ledger.manager import LedgerStore
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.metastore import open_store
from ledger.quorum import Quorum
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
from ledger.writer import LedgerWriter
from tests.ledger.serving import until
from tests.waiting import settled

DEADLINE_S = 10.0
B1, B2, B3 = (BookieId(name) for name in ("b1", "b2", "b3"))


class Bookies:
    """A transport whose answers are there before `add` returns, or held until `answer`."""

    def __init__(self) -> None:
        self.taken: dict[BookieId, list[int]] = {}
        self.told: dict[BookieId, list[int]] = {}
        """Which LAC came by itself."""
        self.unwatched: set[BookieId] = set()
        """At which nobody waits for what is confirmed."""
        self.holds = False
        self.holds_only: BookieId | None = None
        self._held: list[Callable[[Status], None]] = []

    def add(self, bookie: BookieId, run: AddRun, on_done: Callable[[Status], None]) -> None:
        if run.explicit_lac:
            self.told.setdefault(bookie, []).append(parse_header(run.frames).last_add_confirmed)
        else:
            self.taken.setdefault(bookie, []).extend(run.entries)
        if self.holds or (bookie == self.holds_only and not run.explicit_lac):
            self._held.append(on_done)
        else:
            on_done(Status.OK)

    def answer(self, status: Status) -> None:
        """Answer all that was held, and hold nothing more."""
        self.holds = False
        held, self._held = self._held, []
        for on_done in held:
            on_done(status)

    async def answer_once_they_have(self, entries: list[int]) -> None:
        await until(lambda: self.taken == dict.fromkeys((B1, B2, B3), entries))
        self.answer(Status.OK)

    def is_watched(self, bookie: BookieId) -> bool:
        return bookie not in self.unwatched

    async def read(self, bookie: BookieId, query: ReadQuery) -> ReadAnswer:
        return ReadAnswer(Status.UNREACHABLE)

    async def read_lac(self, bookie: BookieId, query: LacQuery) -> LacAnswer:
        return LacAnswer(Status.UNREACHABLE)

    async def read_held(self, bookie: BookieId, query: HeldQuery) -> HeldAnswer:
        return HeldAnswer(Status.UNREACHABLE)

    async def info(self, bookie: BookieId) -> InfoAnswer | None:
        return None

    async def close(self) -> None:
        """Nothing is open."""


@asynccontextmanager
async def handle() -> AsyncIterator[tuple[LedgerWriter, Bookies]]:
    """Yield the handle of a new ledger on b1, b2 and b3, and those bookies."""
    store = await open_store("memory://handle")
    ledgers = LedgerStore(store, (await make_namespace(store)).layout)
    metadata = LedgerMetadata(
        quorum=Quorum(3, 3, 2),
        fragments=(Fragment(EntryId(0), (B1, B2, B3)),),
        access_key=access_key(b""),
        creation_token=b"test",
    )
    ledger_id = await ledgers.create(metadata)
    bookies = Bookies()
    environment = Environment(
        uri=store.uri,
        ledgers=ledgers,
        bookies=BookieDirectory(store),
        transport=bookies,
        random=Random(0),
        pending_bytes_max=1 << 20,
    )
    credentials = Credentials(ledger_id, access_key(b""), None)
    async with asyncio.timeout(DEADLINE_S):
        yield LedgerWriter(environment, credentials, metadata, 0), bookies
    await store.close()


def test_3806_an_answer_that_overtakes_the_sending_takes_the_entry_from_nobody() -> None:
    """b1 and b2 confirm the entry, which lets go of its frame, before b3 was sent to."""

    async def scenario() -> None:
        async with handle() as (writing, bookies):
            adds = [writing.add(b"a"), writing.add(b"b")]
            assert await asyncio.gather(*adds) == [0, 1]
            assert (await writing.close()).last_entry == 1
            assert bookies.taken == {B1: [0, 1], B2: [0, 1], B3: [0, 1]}

    asyncio.run(scenario())


def test_no_lac_travels_by_itself_while_each_entry_follows_the_confirmation_of_the_last() -> None:
    """The next entry carries it; the caller would only wait for three messages more."""

    async def scenario() -> None:
        async with handle() as (writing, bookies):
            for _ in range(10):
                await asyncio.ensure_future(_added(writing))  # a turn later than its caller
            assert bookies.told == {}

            await until(lambda: bookies.told == {B1: [9], B2: [9], B3: [9]})
            await writing.close()

    asyncio.run(scenario())


def amid_a_run(writing: LedgerWriter) -> None:
    """The next entry follows another one closely, however slow the machine is."""
    writing._idle_at = math.inf


def test_the_lac_of_an_entry_that_follows_no_other_closely_goes_at_once_to_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process may end without closing, die, or keep its loop from turning."""

    async def scenario() -> None:
        monkeypatch.setattr(ledger_writer, "PUBLISH_QUIET_S", 3600.0)
        async with handle() as (writing, bookies):
            bookies.unwatched = {B1, B2, B3}
            await _added(writing)
            await until(lambda: bookies.told == {B1: [0], B2: [0], B3: [0]})
            await _added(writing)
            await until(lambda: writing._put_off is not None)
            writing._idle_at -= 3600.0  # as if it was long ago
            await _added(writing)
            await until(lambda: bookies.told == {B1: [0, 2], B2: [0, 2], B3: [0, 2]})
            await writing.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", [0, 100], ids=["about to be published", "put off"])
def test_a_writer_that_gives_up_publishes_what_is_confirmed(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever reads to the end lacks its last entry until somebody takes over."""

    async def scenario() -> None:
        monkeypatch.setattr(ledger_writer, "PUBLISH_QUIET_S", 3600.0)
        async with handle() as (writing, bookies):
            bookies.unwatched = {B1, B3}
            amid_a_run(writing)
            await _added(writing)
            for _ in range(turns):
                await asyncio.sleep(0)
            assert bookies.told == ({B2: [0]} if turns else {})
            await writing.abandon()
            await settled()
            assert bookies.told == {B1: [0], B2: [0], B3: [0]}

    asyncio.run(scenario())


def test_a_writer_that_gives_up_publishes_nothing_that_is_not_its_last_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(ledger_writer, "PUBLISH_QUIET_S", 3600.0)
        async with handle() as (writing, bookies):
            bookies.unwatched = {B1, B2, B3}
            amid_a_run(writing)
            await _added(writing)
            await until(lambda: writing._put_off is not None)
            bookies.holds = True
            last = writing.add(b"b")
            await settled()
            await writing.abandon()
            assert bookies.told == {}
            with pytest.raises(HandleClosed):
                await last

    asyncio.run(scenario())


def test_the_lac_goes_at_once_to_bookies_at_which_readers_wait_and_later_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(quiet_s: float, told: dict[BookieId, list[int]]) -> None:
        monkeypatch.setattr(ledger_writer, "PUBLISH_QUIET_S", quiet_s)
        async with handle() as (writing, bookies):
            amid_a_run(writing)
            bookies.unwatched = {B1, B3}
            await _added(writing)
            await until(lambda: bookies.told == told)
            if writing._put_off is not None:
                writing._publish_late()  # too early
            assert bookies.told == told
            await writing.close()

    asyncio.run(scenario(3600.0, {B2: [0]}))
    asyncio.run(scenario(0.0, {B1: [0], B2: [0], B3: [0]}))


def test_a_quiet_moment_begins_again_with_each_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with handle() as (writing, bookies):
            monkeypatch.setattr(ledger_writer, "PUBLISH_QUIET_S", 3600.0)
            bookies.unwatched = {B1, B2, B3}
            amid_a_run(writing)
            await _added(writing)
            await until(lambda: writing._put_off is not None)
            bookies.holds = True
            last = writing.add(b"b")
            await settled()
            writing._publish_late()  # as if its time had come
            assert (bookies.told, writing._put_off) == ({}, None), "that entry carries it"
            bookies.answer(Status.OK)
            assert await last == 1
            await until(lambda: writing._put_off is not None)
            effect, later, _ = writing._put_off or (None, [], 0.0)
            assert (effect and effect.last_add_confirmed, later) == (1, [B1, B2, B3])
            await writing.close()
            assert writing._put_off is None

    asyncio.run(scenario())


def test_a_reader_that_has_come_gets_the_lac_with_the_answer_that_tells_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last bookie answers when the entry is confirmed and the LAC was put off."""

    async def scenario() -> None:
        async with handle() as (writing, bookies):
            monkeypatch.setattr(ledger_writer, "PUBLISH_QUIET_S", 3600.0)
            bookies.unwatched = {B1, B2, B3}
            bookies.holds_only = B3
            amid_a_run(writing)
            await _added(writing)
            await until(lambda: writing._put_off is not None)
            bookies.unwatched = {B1, B2}
            bookies.answer(Status.OK)
            assert bookies.told == {B3: [0]}
            await writing.close()

    asyncio.run(scenario())


def test_whoever_is_told_of_a_confirmation_hears_it_at_once_and_may_add_the_next_entry() -> None:
    """Not in the middle of a step: the entry would be given an id in the next one."""

    async def scenario() -> None:
        async with handle() as (writing, bookies):
            told: list[object] = []

            def first(outcome: object) -> None:
                told.append(outcome)
                writing.add_all([(b"b", told.append), (b"c", told.append)])

            bookies.holds = True
            writing.add_all([(b"a", first)])
            assert bookies.taken == {B1: [0], B2: [0], B3: [0]}, "it was sent at once"
            bookies.answer(Status.OK)
            assert told == [0, 1, 2]
            assert bookies.taken == {B1: [0, 1, 2], B2: [0, 1, 2], B3: [0, 1, 2]}
            await writing.close()

    asyncio.run(scenario())


def test_entries_that_are_added_together_are_all_refused_or_none() -> None:
    async def scenario() -> None:
        async with handle() as (writing, bookies):
            with pytest.raises(EntryTooLarge):
                writing.add_all([(b"a", _never), (bytes(ENTRY_BYTES_MAX + 1), _never)])
            assert (await writing.close()).last_entry == -1
            with pytest.raises(HandleClosed):
                writing.add_all([(b"a", _never)])
            assert bookies.taken == {}

    asyncio.run(scenario())


def _never(_: object) -> None:
    raise AssertionError("nothing was added")


async def _added(writing: LedgerWriter) -> None:
    await writing.add(b"a")


def test_an_entry_that_is_not_confirmed_yet_carries_the_lac_of_before() -> None:
    async def scenario() -> None:
        async with handle() as (writing, bookies):
            await writing.add(b"a")
            bookies.holds = True
            add = writing.add(b"b")
            await until(lambda: bookies.taken == {B1: [0, 1], B2: [0, 1], B3: [0, 1]})
            await settled()
            assert bookies.told == {}

            bookies.answer(Status.OK)

            await add
            await until(lambda: bookies.told == {B1: [1], B2: [1], B3: [1]})
            await writing.close()

    asyncio.run(scenario())


def test_1889_a_close_in_the_same_breath_as_an_add_waits_for_it() -> None:
    """The first add is on its way to the bookies, the second was not even sent."""

    async def scenario() -> None:
        async with handle() as (writing, bookies):
            bookies.holds = True
            adds = [writing.add(b"a")]
            await asyncio.sleep(0)
            assert bookies.taken == {B1: [0], B2: [0], B3: [0]}
            answering = asyncio.ensure_future(bookies.answer_once_they_have([0, 1]))
            adds.append(writing.add(b"b"))

            closed = await writing.close()

            await answering
            assert (closed.state, closed.last_entry, closed.length) == (LedgerState.CLOSED, 1, 2)
            assert [add.result() for add in adds] == [0, 1]

    asyncio.run(scenario())


def test_1712_closes_in_any_number_end_alike_and_take_nothing_from_each_other() -> None:
    async def scenario() -> None:
        async with handle() as (writing, bookies):
            bookies.holds = True
            writing.add(b"a")
            closes = [asyncio.ensure_future(writing.close()) for _ in range(4)]
            await asyncio.sleep(0)
            closes.pop(0).cancel()  # it was the first that asked

            bookies.answer(Status.OK)

            closed = await asyncio.gather(*closes)
            assert [metadata.last_entry for metadata in closed] == [0, 0, 0]
            assert await writing.close() == closed[0]
            with pytest.raises(HandleClosed):
                writing.add(b"too late")

    asyncio.run(scenario())


def test_bk_795_adds_and_closes_all_end_when_the_writer_was_fenced() -> None:
    async def scenario() -> None:
        async with handle() as (writing, bookies):
            bookies.holds = True
            adds = [writing.add(b"a")]
            await asyncio.sleep(0)
            adds.append(writing.add(b"b"))
            closes = [asyncio.ensure_future(writing.close()) for _ in range(2)]
            await asyncio.sleep(0)

            bookies.answer(Status.FENCED)

            ends = await asyncio.gather(*adds, *closes, return_exceptions=True)
            assert [type(end) for end in ends] == [LedgerFenced] * 4
            with pytest.raises(LedgerFenced):
                await writing.close()

    asyncio.run(scenario())


def test_an_error_of_who_is_told_keeps_the_outcome_from_nobody_behind() -> None:
    async def scenario() -> None:
        errors: list[object] = []

        def broken(_: object) -> None:
            raise RuntimeError("of the application")

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        async with handle() as (writing, bookies):
            told: list[object] = []
            bookies.holds = True
            writing.add_all([(b"a", broken), (b"b", told.append), (b"c", told.append)])
            bookies.answer(Status.OK)
            assert told == [1, 2]
            bookies.holds = True
            writing.add_all([(b"d", broken), (b"e", told.append)])
            await writing.abandon()
            [_, _, outcome] = told
            assert isinstance(outcome, LogError)
            assert outcome.outcome_unknown
        assert [str(error) for error in errors] == ["of the application"] * 2

    asyncio.run(scenario())


def test_a_writer_that_was_given_up_holds_no_entries() -> None:
    async def scenario() -> None:
        async with handle() as (writing, bookies):
            bookies.holds = True
            writing.add_all([(bytes(1000), lambda _: None)])
            await writing.abandon()
            assert writing._runs[2] == []
            assert not writing._frames

    asyncio.run(scenario())
