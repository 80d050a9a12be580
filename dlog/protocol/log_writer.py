"""What the writer of one open log does: sends, rolls, reopens, closes; and how each append ends.

Batches of records (`protocol.pending_batch`) pass through it, never single ones: those come in at
`protocol.accumulator`. A takeover (`protocol.takeover`) has opened the log before a writer begins.

    appending   what gathers is sent as entries; the other steps of a roll go on beside
    holding     a roll is about to switch: nothing is sent until all that was sent is confirmed
    reopening     it is found out which of what was in flight is in the log; nothing is sent
    sealing     all is confirmed: ledgers are closed, and the manifest gets their ends
    leaving     every append has its outcome; what is still held is let go of
    closed      nothing happens any more

Closing is no phase: a writer that is to close takes nothing more (`RecordAccumulator.shut`), but
sends, rolls and reopens until nothing is pending. `TABLE` says which event may come in which phase.

Reopening: trouble that may pass (too few bookies, no metadata store at an ensemble change) ends a
ledger, not the writer. It lets go of its ledgers and takes its own log over, within its epoch:
the epoch is looked at before anything is fenced, and the swap proves that it held. So a writer
that reopens never disturbs a successor, and what its old ledgers hold is settled once and for all.
Entries in flight that are in the log get confirmed, the others are sent again to the new ledger,
with the same offsets. If anybody else took the log meanwhile, the writer ends.

The first bookies that are back may be gone again, so a reopening need not help: the trouble lasts
until the new ledger confirms an entry, or nothing is left to be sent. Until then the writer reopens
again, later each time (`REOPEN_BACKOFF_S`, doubled up to `REOPEN_BACKOFF_S_MAX`), and ends with the
first error that comes `reopen_timeout_s` after the trouble began, or then if it reopens. So one
trouble makes at most 6 + reopen_timeout_s / `REOPEN_BACKOFF_S_MAX` takeovers, each of which leaves
one segment, or none.
A ledger that a stranger made at its bookies first (`KeyDiffers`) was closed as empty by the
ledger's own writer, and is replaced at once; at most `EMPTY_CLOSES_MAX` of them in one trouble.

How an append ends: confirmed with its `RecordId`; refused before it was taken (the log goes on);
`AppendOutcomeUnknown` if it was in flight when the writer ended; `LostOwnership`, `LogSealed`,
`LogClosed` or `AppendFailed` if it was certainly not sent, or not kept.

Invariants (asserted by `check`):
    confirmed offset <= sent offset <= next offset
    in flight is exactly what is sent and not confirmed; nothing is when it seals or has ended
    it holds exactly while the roll does, and something is in flight then
    when it reopens there is a time by which that ends; only then does a takeover wait for its time
"""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from types import MappingProxyType
from typing import Final, assert_never

from dlog.errors import (
    AppendFailed,
    CloseTimedOut,
    DamagedLog,
    EpochChanged,
    InvalidPosition,
    LogClosed,
    LogSealed,
    LostOwnership,
    NoSuchLog,
    RollPostponed,
)
from dlog.manifest import Manifest
from dlog.position import NO_TXID
from dlog.protocol import roll
from dlog.protocol.accumulator import RecordAccumulator
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
    WritingEffect,
    WritingEvent,
)
from dlog.protocol.pending_batch import PendingBatch
from dlog.protocol.roll import Roll
from dlog.receipts import Receipt
from ledger.delays import Backoff
from ledger.errors import (
    AccessDenied,
    BadVersion,
    CallerError,
    KeyDiffers,
    LedgerFenced,
    LogError,
    NoSuchLedger,
)
from ledger.ids import EntryId, LedgerId
from ledger.protocol.common import CHECKS


class LogWriterPhase(Enum):
    __hash__ = object.__hash__  # Enum's own is Python code, and each step looks into `TRANSITIONS`

    APPENDING = "appending"
    HOLDING = "holding"
    REOPENING = "reopening"
    SEALING = "sealing"
    LEAVING = "leaving"
    CLOSED = "closed"


