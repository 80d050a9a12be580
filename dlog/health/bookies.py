"""Which bookies are known, which of them are there, and in what state. Pure.

A few that do not take entries are asked why, over the ports of operators.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dlog.health.findings import Finding, Severity, are, named
from ledger.feature_level import FIRST, LEVEL_MAX
from ledger.quorum import Quorum
from ledger.values import counted

BY_OPERATOR: Final = "an operator said so"
"""As a bookie says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieFacts:
    bookie: str
    address: str = ""
    rack: str = ""
    registered: bool = True
    read_only: bool = False
    leaving: bool = False
    """It is to be emptied."""
    retired: bool = False
    """Its data were given up."""
    limbo: str = ""
    damaged: str = ""
    """Why what stands of it in the metadata store cannot be read."""
    reasons: tuple[str, ...] = ()
    """For being read-only, as it says."""
    silent: str = ""
    """Why it did not say."""
    reads: int = LEVEL_MAX
    """The highest level of the cluster that it can read."""

    @property
    def state(self) -> str:
        if not self.registered:
            return "retired" if self.retired else "away"
        return "read-only" if self.read_only else "writable"

    @property
    def is_away(self) -> bool:
        return not self.registered and not self.retired


@dataclass(frozen=True, slots=True, kw_only=True)
class BookiesFacts:
    bookies: tuple[BookieFacts, ...]
    left_out: int = 0
    """Names that were not looked at."""
    not_asked: int = 0
    """Of those that are read-only: why was not asked."""
    quorum: Quorum = field(default_factory=Quorum)
    """Of a log without settings of its own."""
    level: int = FIRST
    """Of the cluster."""

    def findings(self) -> Iterator[Finding]:
        yield from self._of_away()
        for bookie in self.bookies:
            yield from _findings_of(bookie)
            if bookie.registered and bookie.reads < self.level:
                yield Finding(
                    Severity.WARNING,
                    "bookie-too-old",
                    f"bookie {bookie.bookie} reads levels up to {bookie.reads}, and the cluster is "
                    f"at level {self.level}",
                    "Upgrade its program to the current release.",
                )
        yield from self._of_too_few()

    def _of_away(self) -> Iterator[Finding]:
        """Findings of bookies that are not there. If none is, another finding says so."""
        if any(bookie.registered for bookie in self.bookies):
            missed = [each for each in self.bookies if each.is_away]
            if dead := [(each.bookie, each.address) for each in missed if not each.leaving]:
                yield away_finding(dead)
            for each in missed:
                if each.leaving:
                    yield away_finding([(each.bookie, each.address)], leaving=True)

    def _of_too_few(self) -> Iterator[Finding]:
        """Findings of the whole. A cluster that never had as many bookies as a log wants by
        default is for other logs."""
        there = [bookie for bookie in self.bookies if bookie.registered]
        writable = sum(not each.read_only for each in there)
        planned = sum(not each.retired for each in self.bookies)
        away = tuple(each.bookie for each in self.bookies if each.is_away)
        quorum = self.quorum

        def due_to_away(wanted: int) -> frozenset[frozenset[str]]:
            """Return who is away, if nothing but that leaves fewer than *wanted* writable."""
            return frozenset({frozenset(away)} if writable + len(away) >= wanted else ())

        if not there:
            known = (
                f"{are(planned, 'bookie')} known ({named(away)})"
                if planned
                else "none was ever started"
            )
            yield Finding(
                Severity.CRITICAL,
                "no-bookie",
                f"no bookie is registered: {known}",
                "Start the bookies: with 'dlog up' for a local cluster, else with 'dlog bookie "
                "start'.",
                bookies=away,
            )
        elif not writable or writable < quorum.ack <= planned:
            yield Finding(
                Severity.CRITICAL,
                "nothing-written",
                f"{writable} of {counted(len(there), 'registered bookie')} accept new entries: "
                f"logs that need {quorum.ack} acknowledgements, the default, cannot be written",
                "Bring bookies back, and find out why others are read-only.",
                due_to=due_to_away(max(1, quorum.ack)),
            )
        elif writable < quorum.ensemble:
            yield Finding(
                Severity.WARNING if planned >= quorum.ensemble else Severity.NOTE,
                "few-bookies",
                f"{are(writable, 'bookie')} writable, and by default each segment of a log needs "
                f"{quorum.ensemble}",
                "Segments start with fewer copies, or wait for bookies, depending on the "
                "settings of their log: bring bookies back, or start new ones.",
                due_to=due_to_away(quorum.ensemble),
            )

    def summary(self) -> str:
        counts: dict[str, int] = {}
        for bookie in self.bookies:
            counts[bookie.state] = counts.get(bookie.state, 0) + 1
        states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        return f"{len(self.bookies)} known: {states}" if self.bookies else "none is known"

    def unseen(self) -> Iterator[str]:
        if self.left_out:
            yield counted(self.left_out, "more bookie")
        if self.not_asked:
            yield f"why {are(self.not_asked, 'more bookie')} read-only"

    def to_dict(self) -> Mapping[str, object]:
        return {
            "bookies": [
                {
                    "bookie": bookie.bookie,
                    "address": bookie.address,
                    "rack": bookie.rack,
                    "state": bookie.state,
                    "leaving": bookie.leaving,
                    "limbo": bookie.limbo,
                    "reasons": list(bookie.reasons),
                }
                for bookie in self.bookies
            ]
        }


