"""A cluster that answers an auditor's questions, and runs its clock."""

from bookie.autorecovery.protocol.audit import AuditConfig, Auditor
from bookie.autorecovery.protocol.audit_events import (
    AuditBegun,
    AuditEffect,
    AuditEvent,
    BookiesChanged,
    BookiesSeen,
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
from ledger.ids import LedgerId
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol.common_events import TimePassed
from tests.bookie.autorecovery.repair_world import ledger, names

DELAY_S, CHECK_S = 300.0, 86_400.0
LEDGERS = {
    1: ledger((0, "abc"), last=9),
    2: ledger((0, "bcd"), last=9),
    3: ledger((0, "abd"), last=-1),
    4: ledger((0, "bcd"), (5, "abd"), last=None, state=LedgerState.OPEN),
    5: ledger((0, "bcd"), (5, "acd"), last=4),
}


class Cluster:
    """Answers an auditor, and runs its clock."""

    def __init__(self, known: str = "abcd", config: AuditConfig | None = None) -> None:
        self.auditor = Auditor(config or AuditConfig(delay_s=DELAY_S, check_s=CHECK_S))
        self.known, self.away, self.retired, self.leaving = known, "", "", ""
        self.delay_s: float | None = None
        self.ledgers: dict[int, LedgerMetadata | None] = dict(LEDGERS)
        self.now = 1000.0
        self.checked_ms = dict.fromkeys(CheckKind, 1_000_000)
        """When another auditor made the last check of each kind."""
        self.effects: list[AuditEffect] = []
        self.between: dict[type[AuditEffect], str] = {}
        """Who is away from then on that an effect of this kind is done."""
        self.parts = 1
        """In how many parts the ledgers are listed."""
        self._part = 0

    def post(self, event: AuditEvent) -> None:
        effects = self.auditor.step(event, now=self.now)
        while effects:
            [effect] = effects
            self.effects.append(effect)
            effects = self.auditor.step(self._answer(effect), now=self.now)

    def begin(self) -> "Cluster":
        self.post(AuditBegun())
        return self

    def lose(self, bookies: str) -> None:
        self.away = "".join(sorted({*self.away, *bookies}))
        self.post(BookiesChanged())

    def bring_back(self, bookies: str) -> None:
        self.away = "".join(bookie for bookie in self.away if bookie not in bookies)
        self.post(BookiesChanged())

    def run(self, seconds: float) -> None:
        """Let so much time pass, with what the auditor wants to do in it."""
        end = self.now + seconds
        for _ in range(1000):
            deadline = self.auditor.deadline()
            if deadline is None or deadline > end:
                self.now = end
                return
            self.now = max(self.now, deadline)
            self.post(TimePassed())
        raise AssertionError("it is busy for ever")

    def marked(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for effect in self.effects:
            if isinstance(effect, MarkLedgers):
                for ledger_id, lacks in effect.lacks:
                    found.setdefault(ledger_id, set()).update(lack.bookie for lack in lacks)
        return found

    def passes(self) -> int:
        return self.effects.count(ReadLedgers(begin=True))

    def _answer(self, effect: AuditEffect) -> AuditEvent:
        self.away = self.between.pop(type(effect), self.away)
        match effect:
            case ReadBookies():
                known = frozenset(names(self.known))
                return BookiesSeen(
                    known=known,
                    retired=frozenset(names(self.retired)),
                    registered=known - frozenset(names(self.away)),
                    leaving=frozenset(names(self.leaving)),
                    delay_s=self.delay_s,
                    checked_ms=dict(self.checked_ms),
                    now_ms=round(self.now * 1000),
                )
            case ReadLedgers(begin):
                self._part = 1 if begin else self._part + 1
                ids = sorted(self.ledgers)[self._part - 1 :: self.parts]
                found = tuple((LedgerId(each), self.ledgers[each]) for each in ids)
                return LedgersRead(found, is_last=self._part == self.parts)
            case MarkLedgers(lacks, _):
                return LedgersMarked(len(lacks))
            case RecordPass():
                return PassRecorded()
            case CheckLedgers(kind):
                self.checked_ms[kind] = round(self.now * 1000)
                return LedgersChecked()