TABLE: Final = """
    event             appending  holding  reopening  sealing  leaving  closed
    gathered          A          O        E        S        L        C
    confirmed         A S        A O S    E        S        L        C
    AddFailed         A E L      O E L    E        S        L        C
    SendRefused       E L        .        E        .        L        .
    TroubleMet        E L        E L      E L      S        L        C
    SiblingNamed      .          .        .        .        L        C
    Broke             L          L        L        L        L        C
    FlushRequested    A          O        E        S        L        C
    RollRequested     A          O        E        S        L        C
    CloseRequested    A S        O        E        S        L        C
    AbandonRequested  L          L        L        L        L        C
    RollStepped       A O        .        E        S        L        .
    RollFailed        A L        .        E        S        L        .
    Reopened          .          .        A S L    .        L        .
    ReopenFailed      .          .        E L      .        L        .
    SegmentClosed     .          .        .        S L      L        .
    CloseFailed       .          .        .        L        L        .
    LedgersLetGo      .          .        E        S        L C      .
    TimePassed        A L        O L      E L      S L      .        .
"""
"""The phases that may follow, by the event, or method, and the phase it comes in: (A)ppending,
h(O)lding, r(E)opening, (S)ealing, (L)eaving, (C)losed. A dot: that event must not come."""

_LETTERS: Final = dict(zip("AOESLC", LogWriterPhase, strict=True))


def _parsed(table: str) -> Mapping[tuple[str, LogWriterPhase], frozenset[LogWriterPhase]]:
    rows = [re.split(" {2,}", line.strip()) for line in table.strip().splitlines()]
    assert rows[0] == ["event", *(phase.value for phase in LogWriterPhase)]
    return MappingProxyType(
        {
            (event, phase): frozenset(_LETTERS[letter] for letter in cell.split())
            for event, *cells in rows[1:]
            for phase, cell in zip(LogWriterPhase, cells, strict=True)
            if cell != "."
        }
    )


TRANSITIONS: Final = _parsed(TABLE)
"""`TABLE` by event and phase; without an item where the event must not come."""

REOPEN_TIMEOUT_S: Final = 30.0
"""How long a writer tries to reopen unless asked otherwise."""
REOPEN_BACKOFF_S: Final = 0.1
"""How long a takeover waits if the one before did not help; twice as long each time."""
REOPEN_BACKOFF_S_MAX: Final = 2.0
EMPTY_CLOSES_MAX: Final = 20
"""So many ledgers, with no entry confirmed between, may turn out to be a stranger's, and be closed
empty, before the writer ends: with a block of ids left behind each time, more than a bookie takes
unasked."""
CLOSE_S: Final = 30.0
"""How long closing takes at most unless asked otherwise."""
ROLL_PATIENCE_S: Final = 30.0
"""How long who asked for a roll waits for it."""

_TAKEN_OVER = (LedgerFenced, LostOwnership, EpochChanged, NoSuchLog, NoSuchLedger)


@dataclass(frozen=True, slots=True)
class _Flushing:
    """Who waits until all below *offset* is confirmed; and then for a roll, if it *rolls*."""

    offset: int
    ticket: int
    rolls: bool


@dataclass(frozen=True, slots=True)
class _Rolling:
    """Who waits until all segments below *segment* are sealed, or until *by*."""

    segment: int
    by: float
    ticket: int


