"""Checks all invariants of the logs about which anything was reported in a step."""

from collections.abc import Callable

from tests.simulation.logs.invariants import (
    acknowledged_records_are_kept,
    append_many_is_whole,
    barriers_cover_acknowledgements,
    consumers_move_forward,
    consumers_vanish_with_a_reason,
    degraded_ensembles_suffice,
    deletions_are_asked_for,
    dropped_logs_are_fenced,
    dropped_logs_stay_dropped,
    expected_offsets_are_met,
    last_txids_are_exact,
    ledgers_are_not_deleted_early,
    living_candidates_keep_their_nodes,
    manifests_only_move_forward,
    offsets_are_dense,
    one_history_for_all_readers,
    one_writer_acknowledges,
    readers_go_forward,
    receipts_never_fall,
    refused_records_never_appear,
    retention_takes_what_it_may,
    seals_tell_the_truth,
    segment_numbers_are_used_once,
    settings_change_as_asked,
    standbys_are_up_to_date,
    trimmed_records_are_not_needed,
    units_are_in_once,
    unknown_outcomes_name_their_offsets,
)
from tests.simulation.logs.oracle import LogHistory, LogOracle
from tests.simulation.stepping import InvariantError

INVARIANTS: dict[str, Callable[[LogHistory], str | None]] = {
    module.__name__.rpartition(".")[2]: module.broken
    for module in (
        one_writer_acknowledges,
        manifests_only_move_forward,
        segment_numbers_are_used_once,
        seals_tell_the_truth,
        last_txids_are_exact,
        unknown_outcomes_name_their_offsets,
        acknowledged_records_are_kept,
        offsets_are_dense,
        one_history_for_all_readers,
        readers_go_forward,
        refused_records_never_appear,
        trimmed_records_are_not_needed,
        retention_takes_what_it_may,
        ledgers_are_not_deleted_early,
        deletions_are_asked_for,
        dropped_logs_are_fenced,
        dropped_logs_stay_dropped,
        settings_change_as_asked,
        expected_offsets_are_met,
        consumers_vanish_with_a_reason,
        append_many_is_whole,
        consumers_move_forward,
        barriers_cover_acknowledgements,
        standbys_are_up_to_date,
        units_are_in_once,
        receipts_never_fall,
    )
}

INVARIANTS_OF_ALL: dict[str, Callable[[LogOracle], str | None]] = {
    "degraded_ensembles_suffice": degraded_ensembles_suffice.broken,
    "living_candidates_keep_their_nodes": living_candidates_keep_their_nodes.broken,
}


def check(oracle: LogOracle, *, without: frozenset[str] = frozenset()) -> None:
    """Check all invariants of the logs that changed, *without* some. Raises `InvariantError`."""
    for name, of_all in INVARIANTS_OF_ALL.items():
        story = of_all(oracle)
        if story is not None:
            raise InvariantError(name, "all logs", story)
    if not oracle.changed:
        return
    for incarnation in oracle.changed:
        history = oracle.histories[incarnation]
        for name, broken in INVARIANTS.items():
            story = None if name in without else broken(history)
            if story is not None:
                raise InvariantError(name, history.name, story)
    oracle.changed.clear()
