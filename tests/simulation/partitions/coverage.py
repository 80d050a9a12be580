"""What must have happened in a long run of partitions."""

from typing import Final

REQUIRED_OF_PARTITIONS: Final = (
    "batch_acknowledged",
    "batch_sent_again",
    "duplicate_answered",
    "gateway_crashes",
    "gateway_crashes_opening",
    "gateway_pauses",
    "gateway_sleeps",
    "old_records_fetched",
    "partition_opened",
    "records_deleted",
    "records_fetched",
    "refused_not_leader_or_follower",
    "written_natively",
)
