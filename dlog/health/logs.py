"""Logs without a leader, logs that cannot be opened for writing, and deletions that nobody
finishes. Pure.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from dlog.health.findings import Finding, Severity, named
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.quorum import all_covered
from ledger.values import counted


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
    own: int = 0
    """Logs that dlog writes itself, which `logs` leaves out."""

    def findings(self) -> Iterator[Finding]:
        if self.leaderless:
            one = len(self.leaderless) == 1
            yield Finding(
                Severity.WARNING,
                "log-without-leader",
                f"nobody leads {'log' if one else f'{len(self.leaderless)} logs:'} "
                f"{named(self.leaderless)}, and {'its' if one else 'their'} last writer did not "
                "close in order",
                "Start the application, or a standby of it. If the log is finished: 'dlog log "
                "seal LOG'.",
            )
        if self.unread:
            yield Finding(
                Severity.WARNING,
                "log-unreadable",
                f"the metadata of {named(self.unread)} cannot be read",
                "'dlog log show LOG' says why.",
            )

    def summary(self) -> str:
        led = f"of {self.looked_at} with elections {self.led} have a leader"
        own = f" and {self.own} of dlog's own" if self.own else ""
        return f"{counted(self.logs, 'log')}{own}; {led}"

    def unseen(self) -> Iterator[str]:
        if self.looked_at < self.elections:
            yield f"the elections of {counted(self.elections - self.looked_at, 'more log')}"
        if self.not_read:
            yield f"the manifests of {counted(self.not_read, 'more log')} without a leader"

    def to_dict(self) -> Mapping[str, object]:
        return {
            "logs": self.logs,
            "own_logs": self.own,
            "elections": self.elections,
            "looked_at": self.looked_at,
            "led": self.led,
            "without_leader": list(self.leaderless),
            "unreadable": list(self.unread),
        }


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a log cannot be opened for writing now."""

    reason: str
    away: tuple[str, ...] = ()
    """Bookies that would have to be there; empty: it is not for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningsFacts:
    """A takeover could recover the last segments of logs."""

    logs: int
    looked_at: int
    """Manifests that were read."""
    open: int
    """Of those: with a segment whose ledger is not closed."""
    asked: int
    """Of those: whose bookies were asked."""
    blocked: tuple[tuple[str, Obstacle], ...] = ()
    """Logs that cannot be opened now, and why."""

    def findings(self) -> Iterator[Finding]:
        for log, obstacle in self.blocked:
            yield Finding(
                Severity.CRITICAL,
                "log-cannot-be-opened",
                f"log {log} cannot be opened for writing: {obstacle.reason}",
                "Bring these bookies back. If that is impossible, or their claim cannot be true: "
                "'dlog ledger close-at LEDGER ENTRY' shows what each bookie holds, and closes "
                "the ledger.",
                due_to=frozenset({frozenset(obstacle.away)} if obstacle.away else ()),
            )

    def summary(self) -> str:
        return f"{counted(self.open, 'log')} with an open segment, {len(self.blocked)} blocked"

    def unseen(self) -> Iterator[str]:
        if self.looked_at < self.logs:
            yield f"the openings of {counted(self.logs - self.looked_at, 'more log')}"
        if self.asked < self.open:
            more = counted(self.open - self.asked, "more log")
            yield f"what bookies hold of the open segments of {more}"

    def to_dict(self) -> Mapping[str, object]:
        return {
            "logs": self.logs,
            "looked_at": self.looked_at,
            "open": self.open,
            "asked": self.asked,
            "blocked": [{"log": log, "reason": obstacle.reason} for log, obstacle in self.blocked],
        }


def blocked_by(
    ledger_id: int,
    metadata: LedgerMetadata,
    registered: Collection[str],
    claims: Mapping[str, tuple[int, int]],
) -> Obstacle | None:
    """Return why the ledger cannot be recovered now; None: nothing is known to be in the way.

    *claims*: by bookie that answered, the last entry that it can prove to be confirmed, and the
    last one that it holds."""
    if metadata.state is LedgerState.CLOSED:
        return None
    members = metadata.last_fragment.bookies
    there = [index for index, bookie in enumerate(members) if bookie in registered]
    if not all_covered(there, metadata.quorum):
        away = [bookie for bookie in members if bookie not in registered]
        verb = "is" if len(away) == 1 else "are"
        return Obstacle(
            f"of ledger {ledger_id} too few bookies are registered; "
            f"{named(away)} {verb} unavailable",
            tuple(away),
        )
    if claims.keys() >= set(members):
        confirmed = max(lac for lac, _ in claims.values())
        held = max(last for _, last in claims.values())
        if confirmed > max(held, metadata.last_fragment.first_entry - 1):
            who = [bookie for bookie, (lac, _) in claims.items() if lac > held]
            return Obstacle(
                f"of ledger {ledger_id} entry {confirmed} is claimed to be confirmed "
                f"(by {named(who)}), but no bookie holds an entry above {held}"
            )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionsFacts:
    logs: int
    looked_at: int
    """Manifests that were read."""
    janitor: str = ""
    """The janitor that applies retention now; empty: none."""
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

    def findings(self) -> Iterator[Finding]:
        begun = Severity.NOTE if self.janitor else Severity.WARNING
        action = (
            f"The janitor ({self.janitor}) finishes them with its next pass; if they stay, its log "
            "has the reason."
            if self.janitor
            else "'dlog janitor run --once' finishes them; run one for each namespace."
        )
        if self.half_deleted:
            yield Finding(
                begun,
                "logs-half-deleted",
                f"{counted(len(self.half_deleted), 'log')} half deleted: "
                f"{named(self.half_deleted)}",
                action,
            )
        if self.waiting:
            count = sum(ledgers for _, ledgers in self.waiting)
            yield Finding(
                begun,
                "ledgers-wait",
                f"{counted(count, 'trimmed ledger')} not deleted yet, of "
                f"{named([log for log, _ in self.waiting])}",
                action,
            )
        if self.retained and not self.janitor:
            yield Finding(
                Severity.NOTE,
                "no-janitor",
                f"{counted(self.retained, 'log')} with a limit of age or size, and no janitor: "
                "only their writers apply it",
                "Run 'dlog janitor run' for each namespace.",
            )
        for log, reason in self.implausible:
            yield Finding(
                Severity.WARNING,
                "implausible-times",
                f"log {log} has records with implausible times: {reason}",
                "Set timestamp_ms in milliseconds since 1970, or leave it out. Retention by age "
                "counts from when segments were written; reading by time finds other records.",
            )
        for log, percent, segments in self.filling:
            yield Finding(
                Severity.WARNING,
                "manifest-filling-up",
                f"the manifest of log {log} is {percent} % full, of "
                f"{counted(segments, 'segment')}; a full one gets no more, and staged batches of "
                "Spark fail (ManifestTooLarge)",
                "Remove whole segments with retention or 'dlog log truncate', and create fewer: "
                "with larger roll settings, and with small or less frequent Spark batches.",
            )
        if self.unread:
            yield Finding(
                Severity.WARNING,
                "log-unreadable",
                f"the metadata of {named(self.unread)} cannot be read",
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

    def to_dict(self) -> Mapping[str, object]:
        return {
            "logs": self.logs,
            "looked_at": self.looked_at,
            "janitor": self.janitor,
            "half_deleted": list(self.half_deleted),
            "waiting": dict(self.waiting),
            "with_retention": self.retained,
            "unreadable": list(self.unread),
        }
