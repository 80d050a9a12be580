"""Asks bookies what they have of a ledger: one of a fragment (`look`), or all of all (`locate`).

`look` keeps ranges only. Normally it asks for the ranges that are held, which reads nothing but
index pages. *Thoroughly* it reads every entry and verifies it, so that a rotten copy counts as
missing, and is made again. A read may be answered out of memory alone, a list never: so what was
read is held if it is listed afterwards. Answers that are none (no answer, limbo, an overloaded
bookie) make a share unsure, never missing.

`locate` says which bookies should hold what, which serve, and what is missing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.repair_plan import Question, Share, Spans
from ledger.client import LedgerClient
from ledger.delays import Backoff
from ledger.environment import Credentials, repair_credentials
from ledger.ids import BookieId, LedgerId
from ledger.mark import UnderreplicatedLedger
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore.port import children_of
from ledger.protocol.answers import Found, verified
from ledger.quorum import Quorum, holds
from ledger.registry import COOKIES, Retirement, retirement_of
from ledger.requests import HeldAnswer, HeldQuery, ReadAnswer, ReadQuery, Status
from ledger.tasks import for_each
from ledger.transport.port import BookieTransport

READ_BYTES_MAX: Final = 1024 * 1024
"""Of one read: larger ones would keep a bookie's readers from its clients."""
ASKS_MAX: Final = 3
"""How often a bookie that does not answer, or is too busy, is asked."""
_ASK_AGAIN_S_MIN: Final = 0.2
_ASK_AGAIN_S_MAX: Final = 2.0
GAPS_MAX: Final = 10_000
"""Ranges of missing entries that are remembered; what is behind them is not decided now."""
LOOKS_MAX: Final = 8
"""Members that are asked at a time."""
_Answer = TypeVar("_Answer", ReadAnswer, HeldAnswer)


async def look(
    transport: BookieTransport,
    credentials: Credentials,
    quorum: Quorum,
    question: Question,
    *,
    thorough: bool,
    pace: Callable[[int], Awaitable[None]] | None = None,
) -> Share:
    """Return what the bookie of *question* has.

    *pace* is awaited with the bytes of each answer with entries, before the next one is asked."""
    if not thorough:
        listing = await _listed(transport, credentials, quorum, question)
        if listing.is_supported:
            return listing.share
    reading = _Reading(quorum, question)
    while not reading.over:
        query = ReadQuery(
            credentials.ledger_id,
            credentials.key,
            reading.position,
            reading.upto,
            bytes_max=READ_BYTES_MAX,
            repairs=True,
        )
        answer = await ask(transport, question.bookie, query)
        found = verified(answer, credentials.ledger_id, credentials.checks)
        reading.heard(found)
        if pace is not None:
            await pace(sum(len(frame) for frame in found.frames.values()))
    share = reading.share
    if not thorough or share.unsure[:1] == ((question.first, question.last),):
        return share
    listing = await _listed(transport, credentials, quorum, question)
    return share.within(listing.share) if listing.is_supported else share


async def _listed(
    transport: BookieTransport, credentials: Credentials, quorum: Quorum, question: Question
) -> "_Listing":
    listing = _Listing(quorum, question)
    while not listing.over:
        query = HeldQuery(credentials.ledger_id, credentials.key, listing.position, question.last)
        listing.heard(await _patiently(partial(transport.read_held, question.bookie, query)))
    return listing


async def ask(transport: BookieTransport, bookie: BookieId, query: ReadQuery) -> ReadAnswer:
    """Read, and again if there is no answer."""
    return await _patiently(partial(transport.read, bookie, query))


