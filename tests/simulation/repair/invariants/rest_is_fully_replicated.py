"""Without faults, and with bookies to copy to, everything is made whole, and nothing is left.

Every entry of every ledger has Qw right copies on bookies that live; no mark, no lock. It is what
the simulation waits for once faults have stopped.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from ledger.errors import StorageError
from ledger.ids import BookieId, LedgerId
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.quorum import write_set
from ledger.requests import ReadQuery
from tests.simulation.promises import READ_ALL_BYTES

if TYPE_CHECKING:
    from tests.simulation.repair.world import RepairWorld


def hopeless(world: "RepairWorld") -> dict[LedgerId, None]:
    """Return the ledgers that no recovery can close: of a write set of the last fragment too few
    are left. A writer may have picked bookies that were lost already, and died."""
    found: dict[LedgerId, None] = {}
    if not world.oracle.lost_disks:
        return found
    for ledger_id, history in world.oracle.ledgers.items():
        if not history.is_there or history.recorded.state is LedgerState.CLOSED:
            continue
        quorum, last = history.recorded.quorum, history.recorded.last_fragment
        for residue in range(quorum.ensemble):
            members = [last.bookies[index] for index in write_set(residue, quorum)]
            if sum(world.bookies[each].gone for each in members) >= quorum.ack:
                found[ledger_id] = None
    return found


def broken(world: "RepairWorld", but: Collection[LedgerId]) -> str | None:
    """Return what keeps it from being so, apart from the ledgers *but*; None if nothing does."""
    repairs = world.repairs
    # What nobody was answered to have created is nobody's, and may stay OPEN for ever.
    owned = [each for each in repairs.marks if repairs.history(each).owners]
    marked = [ledger_id for ledger_id in owned if ledger_id not in but]
    if marked:
        return f"rest_is_fully_replicated: marks of ledgers {sorted(marked)}"
    if any(ledger_id not in but for ledger_id in repairs.locks):
        return f"rest_is_fully_replicated: locks of ledgers {sorted(repairs.locks)}"
    lacking = not_held(world, but)
    return None if lacking is None else f"rest_is_fully_replicated: {lacking}"


def not_held(world: "RepairWorld", but: Collection[LedgerId]) -> str | None:
    """Return an entry that a member lacks, asked of its disk."""
    for ledger_id, history in world.oracle.ledgers.items():
        if not history.is_there or not history.owners or ledger_id in but:
            continue
        metadata = history.recorded
        if metadata.state is not LedgerState.CLOSED or metadata.last_entry is None:
            return f"ledger {ledger_id} is not CLOSED"
        held = {
            bookie: _held(world, ledger_id, bookie, metadata)
            for fragment in metadata.fragments
            if fragment.first_entry <= metadata.last_entry
            for bookie in fragment.bookies
        }
        for entry in range(metadata.last_entry + 1):
            fragment = metadata.fragment_of(entry)
            for index in write_set(entry, metadata.quorum):
                bookie = fragment.bookies[index]
                if held[bookie].get(entry) != history.sent[entry]:
                    return f"{bookie} has not entry {entry} of ledger {ledger_id}"
    return None


def _held(
    world: "RepairWorld", ledger_id: int, name: BookieId, metadata: LedgerMetadata
) -> dict[int, bytes]:
    bookie = world.bookies[name]
    if bookie.gone or not bookie.host.up or not bookie.serves:
        return {}
    assert metadata.last_entry is not None
    query = ReadQuery(ledger_id, metadata.access_key, 0, metadata.last_entry, READ_ALL_BYTES)
    try:
        return {entry: bytes(frame) for entry, frame in bookie.storage.read(query).each()}
    except (StorageError, OSError):
        return {}
