"""Makes a restored metadata store and the bookies agree, ledger by ledger.

The store is older than the bookies. A ledger that it calls open may have been closed since, and its
ensemble may have been changed since: so it is closed with all that any bookie holds
(`ledger.forced_close`), not by a recovery that asks the recorded ensemble. A ledger that was closed
before may have been moved since, to bookies that the store does not name: what none of those that
it names holds is copied back from whoever has it.

It is a procedure, which may be interrupted and repeated: what is done needs nothing more.
"""

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ledger.client import LedgerClient
from ledger.environment import Environment, repair_credentials
from ledger.errors import (
    BookiesMissing,
    DamagedMetadata,
    EndNotHeld,
    EndUncertain,
    LedgerClosed,
    NoSuchLedger,
    NoSuchNode,
    RecoveryFailed,
)
from ledger.forced_close import Copier, Span, force_close, listed, union
from ledger.ids import BookieId, LedgerId
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.metastore.port import MetadataStore, children_of
from ledger.registry import COOKIES
from ledger.wire import metadata_pb2 as pb

_PART: Final = 64


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What became of one ledger that the store and the bookies did not agree about."""

    ledger_id: LedgerId
    end: int | None
    """Its last entry; None: it is still open."""
    cut: int = 0
    """Entries beyond the end that some bookie holds, and that were never acknowledged."""
    found_elsewhere: int = 0
    """Entries that only bookies had which the store does not name."""
    lost: int = 0
    """Entries of a ledger that was closed before, of which no bookie has a copy."""
    problem: str = ""
    """Why it is not as it should be; an operator decides."""


async def known_bookies(store: MetadataStore) -> list[str]:
    """Return the names that the store knows and that are not retired. Raises what the store
    raises."""
    names = []
    for name in await children_of(store, COOKIES):
        try:
            cookie = pb.CookieNode.FromString((await store.get(f"{COOKIES}/{name}")).value)
        except NoSuchNode:
            continue
        if not cookie.retired_ms:
            names.append(name)
    return names


async def reconcile(
    client: LedgerClient, below: int, *, without: Collection[str] = ()
) -> AsyncIterator[Reconciled]:
    """Go through all ledgers *below* an id, which were there when the restore was accepted; yield
    those that needed something. Later ones have writers.

    Raises `BookiesMissing` if a bookie that the store knows is not registered, except for those
    *without* which it is to be done. Raises `MetadataUnavailable`."""
    known = [name for name in await known_bookies(client.store) if name not in without]
    await client.bookies.look_again()
    there = {found.bookie for found in client.bookies.available()}
    missing = [name for name in known if name not in there]
    if missing:
        raise BookiesMissing(missing)
    ledger_ids = iter([one async for one in client.ledgers.list() if one < below])
    while part := list(islice(ledger_ids, _PART)):
        for ledger_id, metadata in (await client.ledgers.read_all(part)).items():
            if metadata is None:
                yield Reconciled(ledger_id, None, problem="its metadata are damaged")
            elif metadata.state is not LedgerState.CLOSED:
                yield await _close(client.environment, ledger_id, known)
            elif result := await _bring_back(client.environment, ledger_id, metadata):
                yield result


async def _close(
    environment: Environment, ledger_id: LedgerId, known: Collection[str]
) -> Reconciled:
    names = [BookieId(name) for name in known]
    try:
        closed = await force_close(environment, ledger_id, None, known=names)
    except (EndUncertain, EndNotHeld, RecoveryFailed, DamagedMetadata) as error:
        return Reconciled(ledger_id, None, problem=str(error))
    except NoSuchLedger:
        return Reconciled(ledger_id, None, problem="it was deleted meanwhile")
    except LedgerClosed as error:
        return Reconciled(ledger_id, error.last_entry)
    end = closed.metadata.last_entry
    assert end is not None, "it is CLOSED"
    members = [one for one in closed.evidence.holdings if one.is_member]
    with_members = list(union(span for one in members for span in one.spans))
    elsewhere = sum(
        not any(first <= entry_id <= last for first, last in with_members)
        for entry_id in range(closed.evidence.first, end + 1)
    )
    problem = ""
    if deleted := [one.bookie for one in members if one.is_deleted]:
        problem = f"it was deleted since: {', '.join(deleted)} let go of it"
    return Reconciled(ledger_id, end, closed.cut, elsewhere, problem=problem)


async def _bring_back(
    environment: Environment, ledger_id: LedgerId, metadata: LedgerMetadata
) -> Reconciled | None:
    """Let members of each fragment have what none of them has, if somebody else has it; None if
    they lack nothing."""
    assert metadata.last_entry is not None, "it is CLOSED"
    found, lost = 0, 0
    for fragment in metadata.fragments:
        end = metadata.settled_end(fragment)
        if end is None or end < fragment.first_entry:
            continue
        more_found, more_lost = await _complete(environment, ledger_id, metadata, fragment, end)
        found, lost = found + more_found, lost + more_lost
    if not found and not lost:
        return None
    problem = f"{lost} entries are with no bookie that was asked" if lost else ""
    return Reconciled(ledger_id, metadata.last_entry, 0, found, lost, problem)


async def _complete(
    environment: Environment,
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    fragment: Fragment,
    end: int,
) -> tuple[int, int]:
    """Return how many entries of a fragment were found elsewhere and copied, and how many were
    not found."""
    credentials = repair_credentials(ledger_id, metadata)
    spans: dict[BookieId, tuple[Span, ...]] = {}
    for bookie in fragment.bookies:
        _, spans[bookie], _ = await listed(
            environment, credentials, bookie, fragment.first_entry, end
        )
    gaps = _gaps(fragment.first_entry, end, [span for held in spans.values() for span in held])
    if not gaps:
        return 0, 0
    for found in environment.bookies.available():
        bookie = BookieId(found.bookie)
        if bookie not in spans:
            _, spans[bookie], _ = await listed(
                environment, credentials, bookie, fragment.first_entry, end
            )
    copied, lost = 0, 0
    for first, last in gaps:
        have = [(max(a, first), min(b, last)) for held in spans.values() for a, b in held]
        for a, b in union(have):
            copier = Copier(environment, credentials, metadata.quorum)
            try:
                await copier.copy(a, b, fragment.bookies, spans)
            except EndNotHeld:
                lost += b - a + 1
                continue
            taken = sum(copier.copies(one, fragment.bookies) > 0 for one in range(a, b + 1))
            copied, lost = copied + taken, lost + (b - a + 1 - taken)
        lost += sum(b - a + 1 for a, b in _gaps(first, last, have))
    return copied, lost


def _gaps(first: int, last: int, spans: Collection[Span]) -> list[Span]:
    """Return what of first..last is in none of *spans*."""
    gaps: list[Span] = []
    position = first
    for a, b in union((max(a, first), min(b, last)) for a, b in spans):
        if a > position:
            gaps.append((position, a - 1))
        position = b + 1
    if position <= last:
        gaps.append((position, last))
    return gaps
