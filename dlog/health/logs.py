"""Logs that nobody leads, and deletions that do not get on. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dlog.health.signs import Gravity, Sign, counted, named


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsFacts:
    logs: int
    elections: int
    """Logs for which anybody ever stood for election."""
    looked_at: int
    """Of them."""
    led: int
    """Of those: with a leader."""
    leaderless: tuple[str, ...] = ()
    """Of those: without one, though the last writer did not close its last segment."""
    unread: tuple[str, ...] = ()
    """Without a leader, and their manifests cannot be read."""
    not_read: int = 0
    """Without a leader: manifests that were not read."""

    def signs(self) -> Iterator[Sign]:
        if self.leaderless:
            one = len(self.leaderless) == 1
            yield Sign(
                Gravity.WRONG,
                "log-without-leader",
                f"nobody leads {'log' if one else f'{len(self.leaderless)} logs:'} "
                f"{named(self.leaderless)}, and {'its' if one else 'their'} last writer did not "
                "close in order",
                "Start the application, or a standby of it. If nobody is to write it any more: "
                "'dlog log seal LOG'.",
            )
        if self.unread:
            yield Sign(
                Gravity.WRONG,
                "log-unreadable",
                f"what the metadata store has of {named(self.unread)} cannot be read",
                "'dlog log show LOG' says why.",
            )

    def summary(self) -> str:
        led = f"of {self.looked_at} with elections {self.led} have a leader"
        return f"{counted(self.logs, 'log')}; {led}"

    def unseen(self) -> Iterator[str]:
        if self.looked_at < self.elections:
            yield f"the elections of {self.elections - self.looked_at} more logs"
        if self.not_read:
            yield f"how {self.not_read} more logs without a leader were left"

    def shown(self) -> Mapping[str, object]:
        return {
            "logs": self.logs,
            "elections": self.elections,
            "looked_at": self.looked_at,
            "led": self.led,
            "without_leader": list(self.leaderless),
            "unreadable": list(self.unread),
        }
