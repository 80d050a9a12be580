"""What the console has seen of the cluster, and what happened between two looks. Pure.

Bounded: series and events keep the last of each, and a bookie or a log that is gone for long is
forgotten with the rest of what was known of it.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dlog.console.chart import Rate, Series
from dlog.health.bookies import BookieFacts, BookiesFacts
from dlog.health.findings import Finding, Report
from dlog.health.servers import ServerFacts, ServersFacts
from dlog.manifest import Manifest
from dlog.protocol.consumer_steps import ConsumerState
from dlog.protocol.replica_record import ReplicaRecord

SignKey = tuple[str, str]
"""Kind and sentence of what is wrong."""

EVENTS_MAX: Final = 200
TAKEOVERS_MAX: Final = 50
"""Of one log."""
BOOKIES_MAX: Final = 1_000
"""With series of their own."""
CONSUMERS_MAX: Final = 100
"""Of one log, with series of their own."""
REPLICAS_MAX: Final = 100
"""Of one log."""


@dataclass(frozen=True, slots=True)
class Event:
    at_ms: int
    what: str
    """One sentence."""
    log: str = ""
    bookie: str = ""


@dataclass(frozen=True, slots=True)
class Takeover:
    at_ms: int
    """When it was seen."""
    epoch: int
    owner: str
    before: int
    """The epoch that was seen last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLook:
    """One look at one log."""

    manifest: Manifest | None = None
    first_offset: int = 0
    next_offset: int | None = None
    """None: it is not known where the log ends."""
    record_bytes: float = 1.0
    """Average size of a record."""
    leader: str = ""
    leads_since_ms: int = 0
    consumers: Sequence[tuple[str, ConsumerState]] = ()
    replicas: Sequence[ReplicaRecord] = ()
    """Of a state machine, that run now; the leader first."""
    trouble: str = ""
    """Why it is not known, or not all of it."""

    @property
    def records(self) -> int | None:
        """How many can be read."""
        return None if self.next_offset is None else self.next_offset - self.first_offset

    @property
    def bytes(self) -> int | None:
        """Payload bytes that can be read; of an open segment an estimate."""
        if self.manifest is None or self.next_offset is None:
            return None
        sealed = [each for each in self.manifest.segments if each.sealed is not None]
        stored = self.manifest.sealed_bytes
        ends = [end for each in sealed if (end := each.end_offset) is not None]
        begun = max(ends, default=self.first_offset)
        return stored + round(max(0, self.next_offset - begun) * self.record_bytes)

    def lag(self, state: ConsumerState) -> int | None:
        if self.next_offset is None:
            return None
        return max(0, self.next_offset - max(state.position, self.first_offset))

    @property
    def worst_lag(self) -> int | None:
        lags = [lag for _, state in self.consumers if (lag := self.lag(state)) is not None]
        return max(lags, default=None)


@dataclass(slots=True)
class LogSeen:
    """One log that somebody looks at."""

    look: LogLook = field(default_factory=LogLook)
    looked: bool = False
    rate: Series = field(default_factory=Series)
    """Records appended a second."""
    lags: dict[str, Series] = field(default_factory=dict)
    """Of each consumer, in records."""
    takeovers: deque[Takeover] = field(default_factory=lambda: deque(maxlen=TAKEOVERS_MAX))
    _growth: Rate = field(default_factory=Rate)

    def take_in(self, log: str, look: LogLook, *, now: float, now_ms: int) -> list[Event]:
        """Take in a *look*; return what has happened since the one before."""
        before, self.look = self.look, look
        first, self.looked = not self.looked, True
        self.rate.add(self._growth.of(look.next_offset, now), now)
        lags = {name: look.lag(state) for name, state in look.consumers[:CONSUMERS_MAX]}
        self.lags = {name: self.lags.get(name) or Series() for name in lags}
        for name, lag in lags.items():
            self.lags[name].add(lag, now)
        if look.manifest is None:  # what is known of it stays on the page, with what is wrong
            self.look = replace(before, trouble=look.trouble)
            return []
        if first:
            return []
        return list(self._happened(log, before, look, now_ms))

    def _happened(self, log: str, before: LogLook, look: LogLook, now_ms: int) -> Sequence[Event]:
        assert look.manifest is not None
        events = []
        old = before.manifest
        if old is not None and old.incarnation == look.manifest.incarnation:
            if look.manifest.epoch > old.epoch:
                owner = look.manifest.owner
                self.takeovers.append(Takeover(now_ms, look.manifest.epoch, owner, old.epoch))
                what = f"{log} was taken over by {owner or 'a writer'}: epoch {old.epoch} → "
                events.append(Event(now_ms, f"{what}{look.manifest.epoch}", log=log))
            if look.manifest.sealed and not old.sealed:
                events.append(Event(now_ms, f"{log} was sealed", log=log))
        if look.leader != before.leader:
            now = f"{log} is led by {look.leader} now"
            gone = f"{log} has no leader any more"
            events.append(Event(now_ms, now if look.leader else gone, log=log))
        return events


