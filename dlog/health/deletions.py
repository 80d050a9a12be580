"""Deletions that have begun, and whether anybody finishes them. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dlog.health.signs import Gravity, Sign, named
from ledger.values import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionsFacts:
    logs: int
    looked_at: int
    """Manifests that were read."""
    janitor: str = ""
    """Who applies retention now; empty: nobody."""
    half_deleted: tuple[str, ...] = ()
    """Logs whose deletion has begun."""
    waiting: tuple[tuple[str, int], ...] = ()
    """Logs, and how many of their ledgers are trimmed away and not deleted yet."""
    retained: int = 0
    """Logs that have a limit of age or size."""
    unread: tuple[str, ...] = ()
    implausible: tuple[tuple[str, str], ...] = ()
    """Logs with records of times that cannot be right, and what is wrong with them."""
    filling: tuple[tuple[str, int, int], ...] = ()
    """Logs whose manifest is half full: how many percent of it, by how many segments."""

    def signs(self) -> Iterator[Sign]:
        begun = Gravity.NOTE if self.janitor else Gravity.WRONG
        action = (
            f"The janitor ({self.janitor}) finishes them with its next pass; if they stay, its log "
            "says why."
            if self.janitor
            else "'dlog janitor run --once' finishes them; let one run with each namespace."
        )
        if self.half_deleted:
            yield Sign(
                begun,
                "logs-half-deleted",
                f"{counted(len(self.half_deleted), 'log')} half deleted: "
                f"{named(self.half_deleted)}",
                action,
            )
        if self.waiting:
            count = sum(ledgers for _, ledgers in self.waiting)
            yield Sign(
                begun,
                "ledgers-wait",
                f"{counted(count, 'trimmed ledger')} not deleted yet, of "
                f"{named([log for log, _ in self.waiting])}",
                action,
            )
        if self.retained and not self.janitor:
            yield Sign(
                Gravity.NOTE,
                "no-janitor",
                f"{counted(self.retained, 'log')} with a limit of age or size, and no janitor: "
                "only their writers apply it",
                "Run 'dlog janitor run' with each namespace.",
            )
        for log, reason in self.implausible:
            yield Sign(
                Gravity.WRONG,
                "implausible-times",
                f"log {log} has records with implausible times: {reason}",
                "Give timestamp_ms in milliseconds since 1970, or leave it out. Retention by age "
                "counts from when segments were written; reading by time finds other records.",
            )
        for log, percent, segments in self.filling:
            yield Sign(
                Gravity.WRONG,
                "manifest-filling-up",
                f"the manifest of log {log} is {percent} % full, of "
                f"{counted(segments, 'segment')}; a full one gets no more, and staged batches of "
                "Spark fail (ManifestTooLarge)",
                "Let retention or 'dlog log truncate' take whole segments away, and make fewer: by "
                "larger roll settings, and by Spark batches that are small, or rarer.",
            )
        if self.unread:
            yield Sign(
                Gravity.WRONG,
                "log-unreadable",
                f"what the metadata store has of {named(self.unread)} cannot be read",
                "'dlog log show LOG' says why.",
            )

    def summary(self) -> str:
        by = f"janitor {self.janitor}" if self.janitor else "no janitor"
        waiting = sum(ledgers for _, ledgers in self.waiting)
        return (
            f"{counted(len(self.half_deleted), 'log')} half deleted, "
            f"{counted(waiting, 'ledger')} to be deleted; {by}"
        )

    def unseen(self) -> Iterator[str]:
        if self.looked_at < self.logs:
            yield f"the manifests of {counted(self.logs - self.looked_at, 'more log')}"

    def shown(self) -> Mapping[str, object]:
        return {
            "logs": self.logs,
            "looked_at": self.looked_at,
            "janitor": self.janitor,
            "half_deleted": list(self.half_deleted),
            "waiting": dict(self.waiting),
            "with_retention": self.retained,
            "unreadable": list(self.unread),
        }
