"""The audit: which bookies are lost, and which ledgers lack a copy because of that.

    read bookies -> [a pass over all ledgers, that marks] -> record -> [begin a check] -> wait

*Known* is every bookie with a cookie, not only those that this auditor has seen: who was lost
before the auditor was elected is lost all the same. *Lost* is who is known and not registered. It
is given time, counted for each one by itself; then one pass over all ledgers marks those
whose fragments name it. Retired names and bookies that are to be emptied are given none.

Who is there is read again after each part of the list of ledgers, so nobody is marked who was
registered when the ledger was read. If more than half of the bookies are lost, it is this
process that is cut off, or something that no copying mends: nothing is marked, and an alarm raised.
Those that no ledger names any more are not counted: dead bookies leave their names behind. Who they
are is found out by a pass that marks nothing.

Checks of all ledgers take hours, so they run beside everything else, one at a time: the driver has
the one that was begun last, and `Await` tells when it has ended.

Invariants:
    nothing is marked for a bookie within its delay
    nothing is marked while more than half of the bookies that count are lost
    at most one part of the list of ledgers is in memory
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Never

from bookie.autorecovery.protocol.checks import is_urgent
from ledger.errors import LogError
from ledger.ids import BookieId, LedgerId
from ledger.mark import MissingReplica, Reason
from ledger.metadata import LedgerMetadata
from ledger.protocol.procedure import Action, Now, Steps, Wait

DELAY_S: Final = 300.0
CHECK_S: Final = 86_400.0
RETRY_S: Final = 5.0
CHECK_ALL_S: Final = 604_800.0
SCRUB_SHARE: Final = 0.05
SCRUB_BYTES_PER_S: Final = 4.0 * 1024 * 1024
URGENT_MAX: Final = 10_000
"""So many ledgers of a pass come before others: where most are urgent, none is."""
NO_BOOKIES: Final[frozenset[BookieId]] = frozenset()


class CheckKind(Enum):
    """What is checked from time to time though nothing has happened; one at a time."""

    LEDGERS = "what bookies hold"
    """All bookies are asked what they hold of all ledgers, and some entries are read."""
    PLACEMENT = "placement"
    """Whether ensembles span as many racks as they could."""
    REPLICAS = "living replicas"
    """How many ledgers have entries on bookies that are away, by their metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    delay_s: float = DELAY_S
    """How long a bookie may be away before its ledgers are marked."""
    check_s: float = CHECK_S
    """How often all bookies are checked though nothing has happened."""
    retry_s: float = RETRY_S
    """After how long a pass that failed begins again."""
    check_all_s: float = CHECK_ALL_S
    """How often all bookies are asked what they hold of all ledgers."""
    placement_s: float = CHECK_S
    """How often the placement of all ensembles is judged."""
    replicas_s: float = CHECK_S
    """How often living replicas are counted."""
    check_again_s: float = 600.0
    """After how long one of these checks that failed begins again."""
    scrub_share: float = SCRUB_SHARE
    """How much of all entries is read with digests while all bookies are asked, if that does not
    take too long; 0: none."""
    scrub_bytes_per_s: float = SCRUB_BYTES_PER_S
    """How fast; 0: no limit."""

    def __post_init__(self) -> None:
        assert self.delay_s >= 0
        assert min(self.check_s, self.retry_s, self.check_all_s, self.check_again_s) > 0
        assert min(self.placement_s, self.replicas_s) > 0
        assert 0 <= self.scrub_share <= 1
        assert self.scrub_bytes_per_s >= 0

    @property
    def scrub_bytes_max(self) -> float:
        """How much a check reads at most: what takes an eighth of the time until the next one."""
        return self.scrub_bytes_per_s * self.check_all_s / 8

    def pause_s(self, kind: CheckKind) -> float:
        """Return how long after a check the next one of its *kind* is due."""
        match kind:
            case CheckKind.LEDGERS:
                return self.check_all_s
            case CheckKind.PLACEMENT:
                return self.placement_s
            case CheckKind.REPLICAS:
                return self.replicas_s


# Answers.


@dataclass(frozen=True, slots=True, kw_only=True)
class BookiesKnown:
    """Who there is, read after it was asked for."""

    known: frozenset[BookieId]
    """All that have a cookie, retired ones too."""
    retired: frozenset[BookieId]
    """Whose data were given up."""
    registered: frozenset[BookieId]
    leaving: frozenset[BookieId]
    """Bookies that are to be emptied."""
    delay_s: float | None
    """What an operator has set; None: nothing."""
    checked_ms: Mapping[CheckKind, int]
    """When the last check of each kind ended, by whichever auditor; none if there was none."""
    now_ms: int


LedgersPart = tuple[tuple[LedgerId, LedgerMetadata | None], ...]
"""Some ledgers of all; metadata None: they cannot be read."""


@dataclass(frozen=True, slots=True)
class CheckEnded:
    """The check that was begun last has ended, and that is written down; or it has failed."""

    at: float
    """By the clock of `Now`."""
    failed: bool


