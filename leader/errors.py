"""Errors of the leader election.

LogError
|- CallerError
|  `- InvalidCampaign   the arguments of a campaign make no sense
`- RemoteError
   `- NotElected        the time given ran out, mostly because another leads
"""

from ledger.errors import CallerError, RemoteError


class InvalidCampaign(CallerError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot stand for election: {reason}")
        self.reason = reason


class NotElected(RemoteError):
    retryable = True

    def __init__(self, log: str, timeout_s: float, trouble: str = "") -> None:
        because = trouble or "another candidate leads: wait longer, or stop that one"
        super().__init__(f"not elected leader of {log!r} within {timeout_s:g} s; {because}")
        self.log, self.timeout_s, self.trouble = log, timeout_s, trouble
