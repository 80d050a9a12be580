"""What must have happened in a long run of logs: a simulator that misses one of these proves less.

`make sim LOGS=1` over at least `tests.simulation.coverage.SEEDS_MIN` seeds fails if any never did.
"""

from collections.abc import Mapping
from typing import Final

FAULTS: Final = (
    "bookie_crashed",
    "bookie_crashed_at_work",
    "bookie_restarted",
    "client_session_lost",
    "connection_broken",
    "connection_reset",
    "consumer_crashed",
    "disk_full",
    "entry_logs_compacted",
    "ledgers_collected",
    "disk_lost",
    "disk_rotted",
    "host_isolated",
    "host_paused",
    "leader_crashes_at_work",
    "leader_crashes_between_bookies",
    "leader_crashes_opening",
    "leader_pauses_at_work",
    "leader_pauses_between_bookies",
    "leader_pauses_opening",
    "leader_sleeps_at_work",
    "leader_sleeps_between_bookies",
    "leader_sleeps_opening",
    "leader_woke_after_hours",
    "message_corrupted",
    "message_cut_by_partition",
    "message_duplicated",
    "message_lost",
    "metadata_call_unknown",
    "metadata_hid_a_log",
    "metadata_outage",
    "metadata_read_lagged",
    "one_way_partition",
    "session_expired",
    "store_restored",
    "restored_ledger_not_recovered",
)
OPENS: Final = (
    "opener_woke_after_hours",
    "term_lost_while_opening",
    *(
        f"opener_{fate}_at_{step}"
        for fate in ("crashes", "sleeps")
        for step in ("ReadManifest", "RecoverSegment", "CreateLedger", "WriteManifest")
    ),
)
"""An opener that stops between any two of its steps, for ever or for hours."""
WRITERS: Final = (
    "append_AppendOutcomeUnknown",
    "append_LogClosed",
    "append_UnexpectedOffset",
    "append_many",
    "append_LostOwnership",
    "death_noticed",
    "degraded_ensemble",
    "elected_after_healing",
    "leader_elected",
    "lifeline_refused",
    "lifeline_silent",
    "log_abandoned",
    "log_closed",
    "log_opened",
    "not_elected",
    "offset_expected",
    "open_failed_LostOwnership",
    "open_failed_MetadataUnavailable",
    "open_failed_NoSuchLog",
    "open_failed_NotEnoughBookies",
    "open_failed_RecoveryFailed",
    "record_acknowledged",
    "record_after_healing",
    "record_kept_by_healing",
    "record_sent_by_healing",
    "roll_requested",
    "driver_replaced",
    "sink_commit_LogSealed",
    "sink_commit_LostOwnership",
    "sink_commit_NoSuchLog",
    "sink_commit_UnitSuperseded",
    "sink_opened",
    "sink_resumed",
    "standby_promoted",
    "standby_resigned",
    "term_lost",
    "truncated_by_writer",
    "unit_adopted",
    "unit_already_committed",
    "unit_committed",
    "zombie_staged",
    "truncation_refused",
    "writer_LostOwnership",
    "writer_did_not_heal_in_time",
    "writer_never_heals",
    "writer_was_taken_over_before_it_healed",
    "writer_RollPostponed",
)
READERS: Final = (
    "consumer_ConsumerBusy",
    "consumer_committed",
    "consumer_opened",
    "consumer_reached_end",
    "reader_OffsetOutOfRange",
    "reader_ended_with_a_sealed_log",
    "reader_lost_its_log",
    "reader_reached_end",
    "reader_restarted",
    "reader_trimmed",
    "records_read",
)
ADMINISTRATORS: Final = (
    "consumer_deleted",
    "consumer_reset",
    "log_deleted",
    "log_sealed",
    "settings_changed",
    "janitor_was_lied_to",
    "orphan_swept",
    "truncated_by_admin",
    "truncated_by_keeping",
)
REQUIRED_OF_LOGS: Final = (*FAULTS, *OPENS, *WRITERS, *READERS, *ADMINISTRATORS)


def missing_of_logs(marks: Mapping[str, int]) -> list[str]:
    """Return what never happened although it must have."""
    return [thing for thing in REQUIRED_OF_LOGS if not marks.get(thing)]