# Actions.


@dataclass(frozen=True, slots=True)
class ReadMembership(Action[BookiesKnown]):
    """Read which bookies are known, registered and to be emptied."""


@dataclass(frozen=True, slots=True)
class ReadLedgers(Action[LedgersPart | None]):
    """Read the first ledgers of all (*begin*), or those that follow. Answer: None after the last
    ones."""

    begin: bool


@dataclass(frozen=True, slots=True)
class MarkLedgers(Action[int]):
    """Add these replicas to the marks of the ledgers. Answer: how many are new or say more."""

    missing: tuple[tuple[LedgerId, tuple[MissingReplica, ...]], ...]
    """Urgent ones first."""
    urgent: frozenset[LedgerId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPass(Action[None]):
    """Write down how a pass ended."""

    ledgers: int
    marked: int
    damaged: int
    lost: tuple[BookieId, ...]
    alarm: str
    """Why nothing was marked; empty if nothing is wrong."""


@dataclass(frozen=True, slots=True)
class TakeNews(Action[bool]):
    """Answer: whether the list of bookies may have changed since this was asked last, or since
    `Await` returned for it. Raises nothing."""


@dataclass(frozen=True, slots=True)
class BeginCheck(Action[None]):
    """Begin to look at all ledgers, beside everything else, and to mark what a check of *kind*
    finds. Raises nothing."""

    kind: CheckKind = CheckKind.LEDGERS


@dataclass(frozen=True, slots=True)
class Await(Action[CheckEnded | None]):
    """Wait until the check has ended. Answer: None if the list of bookies may have changed before,
    or at *until* by the clock of `Now`. Raises nothing."""

    until: float


def audit(config: AuditConfig) -> Steps[Never]:
    """Be the auditor until stopped; what the metadata store refuses is tried again."""
    auditing = _Audit(config)
    while True:
        try:
            yield from auditing.look()
        except LogError:
            yield from Wait(config.retry_s)  # what was due before is due still
        else:
            yield from auditing.rest()


class _Audit:
    def __init__(self, config: AuditConfig) -> None:
        self._config = config
        self._delay_s = config.delay_s
        self._missing_since: dict[BookieId, float] = {}
        """Lost bookies, and since when by this auditor's clock."""
        self._due: dict[BookieId, Reason] = {}
        """Whose ledgers are to be marked now."""
        self._alarm = self._recorded_alarm = ""
        self._lost = NO_BOOKIES
        self._empty = NO_BOOKIES
        """Lost bookies that no ledger named in a whole pass."""
        self._surveyed = NO_BOOKIES
        """Lost bookies of which it is known whether a ledger names them."""
        self._audited = NO_BOOKIES
        """Whose ledgers were all marked, and who were due ever since."""
        self._check_at = 0.0
        self._checks: dict[CheckKind, float] = {}
        """When to begin the next check of each kind."""
        self._not_again: dict[CheckKind, float] = {}
        """Until when what this auditor has checked is not checked again, whatever it reads: that
        may be from before."""
        self._checking: CheckKind | None = None
        """Which one is under way."""
        # Of the pass under way:
        self._covered = NO_BOOKIES
        """Who was due in all of it."""
        self._watched = NO_BOOKIES
        """Who was lost in all of it."""
        self._named: set[BookieId] = set()
        """Who of them is named by a ledger."""
        self._count_anew()

    def _count_anew(self) -> None:
        self._ledgers = self._marked = self._damaged = self._urgent = 0

    def look(self) -> Steps[None]:
        """See who is there, and pass over all ledgers, as often as there is a reason to."""
        again = True
        while again:
            yield from self._see()
            now = yield from Now()
            checking = now >= self._check_at
            self._count_anew()
            again = False
            if self._wants_pass(checking=checking):
                again = yield from self._pass_over()
                yield from self._record()
            elif checking or self._alarm != self._recorded_alarm:
                yield from self._record()
            now = yield from Now()
            if now >= self._check_at:
                self._check_at = now + self._config.check_s
            # Also for who became due in the middle of a pass.
            again |= (yield from TakeNews()) or not self._audited.issuperset(self._due)

    def _wants_pass(self, *, checking: bool) -> bool:
        """Return whether somebody is due whose ledgers are not all marked, or it is to be found out
        who counts for an alarm."""
        if self._due and (checking or not self._audited.issuperset(self._due)):
            return True
        return bool(self._alarm) and not self._surveyed.issuperset(self._lost)

    # Bookies.

    def _see(self) -> Steps[int]:
        """Record who is lost since when, and who is due; return the time by the wall clock."""
        seen = yield from ReadMembership()
        now = yield from Now()
        self._learn(seen, now)
        return seen.now_ms

    def _learn(self, seen: BookiesKnown, now: float) -> None:
        self._delay_s = self._config.delay_s if seen.delay_s is None else seen.delay_s
        lost = seen.known - seen.registered
        before = self._missing_since
        self._missing_since = {bookie: before.get(bookie, now) for bookie in sorted(lost)}
        self._learn_checks(seen, now)
        self._lost = lost
        self._watched &= lost
        self._surveyed &= lost
        self._empty &= lost
        serving = seen.known - seen.retired - self._empty
        away = lost & serving
        self._alarm = ""
        if len(away) * 2 > len(serving):
            self._alarm = f"{len(away)} of {len(serving)} bookies are away"
        self._due = {}
        for bookie, since in self._missing_since.items():
            if bookie in seen.retired or now >= since + self._delay_s:
                self._due[bookie] = Reason.LOST
        for bookie in sorted(seen.leaving & seen.known):
            self._due[bookie] = Reason.DECOMMISSIONING
        if self._alarm:
            self._due = {}
        self._audited &= self._due.keys()
        self._covered &= self._due.keys()

    def _learn_checks(self, seen: BookiesKnown, now: float) -> None:
        """Record when the next checks are due: others may have made the last ones."""
        for kind in CheckKind:
            due = now
            if kind in seen.checked_ms:
                pause_ms = self._config.pause_s(kind) * 1000
                left_ms = seen.checked_ms[kind] + pause_ms - seen.now_ms
                due = now + max(0.0, left_ms / 1000)
            self._checks[kind] = max(due, self._not_again.get(kind, due))

    # A pass over all ledgers.

    def _pass_over(self) -> Steps[bool]:
        """Mark what lacks copies on those who are due; return whether the alarm may be none."""
        self._covered, self._watched = frozenset(self._due), self._lost
        self._named = set()
        part = yield from ReadLedgers(begin=True)
        while part is not None:
            now_ms = yield from self._see()
            if not self._due and not self._alarm:  # all are back: the rest is of no interest
                return False
            marking = self._judge(part, now_ms)
            if marking.missing:
                self._marked += yield from marking
            part = yield from ReadLedgers(begin=False)
        self._audited |= self._covered
        self._surveyed = self._watched
        self._empty = self._watched - self._named
        return bool(self._alarm and self._empty)

    def _judge(self, part: LedgersPart, now_ms: int) -> MarkLedgers:
        """Count a part of the ledgers; return what is to be marked of it."""
        self._ledgers += len(part)
        missing: list[tuple[LedgerId, tuple[MissingReplica, ...]]] = []
        urgent: set[LedgerId] = set()
        for ledger_id, metadata in part:
            self._named |= {
                bookie
                for bookie in self._watched - self._named
                if metadata is None or _lacks(metadata, bookie, Reason.LOST)
            }
            if metadata is None:
                self._damaged += 1
                continue
            lacking = tuple(
                MissingReplica(bookie, reason, now_ms)
                for bookie, reason in sorted(self._due.items())
                if _lacks(metadata, bookie, reason)
            )
            if lacking:
                missing.append((ledger_id, lacking))
                if self._urgent < URGENT_MAX and is_urgent(metadata, self._lost):
                    urgent.add(ledger_id)
                    self._urgent += 1
        missing.sort(key=lambda lacking: lacking[0] not in urgent)
        return MarkLedgers(tuple(missing), frozenset(urgent))

    def _record(self) -> Steps[None]:
        yield from RecordPass(
            ledgers=self._ledgers,
            marked=self._marked,
            damaged=self._damaged,
            lost=tuple(sorted(self._due)),
            alarm=self._alarm,
        )
        self._recorded_alarm = self._alarm

    # Between passes.

    def rest(self) -> Steps[None]:
        """Wait until there is a reason to look; begin the check that is due."""
        now = yield from Now()
        kind = min(self._checks, key=lambda kind: self._checks[kind])
        if self._checking is None and not self._alarm and now >= self._checks[kind]:
            self._checking = kind
            yield from BeginCheck(kind)
        while (ended := (yield from Await(self._next_look()))) is not None:
            self._checked(ended)

    def _next_look(self) -> float:
        times = [self._check_at]
        if not self._alarm:
            times += [
                since + self._delay_s
                for bookie, since in self._missing_since.items()
                if bookie not in self._due
            ]
        if self._checking is None and not self._alarm:
            times += self._checks.values()
        return min(times)

    def _checked(self, ended: CheckEnded) -> None:
        kind, self._checking = self._checking, None
        assert kind is not None, "a check was under way"
        pause_s = self._config.check_again_s if ended.failed else self._config.pause_s(kind)
        self._checks[kind] = self._not_again[kind] = ended.at + pause_s


def _lacks(metadata: LedgerMetadata, bookie: BookieId, reason: Reason) -> bool:
    """Return whether a fragment that holds entries, or may do so soon, names *bookie*; of one that
    is to be emptied, whether any fragment does."""
    for fragment in metadata.fragments:
        if bookie not in fragment.bookies:
            continue
        end = metadata.settled_end(fragment)
        if reason is Reason.DECOMMISSIONING or end is None or end >= fragment.first_entry:
            return True
    return False
