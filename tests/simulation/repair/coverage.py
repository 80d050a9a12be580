"""What must have happened in a long run of repairs."""

from collections.abc import Mapping
from typing import Final

EFFECTS: Final = (
    "TakeLock",
    "ReadMark",
    "ReadLedger",
    "Look",
    "ReadFrames",
    "SendFrames",
    "WriteSwap",
    "RecoverLedger",
    "WriteMark",
    "DeleteMark",
    "Unlock",
)
REQUIRED_OF_REPAIR: Final = (
    *(f"repair_{effect}" for effect in EFFECTS),
    *(f"worker_stopped_at_{effect}" for effect in EFFECTS),
    "asker_answered",
    "asker_slept_within_a_question",
    "auditor_crashes",
    "auditor_sleeps",
    "auditor_woke_after_hours",
    "bookie_away",
    "bookie_forgotten",
    "bookie_leaving",
    "disk_lost",
    "entry_copied",
    "entry_logs_compacted",
    "leaving_crashes",
    "leaving_sleeps",
    "ledger_marked",
    "ledger_unmarked",
    "ledgers_collected",
    "left_empty",
    "left_retired",
    "used_name_refused",
    "emptied_bookie_stands_still",
    "emptied_bookie_woke",
    "emptied_bookie_ended",
    "left_too_few",
    "metadata_read_lagged",
    "moved_under_a_sleeper",
    "name_retired",
    "repair_busy",
    "repair_deferred",
    "repair_done",
    "client_session_lost",
    "worker_crashes",
    "worker_sleeps",
    "worker_woke_after_hours",
)


def missing_of_repair(marks: Mapping[str, int]) -> list[str]:
    """Return what never happened although it must have."""
    return [thing for thing in REQUIRED_OF_REPAIR if not marks.get(thing)]
