"""What readers and recovery believe of bookies and of the metadata store, and writers tell them."""

import asyncio
from dataclasses import dataclass, field, replace
from random import Random
from typing import cast

import pytest

from ledger import Quorum
from ledger.entry import HEADER_BYTES, encode_lac, parse_header
from ledger.environment import Credentials, Environment
from ledger.errors import BookieUnavailable, NoSuchLedger
from ledger.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from ledger.manager import LedgerStore
from ledger.metadata import Fragment, LedgerMetadata
from ledger.reader import ENSEMBLES_MAX, LedgerReader
from ledger.registry import BookieDirectory
from ledger.requests import LacAnswer, LacQuery, ReadAnswer, ReadQuery, Status
from ledger.transport.port import BookieTransport
from tests.ledger.local_bookies import LocalBookies, local_bookies

LEDGER = LedgerId(7)
KEY = b"k" * 20


class SilentWatch:
    """Nothing is ever told."""

    async def changed(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        pass


@dataclass
class LaggingLedgers:
    """A metadata store whose reads lag behind its writes unless they are to be fresh."""

    lagging: LedgerMetadata
    newest: LedgerMetadata | None

    async def read(self, ledger_id: LedgerId, *, fresh: bool = False) -> tuple[LedgerMetadata, int]:
        if not fresh:
            return self.lagging, 0
        if self.newest is None:
            raise NoSuchLedger(ledger_id)
        return self.newest, 1

    def watch(self, _: LedgerId) -> SilentWatch:
        return SilentWatch()


@dataclass
class StoredEntries:
    """Bookies that hold entries up to some one, and answer at once."""

    last_entry: dict[str, int]
    asked: list[str] = field(default_factory=list)

    async def read_lac(self, bookie: BookieId, _: LacQuery) -> LacAnswer:
        self.asked.append(bookie)
        proof = encode_lac(ledger_id=LEDGER, last_add_confirmed=-1, length=0, mac=None)
        return LacAnswer(Status.OK, lac_proof=proof, last_entry=self.last_entry[bookie])


@pytest.mark.parametrize(("stored", "bound"), [(5, 5), (NO_ENTRY, 0)])
async def test_a_bound_on_what_was_acknowledged_comes_of_the_newest_ensemble(
    stored: int, bound: int
) -> None:
    """A barrier that asked those who were replaced would miss what was acknowledged since.

    Nor is it below their successors' fragment, of which these may hold nothing yet."""
    quorum = Quorum(1, 1, 1)
    first, second = (
        Fragment(EntryId(entry), (BookieId(name),)) for entry, name in ((0, "old"), (1, "new"))
    )
    before = LedgerMetadata(quorum=quorum, fragments=(first,))
    after = replace(before, fragments=(first, second))
    bookies = StoredEntries({"old": 0, "new": stored})
    reader = _reader(LaggingLedgers(before, after), bookies, before)
    assert await reader.read_last_stored() == bound
    assert bookies.asked[-1] == "new"
    await reader.close()


class MovingLedger:
    """Bookies that hold entry 9 while a member of the last fragment, and nothing afterwards; the
    metadata change as soon as one of *changes* was asked."""

    def __init__(self, *changes: LedgerMetadata | None) -> None:
        self.ledgers = LaggingLedgers(BEFORE, BEFORE)
        self.asked: list[str] = []
        self._changes = list(changes)

    async def read_lac(self, bookie: BookieId, _: LacQuery) -> LacAnswer:
        self.asked.append(bookie)
        if self._changes:
            self.ledgers.newest = self._changes.pop(0)
        newest = self.ledgers.newest
        if newest is None or bookie not in newest.last_fragment.bookies:
            return LacAnswer(Status.NO_SUCH_LEDGER)
        return LacAnswer(Status.OK, last_entry=9)


BEFORE = LedgerMetadata(
    quorum=Quorum(1, 1, 1), fragments=(Fragment(EntryId(0), (BookieId("old"),)),)
)
MOVED = replace(BEFORE, fragments=(Fragment(EntryId(0), (BookieId("new"),)),))
GROWN = replace(BEFORE, fragments=(*BEFORE.fragments, Fragment(EntryId(9), (BookieId("new"),))))


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        (MOVED.closed(EntryId(9), 10), ["old"]),
        (GROWN, ["old", "new"]),
        (GROWN.in_recovery(), ["old", "new"]),
    ],
    ids=["closed", "continued", "fenced"],
)
async def test_what_members_say_counts_only_while_the_metadata_name_them(
    change: LedgerMetadata, asked: list[str]
) -> None:
    """A reader that slept asks bookies that have left since, and have evicted what they had."""
    bookies = MovingLedger(change)
    reader = _reader(bookies.ledgers, bookies, BEFORE)
    assert await reader.read_last_stored() == 9
    assert bookies.asked == asked
    await reader.close()


