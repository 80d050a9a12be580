"""Problems of a cluster, their severity, and what to do about them. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Protocol

from ledger.values import counted

NAMED_MAX: Final = 5
"""A sentence names so many of what it counts."""
KIND_MAX: Final = 20
"""So many findings of one kind are told one by one."""


class Severity(IntEnum):
    NOTE = 1
    """No problem, but worth knowing."""
    WARNING = 2
    """An operator should act: copies are missing, or fewer failures are tolerated than planned."""
    CRITICAL = 3
    """Records cannot be written or read now, or may be lost."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    kind: str
    """In a word or two that stays the same, for scripts."""
    what: str
    """One sentence."""
    action: str
    """Advice; empty if there is nothing to be done."""
    bookies: tuple[str, ...] = ()
    """Those that are out of reach, if it says so."""
    due_to: frozenset[frozenset[str]] = frozenset()
    """It follows from that bookies are out of reach if of each of these groups one is; empty: it
    has another cause."""
    consequences: tuple["Finding", ...] = ()
    """The most severe first. A finding is as severe as the most severe of them."""

    @property
    def is_wrong(self) -> bool:
        return self.severity >= Severity.WARNING


class Facts(Protocol):
    """The results of one check."""

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong, if anything is."""

    def summary(self) -> str:
        """Return the whole in a few words, whether it is well or not."""

    def unseen(self) -> Iterator[str]:
        """Yield what was not looked at, as there was too much of it."""

    def to_dict(self) -> Mapping[str, object]:
        """Return the facts as values for JSON. Names stay the same."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The end of one check: *facts*, or the reason why there are none."""

    name: str
    facts: Facts | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    checked: tuple[CheckResult, ...]

    @property
    def findings(self) -> Sequence[Finding]:
        """The most severe first; of one kind and severity `KIND_MAX`, and then how many more. What
        two checks saw is reported once, and a consequence is listed below its finding."""
        return _ordered(_joined(finding for one in self.checked for finding in _findings(one)))

    @property
    def healthy(self) -> bool:
        """Return True if no problem was found in what was checked."""
        return not any(finding.is_wrong for finding in self.findings)

    @property
    def unseen(self) -> Sequence[str]:
        return [
            words for one in self.checked if one.facts is not None for words in one.facts.unseen()
        ]

    def to_dict(self) -> dict[str, object]:
        return {
            "healthy": self.healthy,
            "findings": [
                {
                    **_shown(finding),
                    "consequences": [_shown(consequence) for consequence in finding.consequences],
                }
                for finding in self.findings
            ],
            "not_looked_at": list(self.unseen),
            **{
                one.name: None if one.facts is None else dict(one.facts.to_dict())
                for one in self.checked
            },
        }


def named(names: Sequence[object]) -> str:
    """Return the first few of *names*, and how many there are besides."""
    more = len(names) - NAMED_MAX
    listed = ", ".join(map(str, names[:NAMED_MAX]))
    return f"{listed} and {more} more" if more > 0 else listed


def are(count: int, one: str) -> str:
    """Return "1 bookie is", "2 bookies are"."""
    return f"{counted(count, one)} {'is' if count == 1 else 'are'}"


def _shown(finding: Finding) -> dict[str, object]:
    return {
        "severity": finding.severity.name.lower(),
        "kind": finding.kind,
        "what": finding.what,
        "action": finding.action,
    }


def _joined(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield *findings*, each once; those that follow from others below one of these."""
    once = list(dict.fromkeys(findings))
    causes = [finding for finding in once if finding.bookies]
    out_of_reach = frozenset(bookie for cause in causes for bookie in cause.bookies)
    below: dict[Finding, list[Finding]] = {}
    for finding in once:
        if finding.due_to and not any(map(out_of_reach.isdisjoint, finding.due_to)):
            named_ones = frozenset[str]().union(*finding.due_to)
            cause = next(cause for cause in causes if not named_ones.isdisjoint(cause.bookies))
            below.setdefault(cause, []).append(finding)
    alone = set(once).difference(*below.values())
    for finding in once:
        if finding in alone:
            consequences = tuple(_ordered(below.get(finding, ())))
            severity = max(each.severity for each in (finding, *consequences))
            yield replace(finding, severity=severity, consequences=consequences)


def _ordered(findings: Iterable[Finding]) -> list[Finding]:
    kinds: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.severity, finding.kind), []).append(finding)
    most_severe_first = sorted(kinds.values(), key=lambda kind: -kind[0].severity)
    return [finding for kind in most_severe_first for finding in _bounded(kind)]


def _bounded(findings: Sequence[Finding]) -> Iterator[Finding]:
    yield from findings[:KIND_MAX]
    if len(findings) > KIND_MAX:
        what = f"{len(findings) - KIND_MAX} more are like the last one"
        yield replace(
            findings[-1], what=what, action="The JSON output of this command lists all of them."
        )


def _findings(one: CheckResult) -> Iterator[Finding]:
    if one.facts is not None:
        yield from one.facts.findings()
    else:
        yield Finding(
            Severity.CRITICAL,
            f"{one.name}-unknown",
            f"the state of {one.name.replace('_', ' ')} is unknown: {one.trouble}",
            "Fix that first, then run the check again.",
        )
