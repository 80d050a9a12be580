"""What must have happened in a long run: a simulator that misses one of these proves less.

`make sim` over at least `SEEDS_MIN` seeds fails if any of them never did.
"""

from collections.abc import Mapping
from typing import Final

SEEDS_MIN: Final = 1000

FAULTS: Final = (
    "bookie_crashed",
    "bookie_crashed_at_start",
    "bookie_crashed_at_work",
    "bookie_killed",
    "bookie_restarted",
    "bookie_stopped_by_its_disk",
    "bookie_could_not_start",
    "connection_broken",
    "connection_reset",
    "bookie_moved",
    "disk_copied_back",
    "disk_full",
    "disk_lost",
    "disk_restored",
    "disk_rotted",
    "disk_unreadable",
    "loss_accepted",
    "lost_end_of_the_journal",
    "lost_index_files",
    "lost_newest_journal_file",
    "host_isolated",
    "host_paused",
    "message_corrupted",
    "message_cut_by_partition",
    "message_duplicated",
    "message_lost",
    "metadata_outage",
    "name_retired",
    "one_way_partition",
    "recoverer_crashed",
    "recoverer_woke_after_hours",
    "session_expired",
    "writer_crashed",
    "writer_paused",
    "writer_woke_after_hours",
)
BOOKIES: Final = (
    "add_bad_request",
    "add_conflict",
    "add_damaged",
    "add_fenced",
    "add_forged",
    "add_io_error",
    "add_repeated_late",
    "add_too_many_requests",
    "bookie_could_not_ask",
    "bookie_refused_to_start",
    "checkpoint",
    "cookie_check_refused",
    "copied_disk_refused",
    "copy_refused",
    "fenced",
    "journal_committed",
    "limbo_over",
    "limbo_settling",
    "long_poll_woke_up",
    "new_incarnation",
    "older_disk_refused",
    "read_io_error",
    "read_no_such_ledger",
    "read_ok",
    "read_unknown",
    "retired_name_refused",
    "torn_journal_replayed",
)
LEDGERS: Final = (
    "deletion_told_between_reads",
    "ensemble_change_delayed",
    "ensemble_change_wanted",
    "entry_written_back",
    "explicit_lac",
    "ledger_created",
    "ledger_creation_unknown",
    "ledger_deleted",
    "metadata_conflict",
    "metadata_gone",
    "metadata_write_unknown",
    "no_replacement",
    "partial_replacement",
    "quarantined_bookie_avoided",
    "quarantined_bookie_needed",
    "racks_mixed",
    "reader_reached_end",
    "recovered",
    "recoveries_raced",
    "recovery_ensemble_change",
    "recovery_failed_deleted",
    "recovery_failed_not_covered",
    "recovery_failed_not_enough_bookies",
    "recovery_failed_undecided",
    "unconfirmed_entry_read",
    "unconfirmed_entry_vanished",
    "writer_closed",
    "writer_failed_deleted",
    "writer_failed_fenced",
    "writer_failed_not_enough_bookies",
)
REQUIRED: Final = (*FAULTS, *BOOKIES, *LEDGERS)


def missing(marks: Mapping[str, int]) -> list[str]:
    """Return what never happened although it must have."""
    return [thing for thing in REQUIRED if not marks.get(thing)]