async def test_the_members_of_a_ledger_that_is_gone_bound_nothing() -> None:
    bookies = MovingLedger(None)
    reader = _reader(bookies.ledgers, bookies, BEFORE)
    with pytest.raises(NoSuchLedger):
        await reader.read_last_stored()
    await reader.close()


async def test_an_ensemble_that_changes_all_the_time_bounds_nothing() -> None:
    changes = [
        replace(BEFORE, fragments=(Fragment(EntryId(0), (BookieId(f"b{number}"),)),))
        for number in range(100)
    ]
    bookies = MovingLedger(*changes)
    reader = _reader(bookies.ledgers, bookies, BEFORE)
    with pytest.raises(BookieUnavailable, match="changed 10 times") as raised:
        await reader.read_last_stored()
    assert raised.value.retryable
    assert len(bookies.asked) == ENSEMBLES_MAX
    await reader.close()


def _reader(ledgers: "LaggingLedgers", bookies: object, metadata: LedgerMetadata) -> LedgerReader:
    environment = Environment(
        uri="memory://x",
        ledgers=cast(LedgerStore, ledgers),
        bookies=cast(BookieDirectory, None),
        transport=cast(BookieTransport, bookies),
        random=Random(1),
        pending_bytes_max=1,
    )
    return LedgerReader(environment, Credentials(LEDGER, KEY, None), metadata)


class DamagingTransport:
    """Changes a byte of what each bookie answers to the first read of it; all else is passed on."""

    def __init__(self, inner: BookieTransport, at: int) -> None:
        self._inner = inner
        self._at = at
        self.damaged: set[str] = set()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def read(self, bookie: BookieId, query: ReadQuery) -> ReadAnswer:
        answer = await self._inner.read(bookie, query)
        if not len(answer.frames) or bookie in self.damaged:
            return answer
        self.damaged.add(bookie)
        frames = bytearray(answer.frames)
        frames[self._at] ^= 1
        return replace(answer, frames=bytes(frames))


@pytest.mark.slow
@pytest.mark.parametrize(
    "at", [HEADER_BYTES, -1], ids=["in the first payload", "at the end of the last"]
)
async def test_recovery_believes_no_frame_whose_digest_is_wrong(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_bookies() as cluster:
        client = await cluster.client()
        for _ in range(5):  # whose answer comes first, and so is kept, differs
            writer = await client.create()
            monkeypatch.setattr(writer, "_publish", lambda *_: None)  # so its end is searched
            # Both at once: neither says that the other is confirmed, so both are looked for.
            await asyncio.gather(*(writer.add(payload) for payload in (b"first", b"second")))
            await writer.abandon()
            successor = await cluster.client()
            environment = successor._environment
            damaging = DamagingTransport(environment.transport, at)
            environment.transport = cast(BookieTransport, damaging)
            metadata = await successor.recover(writer.ledger_id)
            assert (metadata.last_entry, metadata.length) == (1, len(b"firstsecond"))
            assert damaging.damaged
            reader = await client.open_no_recovery(writer.ledger_id)
            assert [bytes(e.payload) for e in await reader.read(0, 1)] == [b"first", b"second"]
            await reader.close()


async def test_each_entry_tells_bookies_what_is_confirmed_by_then() -> None:
    """What only an idle writer told would keep readers of a busy one waiting for ever."""
    async with local_bookies() as cluster:
        client = await cluster.client()
        writer = await client.create()
        for payload in (b"a", b"b", b"c", b"d", b"e"):
            await writer.add(payload)
        assert told_by(cluster, writer.ledger_id) == [NO_ENTRY, 0, 1, 2, 3]
        await writer.close()


def told_by(cluster: LocalBookies, ledger_id: LedgerId) -> list[int]:
    """Return the last add confirmed in each entry that bookies hold."""
    frames: dict[int, bytes] = {}
    for bookie in cluster.bookies:
        frames.update(bookie.storage.ledgers[ledger_id])
    return [parse_header(frame).last_add_confirmed for _, frame in sorted(frames.items())]