async def _patiently(call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    backoff = Backoff(_ASK_AGAIN_S_MIN, _ASK_AGAIN_S_MAX)
    for _ in range(ASKS_MAX - 1):
        answer = await call()
        if answer.status not in {Status.UNREACHABLE, Status.TOO_MANY_REQUESTS}:
            return answer
        await asyncio.sleep(backoff.next())
    return await call()


class _Listing:
    """What a bookie said that it holds; pure."""

    def __init__(self, quorum: Quorum, question: Question) -> None:
        self.position = question.first
        """What to ask for next."""
        self.is_supported = True
        self._index, self._quorum, self._last = question.index, quorum, question.last
        self._missing: list[tuple[int, int]] = []
        self._unsure: list[tuple[int, int]] = []

    @property
    def over(self) -> bool:
        return not self.is_supported or self.position > self._last

    @property
    def share(self) -> Share:
        return Share(tuple(self._missing), tuple(self._unsure))

    def heard(self, answer: HeldAnswer) -> None:
        self.is_supported = answer.is_supported
        if answer.status is Status.NO_SUCH_LEDGER:
            self._gap(self._last, considered=self._last)
            return
        listed = min(answer.listed, self._last)
        full = len(self._missing) + len(self._unsure) >= GAPS_MAX
        if listed < self.position or full:
            self._gap(self._last, considered=self.position - 1)
            return
        for first, last in answer.ranges():
            self._gap(first - 1, considered=answer.considered)
            self.position = max(self.position, last + 1)
        self._gap(listed, considered=answer.considered)

    def _gap(self, upto: int, *, considered: int) -> None:
        """Note that what lies before *upto* and is not noted yet is in no range."""
        first, upto = self.position, min(upto, self._last)
        self.position = max(first, upto + 1)
        for noted, start, end in (
            (self._missing, first, min(upto, considered)),
            (self._unsure, max(first, considered + 1), upto),
        ):
            if self._concerned(start, end):
                noted.append((start, end))

    def _concerned(self, first: int, last: int) -> bool:
        """Whether the index holds any of first..last."""
        some = range(first, min(last, first + self._quorum.ensemble - 1) + 1)
        return any(holds(self._index, entry_id, self._quorum) for entry_id in some)


class _Reading:
    """What was read and found right; pure."""

    def __init__(self, quorum: Quorum, question: Question) -> None:
        self.position, self.upto = question.first, question.last
        """What to ask for next."""
        self._index, self._quorum, self._last = question.index, quorum, question.last
        self._missing: list[tuple[int, int]] = []
        self._unsure_from: int | None = None
        self._in_gap = False

    @property
    def over(self) -> bool:
        return self._unsure_from is not None or self.position > self._last

    @property
    def share(self) -> Share:
        unsure = () if self._unsure_from is None else ((self._unsure_from, self._last),)
        return Share(tuple(self._missing), unsure)

    def heard(self, found: Found) -> None:
        if len(self._missing) >= GAPS_MAX:
            self._unsure_from = self.position
        elif found.status is Status.NO_SUCH_LEDGER:
            self._take(found, self._last)
        elif found.damaged is not None:
            self._take(found, found.damaged)
        elif found.status is Status.OK and found.considered >= self.position:
            self._take(found, min(found.considered, self.upto))
        elif found.status not in {Status.OK, Status.IO_ERROR}:
            self._unsure_from = self.position
        elif self.upto > self.position:
            self.upto = self.position  # find out which entry the bookie cannot read
        else:
            self._take(found, self.position)  # unreadable: as good as missing

    def _take(self, found: Found, upto: int) -> None:
        """Note which entries up to *upto* are missing: those that did not come."""
        for entry_id in range(self.position, upto + 1):
            if not holds(self._index, entry_id, self._quorum):
                continue
            if entry_id in found.headers:
                self._in_gap = False
            elif self._in_gap:
                self._missing[-1] = (self._missing[-1][0], entry_id)
            else:
                self._missing.append((entry_id, entry_id))
                self._in_gap = True
        self.position, self.upto = upto + 1, self._last


class BookieState(Enum):
    WRITABLE = "writable"
    READ_ONLY = "read-only"
    LEAVING = "leaving"
    """It is to be emptied, and serves."""
    AWAY = "away"
    """It is not registered; its name is known."""
    RETIRED = "retired"
    """Its data were given up."""
    UNKNOWN = "unknown"
    """No bookie of that name is known: its cookie was deleted, or an older release forgot it."""

    @property
    def serves(self) -> bool:
        return self in {BookieState.WRITABLE, BookieState.READ_ONLY, BookieState.LEAVING}


@dataclass(frozen=True, slots=True)
class Holder:
    """A member of a fragment."""

    bookie: BookieId
    state: BookieState
    missing: Spans
    """Entries that it should hold and said that it has not; of a striped ledger, ranges of them."""
    unsure: Spans
    """Entries of which it did not say; all of them, if it does not serve."""


@dataclass(frozen=True, slots=True)
class Place:
    """A fragment, and who holds it."""

    first: int
    last: int | None
    """None while it is written; at most first - 1 if nothing is in it."""
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Located:
    ledger_id: LedgerId
    metadata: LedgerMetadata
    places: tuple[Place, ...]
    mark: UnderreplicatedLedger | None
    """What repair knows of it."""

    @property
    def is_whole(self) -> bool:
        """Whether all members serve, and none said that it lacks anything."""
        return all(
            holder.state.serves and not holder.missing
            for place in self.places
            for holder in place.holders
        )


async def states_of(client: LedgerClient) -> dict[BookieId, BookieState]:
    """Return the state of each bookie that is registered or has a cookie."""
    states: dict[BookieId, BookieState] = {}
    leaving = await Marks(client.store).decommissioning()
    known = await children_of(client.store, COOKIES)
    registered = {found.bookie: found for found in client.bookies.available()}
    for name in sorted({*known, *registered}):
        bookie = BookieId(name)
        found = registered.get(name)
        if found is None:
            retirement = await retirement_of(client.store, bookie)
            gone = retirement is not Retirement.NONE
            states[bookie] = BookieState.RETIRED if gone else BookieState.AWAY
        elif bookie in leaving:
            states[bookie] = BookieState.LEAVING
        else:
            states[bookie] = BookieState.READ_ONLY if found.read_only else BookieState.WRITABLE
    return states


async def locate(
    client: LedgerClient, ledger_id: LedgerId, states: dict[BookieId, BookieState]
) -> Located:
    """Ask all members of the ledger that serve what they hold; no entry is read.

    Raises `NoSuchLedger`, `DamagedMetadata`, `MetadataUnavailable`."""
    metadata, _ = await client.ledgers.read(ledger_id)
    marked = await Marks(client.store).read(ledger_id)
    holders: dict[tuple[Fragment, int], Holder] = {}

    async def ask(member: tuple[Fragment, int]) -> None:
        holders[member] = await holder(*member)

    async def holder(fragment: Fragment, index: int) -> Holder:
        bookie = fragment.bookies[index]
        state = states.get(bookie, BookieState.UNKNOWN)
        end = metadata.settled_end(fragment)
        if end is None or end < fragment.first_entry:
            return Holder(bookie, state, (), ())
        if not state.serves:
            return Holder(bookie, state, (), ((fragment.first_entry, end),))
        share: Share = await look(
            client.environment.transport,
            repair_credentials(ledger_id, metadata),
            metadata.quorum,
            Question(bookie, index, fragment.first_entry, end),
            thorough=False,
        )
        return Holder(bookie, state, share.missing, share.unsure)

    indexes = range(metadata.quorum.ensemble)
    members = [(fragment, index) for fragment in metadata.fragments for index in indexes]
    await for_each(members, ask, at_once=LOOKS_MAX)
    places = [
        Place(
            fragment.first_entry,
            metadata.settled_end(fragment),
            tuple(holders[fragment, index] for index in indexes),
        )
        for fragment in metadata.fragments
    ]
    return Located(ledger_id, metadata, tuple(places), None if marked is None else marked[0])
