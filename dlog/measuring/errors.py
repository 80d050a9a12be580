"""Errors of measuring."""

from ledger.errors import RemoteError


class NotMeasured(RemoteError):
    def __init__(self, round_number: int, reason: str) -> None:
        super().__init__(
            f"round {round_number} could not be measured: {reason}. "
            "See what 'dlog status' says, and measure again."
        )
        self.round_number, self.reason = round_number, reason
