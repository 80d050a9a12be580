"""Invariants of logs, one per file; each holds after every step.

| file | says |
|---|---|
| acknowledged_records_are_kept | the manifest lists the place of every acknowledged record |
| offsets_are_dense | acknowledged in order, without a gap, never two records at one offset |
| one_history_for_all_readers | what one was given at an offset everybody is, once |
| readers_go_forward | a reader never moves back or skips, and never fails for good |
| barriers_cover_acknowledgements | a barrier is not below what was acknowledged before it |
| refused_records_never_appear | "certainly not appended" is certain |
| one_writer_acknowledges | after an open nothing is acknowledged that an earlier writer got later |
| segment_numbers_are_used_once | one ledger per number; epochs grow |
| seals_tell_the_truth | a sealed segment is a CLOSED ledger, and what the manifest says of it |
| last_txids_are_exact | of seals, opens and writers: neither too low nor too high |
| unknown_outcomes_name_their_offsets | such a record is there, as its error says, or nowhere |
| manifests_only_move_forward | segments, trim point and seals never go back |
| trimmed_records_are_not_needed | nothing is trimmed that nobody gave up |
| retention_takes_what_it_may | whole segments, too old or too much; at the end all of them |
| ledgers_are_not_deleted_early | only what no manifest lists, or ever will |
| deletions_are_asked_for | who was asked to delete a log deletes that one, and nobody else does |
| segments_have_their_bytes | on bookies, or in an object that is what was sent |
| dropped_logs_are_fenced | each segment that was open, before it is deleted |
| dropped_logs_stay_dropped | no incarnation is overwritten by another or comes back |
| consumers_vanish_with_a_reason | no consumer does either |
| settings_change_as_asked | and what was not named stays |
| expected_offsets_are_met | what was meant for an offset is there or nowhere |
| append_many_is_whole | one call's records stay together, wholly or not at all |
| consumers_move_forward | a commit is never undone, nor of what nobody of the consumer was given |
| standbys_are_up_to_date | who is promoted has applied all that is in the log |
| degraded_ensembles_suffice | who is there suffices without those that are named and away |
| living_candidates_keep_their_nodes | a lifeline reports no death that did not happen |
| no_ledger_leaks_for_ever | at the end each ledger is a segment of a log |

Each has `broken(history) -> str | None`: None, or a sentence that says what is wrong; the last
three look at all logs at once. `check` calls them after every step, all but the last.
"""

from typing import Final

from tests.simulation.kernel import invariants
from tests.simulation.logs.oracle import LogOracle

AT_THE_END: Final = frozenset({"no_ledger_leaks_for_ever"})
OF_ALL_LOGS: Final = ("degraded_ensembles_suffice", "living_candidates_keep_their_nodes")
MODULES: Final = invariants.modules_of(__name__, __path__)
INVARIANTS_OF_ALL: Final = {name: MODULES[name].broken for name in OF_ALL_LOGS}
INVARIANTS: Final = {
    name: module.broken
    for name, module in MODULES.items()
    if name not in AT_THE_END and name not in OF_ALL_LOGS
}


def check(oracle: LogOracle, *, without: frozenset[str] = frozenset()) -> None:
    """Check all invariants of the logs that changed, *without* some. Raises `InvariantError`."""
    invariants.check(INVARIANTS_OF_ALL, "all logs", oracle)
    if not oracle.changed:
        return
    chosen = {name: broken for name, broken in INVARIANTS.items() if name not in without}
    for incarnation in oracle.changed:
        history = oracle.histories[incarnation]
        invariants.check(chosen, history.name, history)
    oracle.changed.clear()