class Writing:
    """The writer of *log*, which was opened as *manifest* says with *segment* in *ledger_id*."""

    def __init__(
        self,
        log: str,
        manifest: Manifest,
        segment: int,
        ledger_id: LedgerId,
        accumulator: RecordAccumulator,
        *,
        reopen_timeout_s: float,
        now: float,
    ) -> None:
        """*reopen_timeout_s*: how long trouble may last; 0: it ends the writer at once."""
        self.log = log
        self.phase = LogWriterPhase.APPENDING
        self.error: LogError | None = None
        """What ended the writer; `LogClosed` once it seals."""
        self.closing = False
        """Whether `CloseRequested` or `AbandonRequested` came."""
        self.close_error: LogError | None = None
        """Why closing did not confirm all that was pending."""
        self.confirmed_offset = self._sent_offset = accumulator.next_offset
        """Offsets of the next record to be confirmed, and to be sent."""
        self.confirmed_txid = self._sent_txid = manifest.sealed_last_txid
        self.segment = segment
        self._accumulator = accumulator
        self._packer = accumulator.packer
        self._reopen_timeout_s = reopen_timeout_s
        self._ledger_id = ledger_id
        self._segment_first = accumulator.next_offset
        self._segment_bytes = 0
        """Of the entries that are confirmed."""
        self._confirmed_entry = -1
        self._receipt: Receipt | None = None
        """Of the last unit that was sent to the ledger: all entries after it carry it too."""
        self._flushing: deque[_Flushing] = deque()
        self._close_by: float | None = None
        self._close_s = 0.0
        self._to_seal: deque[CloseSegment] = deque()
        """Segments whose end is still to be recorded, the first one is asked for."""
        self._letting_go = 0
        """`LetGo`s that are not answered."""

        self._roll = Roll(manifest.settings, segment, now=now)
        self._rolls = 1
        """Number of `_roll`; answers for one before it come too late."""
        self._rolling: list[_Rolling] = []
        self._roll_trouble = "its ledgers are slow"
        """Why a roll that is under way takes long."""
        self._previous: LedgerId | None = None
        """The ledger that was switched from, until it is sealed; the next one is the roll's."""
        self._previous_txid = NO_TXID

        self._trouble: LogError | None = None
        """Why it reopens: the last one that was met."""
        self._backoff = Backoff(REOPEN_BACKOFF_S, REOPEN_BACKOFF_S_MAX)
        self._reopen_by: float | None = None
        """When reopening from the present trouble ends; None: there is none."""
        self._reopen_at: float | None = None
        """When it takes the log over; None: it does so now, or does not reopen."""
        self._reopened_offset = -1
        """What was confirmed when the last reopening ended."""
        self._empty_closes = 0
        """Ledgers that strangers had, since the last entry that was confirmed."""

    @property
    def own_ledgers(self) -> frozenset[LedgerId]:
        """The ledger that is appended to, and the next one if a roll has made it."""
        own = (self._ledger_id, self._roll.next_ledger)
        return frozenset(ledger_id for ledger_id in own if ledger_id is not None)

    def check_truncation(self, before: int) -> None:
        """Raise `InvalidPosition` if *before* is beyond what is confirmed, or what ended this."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        if not 0 <= before <= self.confirmed_offset:
            reason = f"the log ends at offset {self.confirmed_offset}"
            raise InvalidPosition(self.log, before, reason)

    def deadline(self) -> float | None:
        """Return when `TimePassed` is due, or None."""
        if self.phase is LogWriterPhase.LEAVING or self.phase is LogWriterPhase.CLOSED:
            return None
        reopens = self.phase is LogWriterPhase.REOPENING
        rolls = self.phase is LogWriterPhase.APPENDING or self.phase is LogWriterPhase.HOLDING
        due = self._roll.deadline() if rolls else None
        if self._close_by is None and not reopens and not self._rolling:
            return due  # as it mostly is
        all_due = [due, self._close_by, *(r.by for r in self._rolling)]
        if reopens:
            all_due += [self._reopen_by, None if self._letting_go else self._reopen_at]
        return min((at for at in all_due if at is not None), default=None)

    def step(self, event: WritingEvent, *, now: float) -> list[WritingEffect]:
        """Apply *event*, return what to do."""
        before, name = self.phase, type(event).__name__
        assert (name, before) in TRANSITIONS, f"{name} while {before.value}"
        effects = self._dispatch(event, now)
        self._check_step(name, before)
        return effects

    def _check_step(self, name: str, before: LogWriterPhase) -> None:
        allowed = TRANSITIONS[name, before]
        assert self.phase in allowed, f"{name} led from {before.value} to {self.phase.value}"
        self.check()

    # What comes with each entry.

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued and nothing in flight: what is taken now may leave at once."""
        packer = self._packer
        return (
            packer.open is None and not packer.shut_bytes and self.phase is LogWriterPhase.APPENDING
        )

    def gathered(self, _now: float) -> Sequence[WritingEffect]:
        """Records have come in since this was called last."""
        before = self.phase
        self._accumulator.is_woken = False
        effects = self._send()
        if CHECKS.costly:
            self._check_step("gathered", before)
        return effects

    def confirmed(
        self, ledger_id: LedgerId, entry_id: EntryId, size_bytes: int, now: float
    ) -> Sequence[WritingEffect]:
        """The oldest entry in flight is kept, as *entry_id* of the ledger; *size_bytes*: of the
        encoded batch."""
        before = self.phase
        if not self._hears(ledger_id):
            return ()
        assert entry_id == self._confirmed_entry + 1, "entries are confirmed in order"
        effects: list[WritingEffect] = [self._confirm()]
        self._segment_bytes += size_bytes
        if self.phase is LogWriterPhase.APPENDING:
            if self._packer.full:
                effects += self._send()
            elif self._packer.open is not None:  # whoever hears of this confirmation may add to it
                self._accumulator.wake_writer()
        elif not self._packer.in_flight:
            effects += self._step_roll(roll.AddsConfirmed(), now)
        records = self.confirmed_offset - self._segment_first
        if rolls := self._roll.grown(records, self._segment_bytes, now):
            effects += self._carry_roll(rolls, self._roll.next_ledger, now)
        if self._flushing:
            effects += self._flushed(now)
        if self.closing:
            effects += self._seal_if_done()
        assert self.confirmed_offset <= self._sent_offset <= self._accumulator.next_offset
        if CHECKS.costly:
            self._check_step("confirmed", before)
        return effects

    def check(self) -> None:
        phase, in_flight = self.phase, self._packer.in_flight > 0
        confirmed, sent = self.confirmed_offset, self._sent_offset
        assert confirmed <= sent <= self._accumulator.next_offset
        if phase is LogWriterPhase.APPENDING or phase is LogWriterPhase.HOLDING:
            assert self._roll.holds == (phase is LogWriterPhase.HOLDING)
        if phase is LogWriterPhase.APPENDING or phase is LogWriterPhase.REOPENING:
            assert in_flight == (confirmed < sent)
        else:
            assert in_flight == (phase is LogWriterPhase.HOLDING)
        assert bool(self._to_seal) == (phase is LogWriterPhase.SEALING)
        assert phase is not LogWriterPhase.REOPENING or self._reopen_by is not None
        assert phase is LogWriterPhase.REOPENING or self._reopen_at is None

    def _dispatch(  # noqa: C901, PLR0911, PLR0912 - one way out per event
        self, event: WritingEvent, now: float
    ) -> list[WritingEffect]:
        match event:
            case AddFailed():
                return self._met(event.error, now) if self._hears(event.ledger_id) else []
            case SendRefused():
                return self._send_refused(event, now)
            case TroubleMet():
                return self._met(event.error, now)
            case SiblingNamed():
                return self._name(event.reason)
            case Broke():
                return self._break(event.error)
            case FlushRequested():
                return self._wait(event.ticket, now, rolls=False)
            case RollRequested():
                return self._wait(event.ticket, now, rolls=True)
            case CloseRequested():
                return self._close(event.timeout_s, now)
            case AbandonRequested():
                return self._abandon()
            case RollStepped():
                return self._roll_stepped(event, now)
            case RollFailed():
                return self._roll_failed(event, now)
            case Reopened():
                return self._reopened(event, now)
            case ReopenFailed():
                return self._reopen_failed(event.error, now)
            case SegmentClosed():
                return self._segment_closed()
            case CloseFailed():
                return self._close_incomplete(str(event.error))
            case LedgersLetGo():
                return self._let_go(now)
            case TimePassed():
                return self._time_passed(now)
            case _:
                assert_never(event)

    # Appends.

    def _send(self) -> list[WritingEffect]:
        """Send what may be sent now."""
        if self.phase is not LogWriterPhase.APPENDING:
            return []
        batches: list[PendingBatch] = []
        packer = self._packer
        while (packer.open is not None or packer.full) and (batch := packer.take()) is not None:
            self._receipt = batch.receipt or self._receipt
            batch.base_index = self._sent_offset - self._segment_first
            batch.previous_txid, batch.carries = self._sent_txid, self._receipt
            batches.append(batch)
            self._sent_offset += batch.count
            if batch.newest_txid != NO_TXID:
                self._sent_txid = batch.newest_txid
        return [SendEntries(self._ledger_id, tuple(batches))] if batches else []

    def _hears(self, ledger_id: LedgerId) -> bool:
        """Whether answers of that ledger count: reopening finds out how those before ended.

        Nor do they count once appends have their outcome."""
        sends = self.phase is LogWriterPhase.APPENDING or self.phase is LogWriterPhase.HOLDING
        return sends and ledger_id == self._ledger_id

    def _confirm(self) -> Confirm:
        """Confirm the oldest batch in flight, as the next entry of the present segment."""
        batch = self._packer.confirmed()
        offset = self.confirmed_offset
        self._confirmed_entry += 1
        self.confirmed_offset = offset + batch.count
        if batch.newest_txid != NO_TXID:
            self.confirmed_txid = batch.newest_txid
        return Confirm(batch, offset, self.segment, self._confirmed_entry)

    def _send_refused(self, event: SendRefused, now: float) -> list[WritingEffect]:
        if not self._hears(event.ledger_id):
            return []
        for _ in range(event.unsent):
            self._sent_offset -= self._packer.put_back().count
        return self._met(event.error, now)

    def _begin_segment(self, ledger_id: LedgerId, segment: int) -> None:
        self._ledger_id = ledger_id
        self.segment = segment
        self._segment_first = self._sent_offset
        self._segment_bytes = 0
        self._confirmed_entry = -1
        self._receipt = None
        self.phase = LogWriterPhase.APPENDING

    # Callers who wait.

    def _wait(self, ticket: int, now: float, *, rolls: bool) -> list[WritingEffect]:
        if self.error is not None:
            return [Answer(ticket, self.error)]
        self._flushing.append(_Flushing(self._accumulator.next_offset, ticket, rolls))
        return self._flushed(now)

    def _flushed(self, now: float) -> list[WritingEffect]:
        effects: list[WritingEffect] = []
        while self._flushing and self._flushing[0].offset <= self.confirmed_offset:
            waiting = self._flushing.popleft()
            if waiting.rolls:
                effects += self._ask_for_roll(waiting.ticket, now)
            else:
                effects.append(Answer(waiting.ticket))
        return effects

    def _ask_for_roll(self, ticket: int, now: float) -> list[WritingEffect]:
        self._rolling.append(_Rolling(self._roll.segment + 1, now + ROLL_PATIENCE_S, ticket))
        if self.phase is LogWriterPhase.REOPENING:  # which begins a new segment
            return []
        return self._step_roll(roll.RollOrdered(), now)

    def _answer_rolls(
        self, *, sealed: float = inf, now: float = inf, error: LogError | None = None
    ) -> list[WritingEffect]:
        """Answer who waits for a segment up to *sealed*, until *now* at the latest."""
        due = [w for w in self._rolling if w.segment <= sealed and w.by <= now]
        self._rolling = [waiting for waiting in self._rolling if waiting not in due]
        return [Answer(waiting.ticket, error) for waiting in due]

    # Rolls.

    def _step_roll(self, event: roll.RollEvent, now: float) -> list[WritingEffect]:
        next_ledger = self._roll.next_ledger
        return self._carry_roll(self._roll.step(event, now=now), next_ledger, now)

    def _carry_roll(
        self, asked: Sequence[roll.RollEffect], next_ledger: LedgerId | None, now: float
    ) -> list[WritingEffect]:
        effects: list[WritingEffect] = []
        for effect in asked:
            match effect:
                case roll.HoldAdds():
                    self.phase = LogWriterPhase.HOLDING
                    if not self._packer.in_flight:
                        effects += self._step_roll(roll.AddsConfirmed(), now)
                case roll.SwitchSegment():
                    assert not self._packer.in_flight, "adds of the ledger before are unconfirmed"
                    assert next_ledger is not None
                    self._previous, self._previous_txid = self._ledger_id, self.confirmed_txid
                    self._begin_segment(next_ledger, effect.segment)
                    effects += self._send()
                case roll.Rolled():
                    effects += self._answer_rolls(sealed=effect.segment)
                case _:
                    effects.append(
                        TakeRollStep(self._rolls, effect, self._previous, self._previous_txid)
                    )
        return effects

    def _roll_stepped(self, event: RollStepped, now: float) -> list[WritingEffect]:
        if event.number != self._rolls:
            made = event.event
            return self._give_back(made.ledger_id) if isinstance(made, roll.LedgerCreated) else []
        if isinstance(event.event, roll.SegmentSealed):
            self._previous = None
        return self._step_roll(event.event, now)

    def _roll_failed(self, event: RollFailed, now: float) -> list[WritingEffect]:
        if event.number != self._rolls:
            return []
        error = event.error
        fields = {"error": str(error)}
        if error.retryable or isinstance(error, LedgerFenced | BadVersion):
            self._roll_trouble = str(error)
            return [Note("roll_postponed", fields), *self._step_roll(roll.StepFailed(), now)]
        return [Note("roll_failed", fields), *self._met(error, now)]

    def _own(self) -> tuple[LedgerId, ...]:
        """Return the ledgers that this writer holds, in the order of their segments."""
        own = (self._previous, self._ledger_id, self._roll.next_ledger)
        return tuple(ledger_id for ledger_id in own if ledger_id is not None)

    def _give_back(self, *ledger_ids: LedgerId) -> list[WritingEffect]:
        self._letting_go += 1
        return [LetGo(ledger_ids)]

    def _let_go(self, now: float) -> list[WritingEffect]:
        assert self._letting_go
        self._letting_go -= 1
        if self._letting_go or self.phase is LogWriterPhase.SEALING:
            return []
        if self.phase is LogWriterPhase.LEAVING:
            self.phase = LogWriterPhase.CLOSED
            return [Closed()]
        return self._take_over_if_due(now)

    # Trouble, and reopening.

    def _met(self, error: LogError, now: float) -> list[WritingEffect]:
        """Reopen from *error*, or end with it."""
        if self.error is not None:
            return []
        if error.retryable and self._reopen_timeout_s > 0 and not isinstance(error, CallerError):
            if self.phase is LogWriterPhase.REOPENING:
                return []
            if self._may_reopen(error, now):
                return self._reopen(error, now)
        return self._end(error)

    def _may_reopen(self, error: LogError, now: float) -> bool:
        if self.confirmed_offset > self._reopened_offset:  # the last reopening helped
            self._reopen_by = None
            self._empty_closes = 0
            self._backoff.reset()
        if self._reopen_by is None:
            self._reopen_by = now + self._reopen_timeout_s
        self._empty_closes += _closed_empty(error)
        return now < self._reopen_by and self._empty_closes <= EMPTY_CLOSES_MAX

    def _reopen(self, error: LogError, now: float) -> list[WritingEffect]:
        self.phase = LogWriterPhase.REOPENING
        self._trouble = error
        self._rolls += 1
        helped = self.confirmed_offset > self._reopened_offset
        at_once = helped or _closed_empty(error)
        self._reopen_at = now if at_once else now + self._backoff.next()
        note = Note("writer_reopens", {"error": str(error)})
        return [note, StopWork(), *self._give_back(*self._own())]

    def _take_over_if_due(self, now: float) -> list[WritingEffect]:
        """Take over at its time, but not before all is let go of that this writer held."""
        if self._letting_go or not _is_due(self._reopen_at, now):
            return []
        self._reopen_at = None
        return [TakeOver()]

    def _reopen_failed(self, error: LogError, now: float) -> list[WritingEffect]:
        if self.phase is not LogWriterPhase.REOPENING:
            return []
        if not error.retryable:
            return self._end(error)
        self._trouble = error
        self._reopen_at = now + self._backoff.next()
        return [Note("reopening_postponed", {"error": str(error)})]

    def _reopened(self, event: Reopened, now: float) -> list[WritingEffect]:
        """Settle what was in flight by what the log holds; go on in the new segment."""
        if self.phase is not LogWriterPhase.REOPENING:
            return self._give_back(event.ledger_id)
        manifest, packer = event.manifest, self._packer
        end = manifest.sealed_end
        effects: list[WritingEffect] = []
        while packer.in_flight and self.confirmed_offset + packer.oldest.count <= end:
            effects.append(self._confirm())
        if self.confirmed_offset != end:
            reason = f"it ends at {end} where its writer has {self.confirmed_offset}"
            return effects + self._end(DamagedLog(self.log, reason), event.ledger_id)
        packer.put_all_back()
        self._sent_offset = end
        self._sent_txid = self.confirmed_txid = manifest.sealed_last_txid
        self._reopened_offset = end
        self._trouble = None
        if self._accumulator.next_offset == end:
            self._reopen_by = None  # nothing is left that could show whether it helped
        self._previous = None
        self._roll = Roll(manifest.settings, event.segment, now=now)
        self._begin_segment(event.ledger_id, event.segment)
        effects.append(Note("writer_reopened", {"segment": event.segment}, warns=False))
        effects += self._answer_rolls()
        effects += self._send()
        effects += self._flushed(now)
        return effects + self._seal_if_done()

    # The end.

    def _end(self, error: LogError, *own: LedgerId) -> list[WritingEffect]:
        """Resolve everything, let go of *own*, or of what the writer holds unless it reopens."""
        if isinstance(error, LogSealed | LogClosed | AccessDenied):
            self.error = error
        elif isinstance(error, _TAKEN_OVER):
            self.error = LostOwnership(self.log, str(error))
        else:
            self.error = AppendFailed(self.log, str(error))
        if self.closing and self.confirmed_offset < self._accumulator.next_offset:
            self.close_error = self.close_error or self.error
        if not self.closing:
            self._accumulator.shut(self.error)
        own = own if self.phase is LogWriterPhase.REOPENING else self._own()
        note = Note("writer_ended", {"error": str(error)}, warns=False)
        effects: list[WritingEffect] = [note, StopWork(), *self._outcomes(error, self.error)]
        effects += [Answer(waiting.ticket, self.error) for waiting in self._flushing]
        self._flushing.clear()
        effects += self._leave(*own)
        return [*effects, Lost()]

    def _name(self, reason: str) -> list[WritingEffect]:
        """Let later errors say who has the log now; what was told already stands."""
        if isinstance(self.error, LostOwnership):
            self.error = LostOwnership(self.log, reason)
            if not self.closing:
                self._accumulator.shut(self.error)
        return []

    def _break(self, error: LogError) -> list[WritingEffect]:
        if self.phase is LogWriterPhase.SEALING:
            return self._close_incomplete(str(error))
        return [] if self.error is not None else self._end(error)

    def _outcomes(self, error: LogError, ended: LogError) -> list[WritingEffect]:
        sent, unsent = self._packer.fail()
        effects: list[WritingEffect] = []
        offset = self.confirmed_offset
        for batch in sent:
            if _closed_empty(error):
                effects.append(Refuse(batch, ended))
            else:
                effects.append(LeaveUnknown(batch, offset, str(error)))
            offset += batch.count
        return effects + [Refuse(batch, ended) for batch in unsent]

    def _leave(self, *own: LedgerId) -> list[WritingEffect]:
        self.phase = LogWriterPhase.LEAVING
        self._reopen_at = None
        self._rolls += 1
        self._to_seal.clear()
        return [*self._answer_rolls(error=self.error), *self._give_back(*own)]

    def _abandon(self) -> list[WritingEffect]:
        closed = LogClosed(self.log)
        self.closing = True
        self._accumulator.shut(closed)
        if self.phase is LogWriterPhase.SEALING:
            return [StopWork(), *self._leave(*self._own())]
        return [] if self.error is not None else self._end(closed)

    def _close(self, timeout_s: float | None, now: float) -> list[WritingEffect]:
        if self.closing:
            return []
        self.closing = True
        self._accumulator.shut(LogClosed(self.log))
        if self.error is not None:
            self.close_error = self.error
            return []
        if timeout_s is not None:
            self._close_s, self._close_by = timeout_s, now + timeout_s
        return self._seal_if_done()

    def _seal_if_done(self) -> list[WritingEffect]:
        """Seal, if that was asked for and all is confirmed."""
        pending = self.confirmed_offset < self._accumulator.next_offset
        if not self.closing or pending or self.phase is not LogWriterPhase.APPENDING:
            return []
        self.phase = LogWriterPhase.SEALING
        self.error = LogClosed(self.log)
        self._rolls += 1
        number, txid = self.segment, self.confirmed_txid
        own = (
            (number - 1, self._previous, self._previous_txid, False),
            (number, self._ledger_id, txid, True),
            (number + 1, self._roll.next_ledger, txid, True),
        )
        for segment, ledger_id, last_txid, closes in own:
            if ledger_id is not None:
                self._to_seal.append(CloseSegment(segment, ledger_id, last_txid, closes))
        rolls = self._answer_rolls(error=self.error)
        return [StopWork(), *rolls, self._to_seal[0]]

    def _segment_closed(self) -> list[WritingEffect]:
        if self.phase is not LogWriterPhase.SEALING:
            return []
        self._to_seal.popleft()
        return [self._to_seal[0]] if self._to_seal else self._leave(*self._own())

    def _close_incomplete(self, reason: str) -> list[WritingEffect]:
        """What cannot be sealed now is sealed by the next open: no record depends on it."""
        if self.phase is not LogWriterPhase.SEALING:
            return []
        note = Note("close_incomplete", {"error": reason})
        return [note, StopWork(), *self._leave(*self._own())]

    # Time.

    def _time_passed(self, now: float) -> list[WritingEffect]:
        if _is_due(self._close_by, now):
            return self._close_timed_out()
        if self.phase is LogWriterPhase.REOPENING and _is_due(self._reopen_by, now):
            assert self._trouble is not None
            return self._end(self._trouble)
        error = RollPostponed(self.log, ROLL_PATIENCE_S, self._roll_trouble)
        effects = self._answer_rolls(now=now, error=error)
        effects += self._take_over_if_due(now)
        if self.phase is LogWriterPhase.APPENDING or self.phase is LogWriterPhase.HOLDING:
            effects += self._step_roll(roll.RollTimePassed(), now)
        return effects

    def _close_timed_out(self) -> list[WritingEffect]:
        if self.phase is LogWriterPhase.SEALING:
            return self._close_incomplete(f"not done within {self._close_s:g} s")
        pending = self._accumulator.next_offset - self.confirmed_offset
        if not pending:  # it reopens from trouble of a roll
            return self._end(LogClosed(self.log))
        self.close_error = CloseTimedOut(self.log, pending, self._close_s)
        return self._end(self.close_error)


def _is_due(at: float | None, now: float) -> bool:
    return at is not None and at <= now


def _closed_empty(error: LogError) -> bool:
    """Whether *error* says that nothing which was sent to the ledger is kept."""
    return isinstance(error, KeyDiffers) and error.closed_empty
