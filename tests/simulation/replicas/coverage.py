"""What must have happened in a long run of replicas."""

from typing import Final

REQUIRED_OF_REPLICAS: Final = (
    "CommandOutcomeUnknown",
    "NotCaughtUp",
    "NotLeader",
    "command_answered",
    "command_forwarded",
    "command_refused",
    "follower_read",
    "forward_failed",
    "log_truncated",
    "replica_crashes",
    "replica_crashes_opening",
    "replica_pauses",
    "replica_read",
    "replica_resigned",
    "replica_restarted",
    "replica_restored",
    "replica_sleeps",
    "replica_woke_after_an_hour",
    "request_answered",
    "request_answered_twice",
    "request_repeated",
    "snapshot_damaged",
    "stranger_opened",
    "truncated_beside_a_replica_without_a_store",
)
