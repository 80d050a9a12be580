"""What must have happened in a long run of gateways."""

from typing import Final

REQUIRED_OF_GATEWAYS: Final = (
    "batch_acknowledged",
    "batch_sent_again",
    "death_noticed",
    "gateway_crashes",
    "gateway_crashes_opening",
    "gateway_does_not_lead",
    "gateway_pauses",
    "gateway_registered",
    "group_not_coordinator",
    "group_rebalance_in_progress",
    "member_crashed",
    "member_left",
    "member_settled",
    "offsets_committed",
    "offsets_fetched",
    "partition_opened",
    "session_expired",
)
