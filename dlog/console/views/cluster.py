"""The page of the cluster. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dlog.console.chart import Series, Spark, spark
from dlog.console.cluster_state import BookieSeen, ClusterSeen
from dlog.console.wording import UNKNOWN, moment, seconds, short, size
from dlog.health.bookies import BookieFacts
from dlog.health.findings import are
from dlog.health.servers import ServerFacts
from ledger.wire import bookie_pb2 as pb

CARDS_MAX: Final = 200
EVENTS_SHOWN: Final = 15
STALE_S: Final = 6.0
"""What was seen longer ago is told to be old: three rounds."""


@dataclass(frozen=True, slots=True)
class ProblemRow:
    severity: str
    """note, warning or critical."""
    what: str
    action: str
    since: str
    consequences: Sequence[str] = ()
    """What follows from it, each in a sentence."""


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    now: str
    spark: Spark


@dataclass(frozen=True, slots=True)
class Disk:
    text: str
    permille: int


@dataclass(frozen=True, slots=True)
class Card:
    bookie: str
    state: str
    """For people."""
    tone: str
    """good, note or wrong."""
    address: str
    about: str
    disks: Sequence[Disk]
    curves: Sequence[Curve]
    why: str


@dataclass(frozen=True, slots=True)
class Happened:
    at: str
    what: str


@dataclass(frozen=True, slots=True)
class ClusterPage:
    known: bool
    """Whether anything was seen yet."""
    stale: str
    """How old it is, if it is old."""
    healthy: bool
    problems: Sequence[ProblemRow]
    summaries: Sequence[tuple[str, str]]
    cards: Sequence[Card]
    left_out: int
    repair: Curve | None
    """How repair gets on; None: there is nothing to repair, or it is not known."""
    events: Sequence[Happened]


def cluster_page(seen: ClusterSeen, now: float) -> ClusterPage:
    known = seen.known
    servers = {each.bookie: each for each in seen.servers}
    age_s = None if seen.looked_at is None else now - seen.looked_at
    return ClusterPage(
        known=bool(seen.report.checked),
        stale=seconds(age_s) if age_s is not None and age_s > STALE_S else "",
        healthy=seen.report.healthy,
        problems=problems(seen, now),
        summaries=[
            (one.name, one.facts.summary() if one.facts is not None else UNKNOWN)
            for one in seen.report.checked
        ],
        cards=[
            card(each, servers.get(each.bookie), seen.bookies.get(each.bookie), now)
            for each in known[:CARDS_MAX]
        ],
        left_out=max(0, len(known) - CARDS_MAX),
        repair=repair(seen),
        events=happened(seen)[:EVENTS_SHOWN],
    )


def repair(seen: ClusterSeen) -> Curve | None:
    """Return how repair gets on, while ledgers lack copies."""
    found = seen.repairing
    if found is None or not found.ledgers:
        return None
    left = "" if found.left_s is None else f", about {seconds(found.left_s)} left"
    words = (
        f"{are(found.ledgers, 'ledger')} short of copies, {_per_s(found.bytes_per_s)} copied{left}"
    )
    return Curve("repair", words, spark(seen.repaired.points, _per_s))


def problems(seen: ClusterSeen, now: float) -> Sequence[ProblemRow]:
    """Return the problems, the most severe first, and for how long it has been seen."""
    found = []
    findings = seen.report.findings
    for finding in findings:
        silences = [
            seen.bookies[each].silent_since for each in finding.bookies if each in seen.bookies
        ]
        times = [at for at in (seen.seen_since(finding), *silences) if at is not None]
        lasting = seconds(now - min(times)) if times else ""
        consequences = [each.what for each in finding.consequences]
        found.append(
            ProblemRow(
                finding.severity.name.lower(), finding.what, finding.action, lasting, consequences
            )
        )
    missed = {bookie for finding in findings for bookie in finding.bookies}
    silent = [
        (name, now - each.silent_since)
        for name, each in seen.bookies.items()
        if each.silent_since is not None
        and name not in missed
        and seen.states.get(name) != "retired"
    ]
    said = [
        ProblemRow(
            "wrong",
            f"{name} has not answered for {seconds(for_s)}",
            "Is its process running, and is it reached from here? What was known stands below.",
            "",
        )
        for name, for_s in silent
    ]
    return [*said, *found]


def happened(seen: ClusterSeen, *, log: str = "") -> Sequence[Happened]:
    """Return what happened, the newest first; of one *log* if that is named."""
    return [
        Happened(moment(each.at_ms), each.what)
        for each in reversed(seen.events)
        if not log or each.log == log
    ]


def card(
    facts: BookieFacts, server: ServerFacts | None, seen: BookieSeen | None, now: float
) -> Card:
    status = server.status if server is not None else None
    silent = seen is not None and seen.silent_since is not None
    disks = [] if status is None else [each for each in status.directories if each.total_bytes]
    about = []
    if status is not None:
        about = [
            f"up {seconds(status.uptime_s)}",
            "1 ledger" if status.ledgers == 1 else f"{short(status.ledgers)} ledgers",
        ]
        about.append(f"version {status.version}")
    if facts.rack:
        about.append(f"rack {facts.rack}")
    state = "being emptied" if facts.leaving else facts.state
    why = "; ".join(facts.reasons) or facts.limbo or facts.damaged
    if silent and seen is not None and seen.silent_since is not None:
        why = f"has not answered for {seconds(now - seen.silent_since)}"
    elif server is not None and server.silent and not why:
        why = f"rates are not known: {server.silent}"
    return Card(
        bookie=facts.bookie,
        state=state if not silent or state == "retired" else f"{state}, silent",
        tone=_tone(facts, silent=silent),
        address=facts.address,
        about=" · ".join(about),
        disks=[disk(each, alone=len(disks) == 1) for each in disks],
        curves=() if seen is None or facts.retired else curves(seen),
        why=why,
    )


def disk(usage: pb.DirectoryUsage, *, alone: bool) -> Disk:
    """*alone*: the bookie has no other, so nobody has to be told which one it is."""
    text = f"{size(usage.free_bytes)} free of {size(usage.total_bytes)}"
    used = usage.total_bytes - usage.free_bytes
    return Disk(text if alone else f"{usage.place}: {text}", round(1000 * used / usage.total_bytes))


def _tone(facts: BookieFacts, *, silent: bool) -> str:
    if facts.retired:
        return "note"
    if facts.is_away or silent or facts.damaged:
        return "wrong"
    return "note" if facts.read_only or facts.leaving or facts.limbo else "good"


def curves(seen: BookieSeen) -> Sequence[Curve]:
    drawn: Sequence[tuple[str, Series, Callable[[float | None], str]]] = (
        ("written", seen.added, _per_s),
        ("read", seen.read, _per_s),
        ("sync", seen.sync, seconds),
    )
    return [
        Curve(name, shown(series.last), spark(series.points, shown))
        for name, series, shown in drawn
    ]


def _per_s(value: float | None) -> str:
    return UNKNOWN if value is None else f"{size(value)}/s"
