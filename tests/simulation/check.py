"""Checks all invariants of the ledgers about which anything was reported in a step."""

from collections.abc import Callable

from tests.simulation.invariants import (
    absent_entry_never_reaches_ack_quorum,
    all_acked_entries_are_readable,
    all_committed_entries_reach_ack_quorum,
    bookies_keep_their_promises,
    closed_length_is_that_of_its_entries,
    closed_never_below_seen_lac,
    degraded_ensembles_suffice,
    eviction_takes_no_named_replica,
    fence_is_for_ever,
    fragments_strictly_ordered,
    lac_never_above_acknowledged,
    ledger_ids_never_reused,
    no_divergence_between_client_and_metadata,
    no_out_of_order_entries,
    placement_keeps_its_promises,
    read_value_never_changes,
    unconfirmed_reads_are_verified,
)
from tests.simulation.oracle import LedgerHistory, Oracle
from tests.simulation.stepping import InvariantError

INVARIANTS: dict[str, Callable[[LedgerHistory], str | None]] = {
    module.__name__.rpartition(".")[2]: module.broken
    for module in (
        bookies_keep_their_promises,
        fence_is_for_ever,
        fragments_strictly_ordered,
        eviction_takes_no_named_replica,
        all_acked_entries_are_readable,
        all_committed_entries_reach_ack_quorum,
        absent_entry_never_reaches_ack_quorum,
        no_out_of_order_entries,
        read_value_never_changes,
        lac_never_above_acknowledged,
        closed_never_below_seen_lac,
        closed_length_is_that_of_its_entries,
        no_divergence_between_client_and_metadata,
        unconfirmed_reads_are_verified,
        degraded_ensembles_suffice,
        ledger_ids_never_reused,
        placement_keeps_its_promises,
    )
}


def check(oracle: Oracle) -> None:
    """Check all invariants of the ledgers that changed. Raises `InvariantError`."""
    if not oracle.changed:
        return
    for ledger_id in oracle.changed:
        history = oracle.ledgers[ledger_id]
        if not history.metadata:
            continue  # being created
        for name, broken in INVARIANTS.items():
            story = broken(history)
            if story is not None:
                raise InvariantError(name, f"ledger {ledger_id}", story)
    oracle.changed.clear()
