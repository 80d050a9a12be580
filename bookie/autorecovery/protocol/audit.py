"""The auditor: which bookies are lost, and which ledgers lack a copy because of that.

*Known* is every bookie with a cookie, not only those that this auditor has seen: who was lost
before the auditor was elected is lost all the same. *Lost* is who is known and not registered. It
is given time, counted for each one by itself; then one pass over all ledgers marks those
whose fragments name it. Retired names and bookies that are to be emptied are given none.

Who is there is read again after each part of the list of ledgers, so nobody is marked who was
registered when the ledger was read. If more than half of the bookies are lost, it is this
process that is cut off, or something that no copying mends: nothing is marked, and an alarm raised.
Those that no ledger names any more are not counted: dead bookies leave their names behind. Who they
are is found out by a pass that marks nothing.

Invariants:
    nothing is marked for a bookie within its delay
    nothing is marked while more than half of the bookies that count are lost
    at most one part of the list of ledgers is in memory
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from bookie.autorecovery.protocol.audit_events import (
    AuditBegun,
    AuditEffect,
    AuditEvent,
    AuditFailed,
    BookiesChanged,
    BookiesSeen,
    CheckFailed,
    CheckKind,
    CheckLedgers,
    LedgersChecked,
    LedgersMarked,
    LedgersRead,
    MarkLedgers,
    PassRecorded,
    ReadBookies,
    ReadLedgers,
    RecordPass,
)
from bookie.autorecovery.protocol.ledger_check import is_urgent
from ledger.ids import BookieId, LedgerId
from ledger.mark import Lack, Reason
from ledger.metadata import LedgerMetadata
from ledger.protocol.common_events import TimePassed

DELAY_S: Final = 300.0
CHECK_S: Final = 86_400.0
RETRY_S: Final = 5.0
CHECK_ALL_S: Final = 604_800.0
SCRUB_SHARE: Final = 0.05
SCRUB_BYTES_PER_S: Final = 4.0 * 1024 * 1024
URGENT_MAX: Final = 10_000
"""So many ledgers of a pass come before others: where most are urgent, none is."""
NO_BOOKIES: Final[frozenset[BookieId]] = frozenset()


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


class Phase(Enum):
    NEW = "new"
    IDLE = "idle"
    SEEING = "reading who is there"
    READING = "reading ledgers"
    JUDGING = "reading who is there, after ledgers"
    MARKING = "marking"
    RECORDING = "recording the pass"


class Auditor:
    def __init__(self, config: AuditConfig | None = None) -> None:
        self.phase = Phase.NEW
        self._config = config or AuditConfig()
        self._delay_s = self._config.delay_s
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
        self._news = False
        """The list of bookies has changed while something else was under way."""
        self._check_at = 0.0
        self._retry_at: float | None = None
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
        self._batch: LedgersRead | None = None
        self._ledgers = self._marked = self._damaged = self._urgent = 0

    def deadline(self) -> float | None:
        if self.phase is not Phase.IDLE:
            return None
        if self._retry_at is not None:
            return self._retry_at  # what was due before is due still
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

    def step(self, event: AuditEvent, *, now: float) -> list[AuditEffect]:
        """Apply *event*; return what the driver must do: one thing, or nothing."""
        match event:
            case AuditBegun():
                assert self.phase is Phase.NEW, "it begins once"
                return self._see()
            case LedgersChecked() | CheckFailed():
                return self._checked(now, failed=isinstance(event, CheckFailed))
            case BookiesChanged() | TimePassed():
                if self.phase is Phase.IDLE:
                    return self._see()
                self._news |= isinstance(event, BookiesChanged)
                return []
            case BookiesSeen():
                self._learn(event, now)
                if self.phase is Phase.JUDGING:
                    return self._judge(event.now_ms)
                assert self.phase is Phase.SEEING, f"{event} while {self.phase.value}"
                return self._decide(now)
            case LedgersRead():
                assert self.phase is Phase.READING, f"{event} while {self.phase.value}"
                self._batch = event
                self.phase = Phase.JUDGING
                return [ReadBookies()]
            case LedgersMarked(count):
                assert self.phase is Phase.MARKING, f"{event} while {self.phase.value}"
                self._marked += count
                return self._go_on()
            case PassRecorded():
                self._recorded_alarm = self._alarm
                return self._rest(now)
            case AuditFailed():
                self._retry_at = now + self._config.retry_s
                self._batch = None
                self.phase = Phase.IDLE
                return []

    # Who is there.

    def _see(self) -> list[AuditEffect]:
        self.phase, self._news, self._retry_at = Phase.SEEING, False, None
        return [ReadBookies()]

    def _learn(self, seen: BookiesSeen, now: float) -> None:
        """Take note of who is lost since when, and who is due."""
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

    def _learn_checks(self, seen: BookiesSeen, now: float) -> None:
        """Take note of when the next checks are due: others may have made the last ones."""
        for kind in CheckKind:
            due = now
            if kind in seen.checked_ms:
                pause_ms = self._config.pause_s(kind) * 1000
                left_ms = seen.checked_ms[kind] + pause_ms - seen.now_ms
                due = now + max(0.0, left_ms / 1000)
            self._checks[kind] = max(due, self._not_again.get(kind, due))

    def _decide(self, now: float) -> list[AuditEffect]:
        """Begin a pass if somebody is due whose ledgers are not all marked."""
        checking = now >= self._check_at
        if self._due and (checking or not self._audited.issuperset(self._due)):
            return self._begin_pass()
        if self._alarm and not self._surveyed.issuperset(self._lost):
            return self._begin_pass()
        self._ledgers = self._marked = self._damaged = 0
        if checking or self._alarm != self._recorded_alarm:
            return self._record()
        return self._rest(now)

    # A pass over all ledgers.

    def _begin_pass(self) -> list[AuditEffect]:
        self._covered, self._watched = frozenset(self._due), self._lost
        self._named = set()
        self._ledgers = self._marked = self._damaged = self._urgent = 0
        self.phase = Phase.READING
        return [ReadLedgers(begin=True)]

    def _judge(self, now_ms: int) -> list[AuditEffect]:
        batch = self._batch
        assert batch is not None, "ledgers were read"
        if not self._due and not self._alarm:  # all are back: the rest is of no interest
            return self._record()
        for _, metadata in batch.ledgers:
            self._named |= {
                bookie
                for bookie in self._watched - self._named
                if metadata is None or _lacks(metadata, bookie, Reason.LOST)
            }
        self._ledgers += len(batch.ledgers)
        lacks: list[tuple[LedgerId, tuple[Lack, ...]]] = []
        urgent: set[LedgerId] = set()
        for ledger_id, metadata in batch.ledgers:
            if metadata is None:
                self._damaged += 1
                continue
            lacking = tuple(
                Lack(bookie, reason, now_ms)
                for bookie, reason in sorted(self._due.items())
                if _lacks(metadata, bookie, reason)
            )
            if lacking:
                lacks.append((ledger_id, lacking))
                if self._urgent < URGENT_MAX and is_urgent(metadata, self._lost):
                    urgent.add(ledger_id)
                    self._urgent += 1
        if not lacks:
            return self._go_on()
        self.phase = Phase.MARKING
        lacks.sort(key=lambda each: each[0] not in urgent)
        return [MarkLedgers(tuple(lacks), frozenset(urgent))]

    def _go_on(self) -> list[AuditEffect]:
        batch, self._batch = self._batch, None
        assert batch is not None, "ledgers were read"
        if not batch.is_last:
            self.phase = Phase.READING
            return [ReadLedgers(begin=False)]
        self._audited |= self._covered
        self._surveyed = self._watched
        self._empty = self._watched - self._named
        self._news |= bool(self._alarm and self._empty)  # the alarm may be none
        return self._record()

    def _record(self) -> list[AuditEffect]:
        self.phase, self._batch = Phase.RECORDING, None
        return [
            RecordPass(
                ledgers=self._ledgers,
                marked=self._marked,
                damaged=self._damaged,
                lost=tuple(sorted(self._due)),
                alarm=self._alarm,
            )
        ]

    def _rest(self, now: float) -> list[AuditEffect]:
        if now >= self._check_at:
            self._check_at = now + self._config.check_s
        if self._news or not self._audited.issuperset(self._due):
            return self._see()  # also for who became due in the middle of a pass
        self.phase = Phase.IDLE
        return self._check(now)

    # Checks, one at a time.

    def _check(self, now: float) -> list[AuditEffect]:
        if self._checking is not None or self._alarm:
            return []
        kind = min(self._checks, key=lambda kind: self._checks[kind])
        if now < self._checks[kind]:
            return []
        self._checking = kind
        return [CheckLedgers(kind)]

    def _checked(self, now: float, *, failed: bool) -> list[AuditEffect]:
        kind, self._checking = self._checking, None
        assert kind is not None, "a check was under way"
        pause_s = self._config.check_again_s if failed else self._config.pause_s(kind)
        self._checks[kind] = self._not_again[kind] = now + pause_s
        return []


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
