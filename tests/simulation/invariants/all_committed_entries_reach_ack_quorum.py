"""TLA+ AllCommittedEntriesReachAckQuorum: a committed entry has Qa durable copies where it belongs.

Committed is what was acknowledged to the writer's caller, and all that a CLOSED ledger holds:
recovery writes back before it closes (rule 45).
"""

from tests.simulation.oracle import LedgerHistory


def broken(history: LedgerHistory) -> str | None:
    if history.deleted:
        return None
    metadata = history.recorded
    end = metadata.last_entry
    committed = history.acknowledged if end is None else end
    for entry_id in history.unchecked(__name__, committed):
        count = history.copies_in_write_set(entry_id)
        if count < metadata.quorum.ack:
            held = ", ".join(history.copies.get(entry_id, {})) or "nobody"
            bookies = ", ".join(metadata.fragment_of(entry_id).bookies)
            return (
                f"entry {entry_id} is committed with {count} copies, Qa is "
                f"{metadata.quorum.ack}; recorded ensemble {bookies}, held by {held}"
            )
    return None
