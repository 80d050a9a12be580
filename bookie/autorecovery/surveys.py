"""The checks that read metadata only: placement, and how many replicas are on bookies that live."""

from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.checking import is_urgent, members_with_entries, settled_ensembles
from bookie.autorecovery.reports import PlacementRecord, ReplicasRecord
from bookie.autorecovery.surveying import parts_of
from ledger.client import LedgerClient
from ledger.ids import BookieId
from ledger.mark import Lack, Reason


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
    """Count ledgers with entries on bookies that are away. Nothing is marked: a bookie within its
    delay is not lost yet. Raises `MetadataUnavailable`."""
    ledgers = away = urgent = 0
    async for part in parts_of(client.ledgers):
        # After the ledgers were read, as for who is lost (rule 85).
        registered = _registered(client)
        for _, metadata in part:
            ledgers += 1
            if metadata is None:
                continue
            gone = members_with_entries(metadata) - registered
            away += bool(gone)
            urgent += is_urgent(metadata, gone)
    return ReplicasRecord(at_ms=now_ms, ledgers=ledgers, away=away, urgent=urgent)


def _registered(client: LedgerClient) -> frozenset[BookieId]:
    return frozenset(BookieId(found.bookie) for found in client.bookies.available())
