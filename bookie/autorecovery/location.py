"""Where the copies of a ledger are: who should hold what, who is there, and what is lacking."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.repair_plan import Share, Spans
from bookie.autorecovery.replica_check import look
from ledger.client import LedgerClient
from ledger.concurrently import for_each
from ledger.environment import repair_credentials
from ledger.ids import BookieId, LedgerId
from ledger.mark import Mark
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore.nodes import children_of
from ledger.registry import COOKIES, Retirement, retirement_of

LOOKS_MAX: Final = 8
"""Members that are asked at a time."""


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
    mark: Mark | None
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
            bookie,
            index,
            metadata.quorum,
            fragment.first_entry,
            end,
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
