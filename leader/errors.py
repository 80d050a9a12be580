"""Errors of the leader election.

LogError
|- CallerError
|  `- InvalidCampaign   the arguments of a campaign make no sense
`- RemoteError
   `- NotElected        the time given ran out while another led
"""

from ledger.errors import CallerError, RemoteError


class InvalidCampaign(CallerError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot stand for election: {reason}")
        self.reason = reason


class NotElected(RemoteError):
    retryable = True

    def __init__(self, log: str, timeout_s: float) -> None:
        super().__init__(
            f"not elected leader of {log!r} within {timeout_s:g} s; "
            "another candidate leads: wait longer, or stop that one"
        )
        self.log, self.timeout_s = log, timeout_s
