"""Errors of the offline tools.

CallerError
|- NotABookie           there is no directory, or nothing of a bookie in it
|- DataThere            a format was asked for where there is data
`- RebuildRefused       an index made now would answer "no such entry" where there was one
"""

from collections.abc import Sequence

from ledger.errors import CallerError


class NotABookie(CallerError):
    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(
            f"{directory} is no directory of a bookie: {reason}; give the directories that the "
            "bookie was started with"
        )
        self.directory, self.reason = directory, reason


class DataThere(CallerError):
    def __init__(self, directory: str, what: str) -> None:
        super().__init__(
            f"{directory} holds {what}; wipe it only if all of its ledgers have other replicas"
        )
        self.directory, self.what = directory, what


class RebuildRefused(CallerError):
    def __init__(self, reasons: Sequence[str], count: int) -> None:
        more = f"; and {count - len(reasons)} more" if count > len(reasons) else ""
        super().__init__(
            f"the index cannot be rebuilt, and nothing was changed: {'; '.join(reasons)}{more}"
        )
        self.reasons, self.count = tuple(reasons), count


class BookieRegistered(CallerError):
    def __init__(self, bookie: str) -> None:
        super().__init__(
            f"a bookie {bookie} is registered, so it runs, or ended less than its session's "
            "timeout ago; stop it, wait a moment, then try again"
        )
        self.bookie = bookie
