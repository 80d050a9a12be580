"""Invariants, one per file, named as in the public TLA+ model where it has one.

| file | TLA+ name | says |
|---|---|---|
| all_acked_entries_are_readable | AllAckedEntriesAreReadable | nothing acknowledged is lost |
| all_committed_entries_reach_ack_quorum | AllCommittedEntriesReachAckQuorum | Qa durable copies |
| no_divergence_between_client_and_metadata | NoDivergenceBetweenClientAndMetaData | one end |
| no_out_of_order_entries | NoOutOfOrderEntries | acknowledged and read in entry order |
| read_value_never_changes | NoDirtyReads | one history for all readers |
| closed_never_below_seen_lac | | CLOSED contradicts no LAC that anyone saw |
| absent_entry_never_reaches_ack_quorum | | what recovery found absent stays so |
| closed_length_is_that_of_its_entries | | the length at the close is the entries' |
| lac_never_above_acknowledged | | nobody believes more than the writer promised |
| fragments_strictly_ordered | ValidateFragments | metadata only ever moves forward |
| fence_is_for_ever | | a fenced bookie takes no normal add, even after a restart |
| bookies_keep_their_promises | | what a bookie said is durable is there after a crash |
| unconfirmed_reads_are_verified | | what they give may vanish, but is never other bytes |
| ledger_ids_never_reused | | one creator, and nobody after a deletion |
| eviction_takes_no_named_replica | | nobody evicts what counts |
| placement_keeps_its_promises | | quarantine and exclusion respected, no free bookie left out |
| degraded_ensembles_suffice | | who is there suffices without those that are away |

Each has `broken(history) -> str | None`: None, or a sentence that says what is wrong.
`check` calls them after every step.
"""

from typing import Final

from tests.simulation.kernel import invariants
from tests.simulation.oracle import Oracle

MODULES: Final = invariants.modules_of(__name__, __path__)
INVARIANTS: Final = {name: module.broken for name, module in MODULES.items()}


def check(oracle: Oracle) -> None:
    """Check all invariants of the ledgers that changed. Raises `InvariantError`."""
    if not oracle.changed:
        return
    for ledger_id in oracle.changed:
        history = oracle.ledgers[ledger_id]
        if history.metadata:  # else it is being created
            invariants.check(INVARIANTS, f"ledger {ledger_id}", history)
    oracle.changed.clear()
