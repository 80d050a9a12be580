"""A cluster that answers an auditor's questions, and runs its clock."""

from typing import Any

from bookie.autorecovery.protocol.audit import (
    AuditConfig,
    Await,
    BeginCheck,
    BookiesKnown,
    CheckEnded,
    CheckKind,
    MarkLedgers,
    ReadLedgers,
    ReadMembership,
    RecordPass,
    TakeNews,
    audit,
)
from ledger.errors import LogError
from ledger.ids import LedgerId
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol.procedure import Action, Now, Wait
from tests.bookie.autorecovery.repair_world import ledger, names
from tests.procedures import Script

DELAY_S, CHECK_S = 300.0, 86_400.0
LEDGERS = {
    1: ledger((0, "abc"), last=9),
    2: ledger((0, "bcd"), last=9),
    3: ledger((0, "abd"), last=-1),
    4: ledger((0, "bcd"), (5, "abd"), last=None, state=LedgerState.OPEN),
    5: ledger((0, "bcd"), (5, "acd"), last=4),
}
STEPS_MAX = 100_000


class Cluster:
    """Answers an auditor, and runs its clock."""

    def __init__(self, known: str = "abcd", config: AuditConfig | None = None) -> None:
        self._config = config or AuditConfig(delay_s=DELAY_S, check_s=CHECK_S)
        self.known, self.away, self.retired, self.leaving = known, "", "", ""
        self.delay_s: float | None = None
        self.ledgers: dict[int, LedgerMetadata | None] = dict(LEDGERS)
        self.now = 1000.0
        self.checked_ms = dict.fromkeys(CheckKind, 1_000_000)
        """When another auditor made the last check of each kind."""
        self.actions: list[Action[Any]] = []
        """All but those that only wait."""
        self.between: dict[type[Action[Any]], str] = {}
        """Who is away from then on that an action of this kind is done."""
        self.parts = 1
        """In how many parts the ledgers are listed."""
        self._part = 0
        self._changed = False
        """The list of bookies has, and the auditor has not been told."""
        self._ended: CheckEnded | None = None
        """The check that was begun, and the auditor has not been told."""

    def begin(self, config: AuditConfig | None = None) -> "Cluster":
        """Let an auditor begin; one that there was is gone."""
        self._script = Script(audit(config or self._config))
        self._next = self._script.begin()
        self._changed, self._ended = False, None
        self.run(0)
        return self

    def change(self) -> None:
        """Tell the auditor that the list of bookies may have changed."""
        self._changed = True

    def lose(self, bookies: str) -> None:
        self.away = "".join(sorted({*self.away, *bookies}))
        self.change()
        self.run(0)

    def bring_back(self, bookies: str) -> None:
        self.away = "".join(bookie for bookie in self.away if bookie not in bookies)
        self.change()
        self.run(0)

    def run(self, seconds: float) -> None:
        """Let so much time pass, with what the auditor wants to do in it."""
        end = self.now + seconds
        for _ in range(STEPS_MAX):
            action = self._next
            assert isinstance(action, Action), "an audit never ends"
            answer: object
            wake_at = self.wakes_at()
            if wake_at is not None:
                if wake_at > end:
                    self.now = end
                    return
                self.now = max(self.now, wake_at)
                answer = self._woken()
            else:
                try:
                    answer = self.now if isinstance(action, Now) else self.answer(action)
                except LogError as error:
                    self._next = self._script.fail(error)
                    continue
            self._next = self._script.answer(answer)
        raise AssertionError("it is busy for ever")

    def wakes_at(self) -> float | None:
        """Return until when the auditor waits; None if it does not."""
        if isinstance(self._next, Wait):
            return self.now + self._next.seconds
        if isinstance(self._next, Await):
            is_news = self._changed or self._ended is not None
            return self.now if is_news else self._next.until
        return None

    def _woken(self) -> CheckEnded | None:
        if isinstance(self._next, Wait):
            return None
        ended, self._ended = self._ended, None
        if ended is None:
            self._changed = False
        return ended

    def marked(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for marking in self.markings():
            for ledger_id, missing in marking.missing:
                found.setdefault(ledger_id, set()).update(replica.bookie for replica in missing)
        return found

    def markings(self) -> list[MarkLedgers]:
        return [action for action in self.actions if isinstance(action, MarkLedgers)]

    def passes(self) -> int:
        return self.actions.count(ReadLedgers(begin=True))

    def end_check(self, *, failed: bool = False) -> None:
        """Let the check under way end now."""
        self._ended = CheckEnded(self.now, failed=failed)

    def answer(self, action: Action[Any]) -> object:
        """Do *action*; return its answer, or raise as it does."""
        if isinstance(action, TakeNews):
            changed, self._changed = self._changed, False
            return changed
        self.actions.append(action)
        self.away = self.between.pop(type(action), self.away)
        match action:
            case ReadMembership():
                known = frozenset(names(self.known))
                return BookiesKnown(
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
                if self._part > self.parts:
                    return None
                ids = sorted(self.ledgers)[self._part - 1 :: self.parts]
                return tuple((LedgerId(each), self.ledgers[each]) for each in ids)
            case MarkLedgers(lacks, _):
                return len(lacks)
            case RecordPass():
                return None
            case BeginCheck(kind):
                self.checked_ms[kind] = round(self.now * 1000)
                self.end_check()
                return None
            case _:
                raise AssertionError(f"no action of an audit: {action}")
