"""The checks that read metadata only: placement, and how many replicas are on bookies that live."""

from bookie.autorecovery.ledger_scan import parts_of
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.ledger_check import (
    is_urgent,
    members_with_entries,
    settled_ensembles,
)
from bookie.autorecovery.reports import PlacementRecord, ReplicasRecord
from ledger.client import LedgerClient
from ledger.ids import BookieId
from ledger.mark import Lack, Reason
from ledger.metastore.nodes import children_of
from ledger.registry import COOKIES, Retirement, retirement_of


async def check_placement(client: LedgerClient, *, now_ms: int) -> PlacementRecord:
    """Judge the ensemble of each settled fragment, and mark ledgers of which one could be better.

    Only where all members are there: what is lost comes first. Raises `MetadataUnavailable`."""
    marks = Marks(client.store)
    environment = client.environment
    ledgers = misplaced = 0
    async for part in parts_of(client.ledgers):
        marked = False
        registered = _registered(client)
        for ledger_id, metadata in part:
            ledgers += 1
            if metadata is None:
                continue
            exchanged: set[BookieId] = set()
            for ensemble in settled_ensembles(metadata):
                if registered.issuperset(ensemble):
                    better = environment.better(metadata.quorum, ensemble)
                    exchanged.update(ensemble[index] for index, _ in better)
            if exchanged:
                misplaced += 1
                lacks = [Lack(bookie, Reason.MISPLACED, now_ms) for bookie in sorted(exchanged)]
                marked |= await marks.add(ledger_id, lacks)
        if marked:
            await marks.ring()
    return PlacementRecord(at_ms=now_ms, ledgers=ledgers, misplaced=misplaced)


async def check_replicas(client: LedgerClient, *, now_ms: int) -> ReplicasRecord:
    """Count ledgers with entries on bookies that are away.

    Those are not marked: a bookie within its delay is not lost yet. But a name that is retired and
    emptied, or has no cookie, never comes back, and no auditor waits for it: so it is if a client
    that slept names a bookie that was emptied meanwhile.

    Raises `MetadataUnavailable`."""
    marks = Marks(client.store)
    ledgers = away = urgent = unknown = 0
    emptied = await _emptied(client)
    async for part in parts_of(client.ledgers):
        # After the ledgers were read, as for who is lost (rule 85).
        registered = _registered(client)
        cookies = set(map(BookieId, await children_of(client.store, COOKIES)))
        known = registered | (cookies - emptied)
        marked = False
        for ledger_id, metadata in part:
            ledgers += 1
            if metadata is None:
                continue
            members = members_with_entries(metadata)
            away += bool(members - registered)
            urgent += is_urgent(metadata, members - registered)
            if members <= known:
                continue
            unknown += 1
            lacks = [Lack(bookie, Reason.LOST, now_ms) for bookie in sorted(members - known)]
            marked |= await marks.add(ledger_id, lacks)
        if marked:
            await marks.ring()
    return ReplicasRecord(at_ms=now_ms, ledgers=ledgers, away=away, urgent=urgent, unknown=unknown)


async def _emptied(client: LedgerClient) -> frozenset[BookieId]:
    """Return the names that are retired and emptied; they stay so."""
    names = map(BookieId, await children_of(client.store, COOKIES))
    emptied = Retirement.EMPTIED
    return frozenset([b for b in names if await retirement_of(client.store, b) is emptied])


def _registered(client: LedgerClient) -> frozenset[BookieId]:
    return frozenset(BookieId(found.bookie) for found in client.bookies.available())
