"""Moves closed ledgers from full bookies to empty ones, as `protocol.rebalance` decides.

Two passes over all metadata: one adds up what each bookie holds, one moves. A ledger is copied and
swapped as in a repair, with all its members alive; nothing else is written, so that a run may be
interrupted at any moment, and begun again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bookie.autorecovery.ledger_scan import parts_of
from bookie.autorecovery.manual_repair import Errands
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.ledger_weight import weight_of
from bookie.autorecovery.protocol.rebalance import TOLERANCE, Rebalancing
from bookie.autorecovery.protocol.repair import RepairConfig, RepairOutcome
from bookie.autorecovery.repair_io import Pace
from ledger.client import LedgerClient
from ledger.clock import now_ms
from ledger.concurrently import for_each
from ledger.ids import BookieId, LedgerId
from ledger.mark import Lack, Reason
from ledger.metadata import LedgerMetadata

LEDGERS_MAX: Final = 4


@dataclass(slots=True)
class Rebalanced:
    """How far it is, or how it ended; bytes as `ledger_weight` counts them."""

    before: dict[BookieId, int] = field(default_factory=dict)
    after: dict[BookieId, int] = field(default_factory=dict)
    """As they will be when all that was chosen is moved."""
    ledgers_read: int = 0
    chosen: int = 0
    """Ledgers that are to move."""
    chosen_bytes: int = 0
    moved: int = 0
    moved_bytes: int = 0
    failed: int = 0
    why: str = ""
    """Of one that failed."""
    is_even: bool = False
    """Whether all bookies hold much the same once all is moved."""


async def rebalance(
    client: LedgerClient,
    *,
    bytes_per_s: float,
    tolerance: float = TOLERANCE,
    bytes_max: int | None = None,
    ledgers_max: int = LEDGERS_MAX,
    dry_run: bool = False,
    on_progress: Callable[[Rebalanced], None] = lambda _: None,
) -> Rebalanced:
    """Move what is to be moved at *bytes_per_s* (0: no limit); return what that was.

    Raises `MetadataUnavailable`; what was moved until then stays moved."""
    found = Rebalanced()
    errands = Errands(client, Pace(bytes_per_s), RepairConfig())
    leaving = await Marks(client.store).decommissioning()
    loads = {BookieId(name): 0 for name in client.bookies.writable() if name not in leaving}
    async for part in parts_of(client.ledgers):
        for _, metadata in part:
            if metadata is not None:
                members = {b for fragment in metadata.fragments for b in fragment.bookies}
                for bookie in sorted(members & loads.keys()):
                    loads[bookie] += weight_of(metadata, {bookie}).bytes
        found.ledgers_read += len(part)
        on_progress(found)
    racks = {BookieId(bookie): rack for bookie, rack in client.bookies.racks().items()}
    choice = Rebalancing(loads, racks=racks, tolerance=tolerance, bytes_max=bytes_max)
    found.before = loads

    async def take(each: tuple[LedgerId, LedgerMetadata | None]) -> None:
        ledger_id, metadata = each
        move = None if metadata is None else choice.choose(metadata)
        if move is None:
            return
        found.chosen += 1
        found.chosen_bytes = choice.moved_bytes
        if dry_run:
            return
        lack = Lack(move.source, Reason.MISPLACED, now_ms())
        done = await errands.do(ledger_id, (lack,), frozenset({move.target}))
        if done.finish.outcome is RepairOutcome.DONE:
            found.moved += 1
            found.moved_bytes += move.bytes
        else:
            found.failed += 1
            found.why = f"ledger {ledger_id}: {done.finish.why or 'a worker repairs it'}"
        on_progress(found)

    if not choice.is_even:
        async for part in parts_of(client.ledgers):
            await for_each(part, take, at_once=ledgers_max)
    found.after, found.is_even = choice.loads, choice.is_even
    return found
