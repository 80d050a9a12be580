"""Ledgers that lack copies, and who makes them. Pure.

A ledger is marked once somebody has seen what it lacks: a writer at once, the auditor after its
delay. So beside the marks some ledgers' metadata are read while bookies are away.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from dlog.health.findings import Finding, Severity, are, named
from ledger.values import counted

SAMPLE_MAX: Final = 2_000
"""So many ledgers are looked at for bookies that are away: half of them the newest."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairFacts:
    enabled: bool = True
    auditor: str = ""
    """Empty: there is none."""
    alarm: str = ""
    """Why the last audit marked nothing."""
    workers: int = 0
    marked: int = 0
    """Ledgers that are known to lack copies."""
    looked_at: int = 0
    """Marks that were read; what follows counts them."""
    urgent: int = 0
    deferred: int = 0
    """Marks with a failed attempt."""
    deferred_why: tuple[str, ...] = ()
    """Reasons of those that failed, each once."""
    lost: tuple[int, ...] = ()
    """Ledgers with entries that nobody has."""
    differing: tuple[int, ...] = ()
    """Ledgers of which two bookies have different whole frames of an entry."""
    lacking: tuple[frozenset[str], ...] = ()
    """The bookies that each of the marks that were read names, each group once. Nobody can clear a
    mark while one of its bookies is away."""
    away: tuple[str, ...] = ()
    """Bookies that are known and not registered."""
    ledgers: int = 0
    """All there are; counted only while bookies are away."""
    sampled: int = 0
    """Of them: read for the bookies that they name."""
    exposed: int = 0
    """Of those: with entries on a bookie that is away."""
    short: int = 0
    """Of those: with entries of which fewer than Qa bookies are there."""

    def findings(self) -> Iterator[Finding]:
        yield from self._of_loss()
        if self.alarm:
            yield Finding(
                Severity.CRITICAL,
                "audit-alarm",
                f"repair marks nothing: {self.alarm}",
                "The usual cause is a network or a metadata store that is cut off: bring the "
                "bookies back first.",
                due_to=self._due_to(exposed=True),
            )
        if self.urgent or self.short:
            count = max(self.urgent, self.short)
            yield Finding(
                Severity.CRITICAL,
                "copies-short",
                f"{are(count, 'ledger')} down to fewer copies than are acknowledged of an entry",
                "One more loss may be permanent. Bring back the unavailable bookies, and stop "
                "none; 'dlog ledger underreplicated' lists the ledgers.",
                due_to=self._due_to(marked=bool(self.urgent), exposed=bool(self.short)),
            )
        if self.marked:
            yield Finding(
                Severity.WARNING,
                "underreplicated",
                f"{are(self.marked, 'ledger')} known to be underreplicated{self._held_up()}",
                "'dlog autorecovery status' shows the progress of repair.",
                due_to=self._due_to(marked=True),
            )
        if self.exposed and not self.marked:
            yield Finding(
                Severity.WARNING,
                "copies-away",
                f"{self.exposed} of {self.sampled} ledgers that were checked have a copy on an "
                f"unavailable bookie ({named(self.away)})",
                "Autorecovery makes copies elsewhere once the bookie counts as lost: see 'dlog "
                "autorecovery status' for the delay, and bring it back before.",
                due_to=self._due_to(exposed=True),
            )
        yield from self._of_nobody()

    def _due_to(self, *, marked: bool = False, exposed: bool = False) -> frozenset[frozenset[str]]:
        """Return the bookies that have to do with what is *marked*, and with what is *exposed*."""
        away = (frozenset(self.away),) if exposed and self.away else ()
        return frozenset((self.lacking if marked else ()) + away)

    def _of_loss(self) -> Iterator[Finding]:
        if self.lost:
            yield Finding(
                Severity.CRITICAL,
                "entries-lost",
                f"no available bookie has some entries of {_ledgers(self.lost)}",
                "Bring back the bookies that held them: 'dlog bookie where LEDGER' names them.",
            )
        if self.differing:
            yield Finding(
                Severity.CRITICAL,
                "copies-differ",
                f"two bookies have different bytes for entries of {_ledgers(self.differing)}",
                "'dlog log verify' reports which differ from the majority; an operator has to "
                "decide.",
            )

    def _of_nobody(self) -> Iterator[Finding]:
        """Findings that nobody repairs: wrong only if there is something to be repaired."""
        marked, exposed = bool(self.marked), bool(self.exposed)
        severity = Severity.WARNING if marked or exposed else Severity.NOTE
        due_to = self._due_to(marked=marked, exposed=exposed)
        if not self.enabled:
            yield Finding(
                severity,
                "repair-off",
                "repair is disabled",
                "'dlog autorecovery enable' resumes it.",
                due_to=due_to,
            )
        if not self.auditor:
            yield Finding(
                severity,
                "no-auditor",
                "no auditor looks for underreplicated ledgers",
                "Run 'dlog autorecovery start' on a machine or two.",
                due_to=due_to,
            )

    def _held_up(self) -> str:
        if not self.deferred:
            return ""
        return f"; the repair of {self.deferred} was postponed: {named(self.deferred_why)}"

    def summary(self) -> str:
        by = f"auditor {self.auditor}" if self.auditor else "no auditor"
        off = "" if self.enabled else ", disabled"
        known = counted(self.marked, "ledger")
        return f"{known} known to be underreplicated; {by}, {self.workers} at work{off}"

    def unseen(self) -> Iterator[str]:
        if self.looked_at < self.marked:
            more = counted(self.marked - self.looked_at, "more marked ledger")
            yield f"what is lacking of {more}"
        if self.sampled < self.ledgers:
            yield f"the bookies of {counted(self.ledgers - self.sampled, 'more ledger')}"

    def to_dict(self) -> Mapping[str, object]:
        return {
            "enabled": self.enabled,
            "auditor": self.auditor,
            "alarm": self.alarm,
            "workers": self.workers,
            "underreplicated": self.marked,
            "looked_at": self.looked_at,
            "urgent": self.urgent,
            "deferred": self.deferred,
            "with_lost_entries": list(self.lost),
            "with_different_copies": list(self.differing),
            "ledgers": self.ledgers,
            "sampled": self.sampled,
            "with_copies_away": self.exposed,
            "short_of_copies": self.short,
        }


def sample(ids: Sequence[_T], at_most: int = SAMPLE_MAX) -> list[_T]:
    """Return *at_most* of *ids*, which ascend: the newest, and others evenly from all before."""
    if len(ids) <= at_most:
        return list(ids)
    newest = ids[len(ids) - at_most // 2 :]
    before, count = len(ids) - len(newest), at_most - len(newest)
    return [*(ids[before * at // count] for at in range(count)), *newest]


def _ledgers(ids: Sequence[int]) -> str:
    return f"ledger{'s' if len(ids) > 1 else ''} {named(ids)}"
