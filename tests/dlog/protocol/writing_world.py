"""Everything around a log's writer, in any order: ledgers, what they keep, reopening, callers.

`step` does one thing that can happen now, by lot; what the writer then asks for is checked against
what the world knows: where each batch belongs, and whether it is kept.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dlog.errors import LostOwnership
from dlog.manifest import Manifest, Segment
from dlog.position import NO_TXID
from dlog.protocol import roll
from dlog.protocol.log_writer import TRANSITIONS, LogWriterPhase
from dlog.protocol.log_writer_events import (
    AbandonRequested,
    AddFailed,
    Answer,
    Broke,
    Closed,
    CloseFailed,
    CloseRequested,
    CloseSegment,
    Confirm,
    FlushRequested,
    LeaveUnknown,
    LedgersLetGo,
    LetGo,
    Lost,
    Note,
    Refuse,
    Reopened,
    ReopenFailed,
    RollFailed,
    RollRequested,
    RollStepped,
    SegmentClosed,
    SendEntries,
    SendRefused,
    SiblingNamed,
    StopWork,
    TakeOver,
    TakeRollStep,
    TimePassed,
    TroubleMet,
    Work,
    WritingEffect,
    WritingEvent,
)
from dlog.protocol.pending_batch import PendingBatch
from ledger.errors import KeyDiffers, LogError, NotEnoughBookies, WriterFailed
from ledger.ids import EntryId, LedgerId
from tests.dlog.protocol.writing_rig import (
    FIRST,
    Effect,
    EntryConfirmed,
    Event,
    RecordsGathered,
    Rig,
    Sends,
    name_of,
    seal,
)

T = TypeVar("T")
Choose = Callable[[Sequence[T]], T]

TROUBLE = NotEnoughBookies(2, ["b1"])
FINAL = LostOwnership("log")

Transition = tuple[str, LogWriterPhase, LogWriterPhase]


@dataclass
class Ledger:
    unconfirmed: deque[PendingBatch] = field(default_factory=deque)
    confirmed: int = 0
    failed: bool = False


class World:
    def __init__(
        self, choose: Callable[[Sequence[object]], object], *, reopen_timeout_s: float, calm: int
    ) -> None:
        """*calm*: so many of its steps pass without trouble, on average."""
        self._choose = choose
        self._calm = calm
        self._speed = self.pick([1, 4])
        """Of confirmations, compared with appends."""
        self.rig = Rig(reopen_timeout_s=reopen_timeout_s, roll_records=2)
        self.machine = self.rig.machine
        self.seen: set[Transition] = set()
        self.offsets: dict[int, int] = {}
        """Of the first record, by the id of its batch."""
        self.batches: dict[int, PendingBatch] = {}
        self.outcomes: dict[int, WritingEffect] = {}
        self.tickets: set[int] = set()
        self.ledgers: dict[LedgerId, Ledger] = {FIRST: Ledger()}
        self.held = {FIRST}
        """Ledgers that the writer has and has not let go of."""
        self.work: Work | None = None
        self.stopped: list[Work] = []
        """Cancelled, and may be answered nevertheless until all is let go."""
        self.letting_go = 0
        self.closed = False
        self.is_lost = False
        self._records = self._last_ticket = 0
        self._last_ledger = FIRST
        self._late: list[LedgerId] = []
        """The ledgers of entries whose answers come when nobody wants them any more."""
        self._refuses = False
        self._events: deque[Event] = deque()

    def pick(self, options: Sequence[T]) -> T:
        return self._choose(options)  # type: ignore[return-value]

    # What can happen.

    def step(self) -> None:
        actions: list[Callable[[], None]] = [self._append, self._append, self._flush, self._roll]
        if self.rig.woken:
            actions += [self._turn] * 4
        for ledger_id, ledger in self.ledgers.items():
            if ledger.unconfirmed and not ledger.failed:
                actions += [lambda i=ledger_id: self._confirm(i)] * self._speed  # type: ignore[misc]
        if self.work is not None:
            actions += [self._answer_work] * 4
        if self.stopped:
            actions.append(self._answer_stopped)
        if self._late:
            actions += [self._answer_late] * 2
        if self.letting_go:
            actions += [self._let_go] * 2
        if self.is_lost:
            actions.append(self._name_sibling)
        if self.machine.deadline() is not None:
            actions.append(self._pass_time)
        if self.pick(range(self._calm)) == 0:
            actions = [self._fail, self._trouble, self._refuse, self._close, self._rarely]
        self.pick(actions)()

    def finish(self) -> None:
        """Abandon the log; see that everything is resolved and let go."""
        self._post(AbandonRequested())
        self.stopped.clear()
        while self.letting_go:
            self._let_go()
        assert self.closed
        assert self.outcomes.keys() == self.batches.keys(), "each batch has its outcome"
        assert not self.tickets, "everybody was answered"
        assert not self.held, "every ledger was let go of"

    def _append(self) -> None:
        if self.machine.error is not None or self.machine.closing:
            return
        offset = self.rig.accumulator.next_offset
        batch = self.rig.append(*[b"x"] * self.pick([1, 1, 2, 3]))
        self.offsets.setdefault(id(batch), offset)
        self.batches[id(batch)] = batch

    def _turn(self) -> None:
        self.rig.woken = 0
        self._post(RecordsGathered())

    def _confirm(self, ledger_id: LedgerId) -> None:
        ledger = self.ledgers[ledger_id]
        ledger.unconfirmed.popleft()
        ledger.confirmed += 1
        self._post(EntryConfirmed(ledger_id, EntryId(ledger.confirmed - 1), 10))

    def _fail(self) -> None:
        failing = [each for each, ledger in self.ledgers.items() if ledger.unconfirmed]
        if not failing:
            return
        ledger_id = self.pick(failing)
        ledger = self.ledgers[ledger_id]
        ledger.failed = True
        errors: list[LogError] = [*[TROUBLE] * 5, FINAL]
        if not ledger.confirmed:
            errors.append(KeyDiffers(ledger_id, closed_empty=True))
        error = self.pick(errors)
        if isinstance(error, KeyDiffers):
            self._late += [ledger_id] * len(ledger.unconfirmed)
            ledger.unconfirmed.clear()  # it is closed, and empty
        self._post(AddFailed(ledger_id, error))

    def _answer_late(self) -> None:
        """About an entry that reopening has settled already, or nobody waits for."""
        ledger_id = self._late.pop()
        late: list[Event] = [
            EntryConfirmed(ledger_id, EntryId(0), 10),
            AddFailed(ledger_id, FINAL),
        ]
        self._post(self.pick(late))

    def _flush(self) -> None:
        self._post(FlushRequested(self._ticket()))

    def _roll(self) -> None:
        self._post(RollRequested(self._ticket()))

    def _ticket(self) -> int:
        self._last_ticket += 1
        self.tickets.add(self._last_ticket)
        return self._last_ticket

    def _trouble(self) -> None:
        self._post(TroubleMet(self.pick([TROUBLE] * 5 + [FINAL])))

    def _name_sibling(self) -> None:
        self._post(SiblingNamed("another process"))

    def _refuse(self) -> None:
        """The next entry is not taken."""
        self._refuses = True

    def _close(self) -> None:
        if self.pick([False, True]):
            self._post(CloseRequested(self.pick([None, 3.0])))

    def _rarely(self) -> None:
        if self.pick([False, False, True]):
            ends: list[WritingEvent] = [AbandonRequested(), Broke(WriterFailed(1, "a bug"))]
            self._post(self.pick(ends))

    def _pass_time(self) -> None:
        deadline = self.machine.deadline()
        assert deadline is not None
        early = self.pick([0.0, 0.0, 0.001])  # a timer may fire a little too soon
        self.rig.now = max(self.rig.now, deadline - early)
        self._post(TimePassed())

    def _answer_work(self) -> None:
        work, self.work = self.work, None
        assert work is not None
        self._answer(work)

    def _answer_stopped(self) -> None:
        self._answer(self.stopped.pop())

    def _let_go(self) -> None:
        if self.stopped:  # they end first
            self.stopped.clear()
            return
        self.letting_go -= 1
        self._post(LedgersLetGo())

    def _answer(self, work: Work) -> None:
        error = self.pick([*[None] * 7, TROUBLE, FINAL])
        match work:
            case TakeRollStep():
                if error is not None:
                    self._post(RollFailed(work.number, error))
                else:
                    self._post(RollStepped(work.number, self._rolled(work)))
            case TakeOver():
                self._post(self._reopened() if error is None else ReopenFailed(error))
            case CloseSegment():
                self._post(SegmentClosed() if error is None else CloseFailed(error))

    def _rolled(self, work: TakeRollStep) -> roll.RollEvent:
        match work.step:
            case roll.CreateSegmentLedger():
                return roll.LedgerCreated(self._new_ledger())
            case roll.ListSegment():
                return roll.SegmentListed()
            case roll.CloseLedger():
                assert work.previous is not None
                assert not self.ledgers[work.previous].unconfirmed, "all of it is confirmed"
                return roll.LedgerClosed(seal(1))
            case roll.SealSegment():
                assert work.previous is not None
                self.held.discard(work.previous)
                return roll.SegmentSealed()

    def _new_ledger(self) -> LedgerId:
        self._last_ledger = LedgerId(self._last_ledger + 1)
        self.ledgers[self._last_ledger] = Ledger()
        self.held.add(self._last_ledger)
        return self._last_ledger

    def _reopened(self) -> Reopened:
        """Recovery keeps some of what was in flight: the first ones."""
        unconfirmed = [g for ledger in self.ledgers.values() for g in ledger.unconfirmed]
        end = self.machine.confirmed_offset
        for batch in unconfirmed[: self.pick(range(len(unconfirmed) + 1))]:
            if self.offsets[id(batch)] == end:
                end += batch.count
        for own_id, ledger in self.ledgers.items():
            ledger.failed = True
            self._late += [own_id] * len(ledger.unconfirmed)
            ledger.unconfirmed.clear()
        if end > self.machine.confirmed_offset + 1 and self.pick([False] * 9 + [True]):
            end -= 1  # somebody cut it
        ledger_id = self._new_ledger()
        number = int(ledger_id) + 100
        segments = (
            Segment(number - 1, LedgerId(999), 0, 0, seal(end)),
            Segment(number, ledger_id, 0, end),
        )
        manifest = Manifest(incarnation="i", segments=segments, next_segment=number + 1, epoch=1)
        self.kept = end
        return Reopened(manifest, number, ledger_id)

    # What the writer asks for.

    def _post(self, event: Event) -> None:
        self._events.append(event)
        while self._events:
            event = self._events.popleft()
            before = self.machine.phase
            effects = self.rig.step(event)
            name, after = name_of(event), self.machine.phase
            assert after in TRANSITIONS[name, before]
            self.seen.add((name, before, after))
            for effect in effects:
                self._execute(effect, after)

    def _execute(self, effect: Effect, phase: LogWriterPhase) -> None:
        match effect:
            case Sends():
                assert phase is LogWriterPhase.APPENDING, f"nothing is sent while {phase.value}"
                self._send(effect)
            case Confirm():
                assert effect.offset == self.offsets[id(effect.batch)]
                self._settle(effect.batch, effect)
            case LeaveUnknown():
                assert effect.offset == self.offsets[id(effect.batch)]
                self._settle(effect.batch, effect)
            case Refuse():
                in_doubt = [g for ledger in self.ledgers.values() for g in ledger.unconfirmed]
                assert not any(effect.batch is g for g in in_doubt), "it may be in the log"
                self._settle(effect.batch, effect)
            case Answer():
                self.tickets.remove(effect.ticket)
            case TakeRollStep() | TakeOver() | CloseSegment():
                assert self.work is None, "one after another"
                self.work = effect
            case StopWork():
                if self.work is not None:
                    self.stopped.append(self.work)
                    self.work = None
            case LetGo():
                assert self.held.issuperset(effect.ledger_ids) or phase is LogWriterPhase.LEAVING
                self.held.difference_update(effect.ledger_ids)
                self.letting_go += 1
            case Closed():
                assert not self.closed
                self.closed = True
            case Lost():
                self.is_lost = True
            case Note():
                pass
            case SendEntries():
                raise AssertionError("the rig has made it `Sends`")

    def _send(self, effect: Sends) -> None:
        assert effect.ledger_id in self.held
        for sent, entry in enumerate(effect.entries):
            batch = entry.batch
            ledger = self.ledgers[effect.ledger_id]
            if self._refuses or ledger.failed:
                self._refuses = False
                error = self.pick([TROUBLE, TROUBLE, FINAL])
                left = len(effect.entries) - sent
                if self.pick([False, False, True]):  # as if somebody called when he heard of it
                    self._events.append(TroubleMet(self.pick([TROUBLE, FINAL])))
                self._events.append(SendRefused(effect.ledger_id, left, error))
                return
            ledger.unconfirmed.append(batch)
            assert entry.previous_txid == NO_TXID

    def _settle(self, batch: PendingBatch, effect: WritingEffect) -> None:
        assert id(batch) not in self.outcomes, "one outcome each"
        self.outcomes[id(batch)] = effect