@dataclass(slots=True)
class BookieSeen:
    """Numbers of one bookie over time."""

    added: Series = field(default_factory=Series)
    """Bytes a second."""
    read: Series = field(default_factory=Series)
    """Bytes a second."""
    sync: Series = field(default_factory=Series)
    """Seconds that one sync of a journal took, on average since the look before."""
    entries_per_s: float | None = None
    silent_since: float | None = None
    """When it did not answer for the first time; None: it answers."""
    _added: Rate = field(default_factory=Rate)
    _entries: Rate = field(default_factory=Rate)
    _read: Rate = field(default_factory=Rate)
    _syncs: Rate = field(default_factory=Rate)
    _sync_s: Rate = field(default_factory=Rate)

    def take_in(self, server: ServerFacts | None, now: float) -> None:
        status = server.status if server is not None else None
        work = status.work if status is not None and status.HasField("work") else None
        self.added.add(self._added.of(work.added_bytes if work else None, now), now)
        self.read.add(self._read.of(work.read_bytes if work else None, now), now)
        self.entries_per_s = self._entries.of(work.added_entries if work else None, now)
        syncs = self._syncs.of(work.journal_syncs if work else None, now)
        sync_s = self._sync_s.of(work.journal_sync_s if work else None, now)
        self.sync.add(sync_s / syncs if syncs and sync_s is not None else None, now)
        if server is not None and server.reached:
            self.silent_since = None
        elif self.silent_since is None:
            self.silent_since = now


@dataclass(frozen=True, slots=True)
class Repairing:
    """How repair gets on."""

    ledgers: int
    """That are marked because they lack copies."""
    bytes_per_s: float
    left_s: float | None
    """None: nothing is repaired at the moment."""


@dataclass(slots=True)
class ClusterSeen:
    """The cluster as a whole."""

    report: Report = field(default_factory=lambda: Report(()))
    looked_at: float | None = None
    """When the bookies were looked at last; None: not yet."""
    bookies: dict[str, BookieSeen] = field(default_factory=dict)
    since: Mapping[SignKey, float] = field(default_factory=dict)
    """When each finding was seen first."""
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))
    repairing: Repairing | None = None
    """None: it is not known."""
    repaired: Series = field(default_factory=Series)
    """Bytes a second that repair copied."""
    rounds: int = 0
    """How often something new was taken in."""

    def take_in(self, report: Report, *, now: float, now_ms: int) -> None:
        """Take in what the checks in *report* found; what others found before stays as it was."""
        fresh = {one.name: one for one in report.checked}
        before = self.states
        kept = [fresh.pop(one.name, one) for one in self.report.checked]
        self.report = Report((*kept, *fresh.values()))
        findings = self.report.findings
        self.since = first_seen(self.since, map(_key, findings), now)
        if any(one.name == "bookies" for one in report.checked):
            self._take_in_bookies(before, now, now_ms)
        self.rounds += 1

    def take_in_repair(self, found: Repairing | None, *, now: float) -> None:
        self.repairing = found
        self.repaired.add(None if found is None else found.bytes_per_s, now)
        self.rounds += 1

    def _take_in_bookies(self, before: Mapping[str, str], now: float, now_ms: int) -> None:
        servers = {each.bookie: each for each in self.servers}
        known = [each.bookie for each in self.known[:BOOKIES_MAX]]
        self.bookies = {name: self.bookies.get(name) or BookieSeen() for name in known}
        for name, seen in self.bookies.items():
            seen.take_in(servers.get(name), now)
        if self.looked_at is not None:
            for name, state in self.states.items():
                was = before.get(name)
                if was != state:
                    what = f"{name} is {state} now" + (f"; it was {was}" if was else "")
                    self.events.append(Event(now_ms, what, bookie=name))
        self.looked_at = now

    @property
    def known(self) -> Sequence[BookieFacts]:
        facts = self.facts("bookies")
        return facts.bookies if isinstance(facts, BookiesFacts) else ()

    @property
    def servers(self) -> Sequence[ServerFacts]:
        facts = self.facts("servers")
        return facts.servers if isinstance(facts, ServersFacts) else ()

    @property
    def states(self) -> Mapping[str, str]:
        return {each.bookie: each.state for each in self.known}

    def seen_since(self, finding: Finding) -> float | None:
        return self.since.get(_key(finding))

    def facts(self, name: str) -> object:
        """Return what the check *name* found; None: nothing yet."""
        return next((one.facts for one in self.report.checked if one.name == name), None)


def _key(finding: Finding) -> SignKey:
    return finding.kind, finding.what


def first_seen(
    before: Mapping[SignKey, float], findings: Iterable[SignKey], now: float
) -> dict[SignKey, float]:
    """Return when each of *findings* was seen first, given that of those *before*.

    One sentence that takes the place of another of its kind tells of the same trouble, which has
    become larger or smaller."""
    found = dict.fromkeys(findings, now)
    new = Counter(kind for kind, what in found if (kind, what) not in before)
    gone = [key for key in before if key not in found]
    places = Counter(kind for kind, _ in gone)
    begun = {kind: before[kind, what] for kind, what in gone if new[kind] == places[kind] == 1}
    return {key: before.get(key, begun.get(key[0], at)) for key, at in found.items()}