def away_finding(missed: Sequence[tuple[str, str]], *, leaving: bool = False) -> Finding:
    """Return the finding that known bookies are missing. *missed*: each with its last address,
    which may be empty; one, if it is *leaving*."""
    names = tuple(bookie for bookie, _ in missed)
    places = named([f"{name} (last at {at})" if at else name for name, at in missed])
    if leaving:
        action = f"'dlog bookie decommission {names[0]}' continues that, or retires its name."
    elif len(missed) == 1:
        action = (
            "Start it again. If its data are gone: 'dlog bookie recover "
            f"{names[0]}', or wait for repair."
        )
    else:
        action = (
            "Start them again. If the data of one are gone: 'dlog bookie recover BOOKIE', or wait "
            "for repair."
        )
    what = (
        f"bookie {places} is known and not registered: it does not run, or does not reach the "
        "metadata store"
        if len(missed) == 1
        else f"{len(missed)} bookies are known and not registered: {places}; they do not run, or "
        "do not reach the metadata store"
    )
    return Finding(
        Severity.NOTE if leaving else Severity.WARNING, "bookie-away", what, action, bookies=names
    )


def _findings_of(each: BookieFacts) -> Iterator[Finding]:
    if each.damaged:
        yield Finding(
            Severity.WARNING,
            "bookie-unreadable",
            f"the metadata of bookie {each.bookie} cannot be read: {each.damaged}",
            "No client uses it. Restart it with the newest version that runs in the cluster.",
        )
    if each.limbo:
        yield Finding(
            Severity.WARNING,
            "bookie-in-limbo",
            f"bookie {each.bookie} is {each.limbo}",
            "Keep the other bookies up until limbo ends by itself: see 'in limbo' in "
            "docs/operations.md.",
        )
    if each.registered and each.read_only:
        yield _read_only_finding(each)


def _read_only_finding(each: BookieFacts) -> Finding:
    ordered = each.leaving or each.reasons == (BY_OPERATOR,)
    if each.leaving:
        why, action = "it is being decommissioned", f"See 'dlog bookie decommission {each.bookie}'."
    elif each.reasons:
        why = "; ".join(each.reasons)
        action = (
            f"'dlog bookie readonly off {each.bookie}' lets it accept new entries again."
            if ordered
            else "Free space or replace the disk; then it accepts entries again. Writers use "
            "other bookies meanwhile."
        )
    else:
        why = (
            f"the reason is unknown ({each.silent})"
            if each.silent
            else "the reason was not queried"
        )
        action = f"'dlog bookie status {each.bookie}' queries it."
    return Finding(
        Severity.NOTE if ordered else Severity.WARNING,
        "bookie-read-only",
        f"bookie {each.bookie} accepts no new entries: {why}",
        action,
    )
