"""The writer of one open ledger: adds, in-order confirmation, ensemble change, close.

The machine knows entry ids, never payloads: the driver keeps the frames of all entries above
`last_add_confirmed` and sends what `SendAdds` names.

Story of an ensemble change (rules 19-25). (A) A bookie fails; its slot is marked and the
phase becomes CHANGING, which blocks confirmation: an entry confirmed now on the old ensemble
could fall into the new fragment, whose bookies may lack it. (B) The driver picks
replacements. (C) The new fragment, beginning at last_add_confirmed + 1, is written by CAS.
(D) Only then the replaced slots are emptied, all of them, and all pending entries are sent
to the new bookies; (E) only then what the others stored meanwhile may confirm entries.
If there is no replacement, the ledger goes on degraded as long as every write set has Qa
bookies left (rule 27), and tries the bookies that were down again from time to time. With
`WriterConfig.delay_ensemble_change` it does so also if there are replacements.

What it wrote without a bookie is marked for repair at once, which can make those copies when the
fragment is settled. So once the bookie is back the writer begins a new fragment, by a change to
the same bookies; and a bookie that the registry does not list for long is left for another one,
though it has not failed. Both are wishes: without a bookie to take, nothing happens
(`ledger.protocol.ensemble_change`).

A bookie that holds the ledger under another key (a stranger made it there first) never takes an
entry of it: it is replaced at once. If too few others are left and nothing was confirmed, nothing
is promised either, so the writer closes the ledger as empty: its owner knows the outcome of all
adds, and goes on in a new ledger.

One request to the metadata store is under way at a time, so an answer is always to the last.

Invariants (asserted by `check`):
    last_add_confirmed <= last_add_pushed
    nothing is confirmed while the ensemble changes, nor after the writer failed
    the slots are the last fragment's ensemble as recorded
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from ledger.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol.acks import AckTracker
from ledger.protocol.common import (
    CHECKS,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReadMetadata,
    ReplacementsChosen,
    Retries,
    TimePassed,
    WriteMetadata,
)
from ledger.protocol.ensemble_change import Absences, EnsembleChange
from ledger.protocol.writer_events import (
    AddsRefused,
    BookiesListed,
    CloseRequested,
    ConfirmAdds,
    FailWriter,
    FinishClose,
    LacksMarked,
    MarkingFailed,
    PublishLac,
    SendAdds,
    WriterEffect,
    WriterEvent,
    WriterFailure,
)
from ledger.requests import Status

METADATA_RETRY_S: Final = 0.2
METADATA_PATIENCE_S: Final = 30.0
DEGRADED_RETRY_S: Final = 10.0
BUSY_RETRY_S: Final = 0.05
BUSY_PATIENCE_S: Final = 20.0
"""How long a bookie may be too busy, without a success between, before it has failed."""
ENSEMBLE_CHANGES_MAX: Final = 1000
"""A ledger whose ensemble changes more often than this fails; its owner rolls (rule 28)."""
LEAVE_GONE_S: Final = 20.0


_NEVER_AGAIN: Final = frozenset({Status.NO_SUCH_LEDGER, Status.WRONG_KEY, Status.ACCESS_DENIED})
"""Who says that will not take the ledger's entries later either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterConfig:
    delay_ensemble_change: bool = False
    """Replace a failed bookie only once a write set has fewer than Qa others (rule 27).

    Saves changes when bookies restart one by one. Entries confirmed meanwhile have fewer
    copies until somebody repairs the ledger."""
    ensemble_changes_max: int = ENSEMBLE_CHANGES_MAX
    leave_gone_s: float = LEAVE_GONE_S
    """How long a bookie may be gone from the registry before another one takes its place. Longer
    than a restart takes; shorter than the grace after which repair fences an open ledger."""

    def __post_init__(self) -> None:
        assert self.leave_gone_s > 0
        assert self.ensemble_changes_max >= 0


class WriterPhase(Enum):
    __hash__ = object.__hash__  # Enum's own is Python code, and each add looks into `_OVER`

    OPEN = "open"
    CHANGING = "changing the ensemble"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


_CONFIRMING: Final = frozenset({WriterPhase.OPEN, WriterPhase.CLOSING})
"""What a step that confirms something may end with: it may have confirmed the last entry."""
_OVER: Final = frozenset({WriterPhase.CLOSED, WriterPhase.FAILED})


class Writer:
    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        version: int,
        config: WriterConfig | None = None,
    ) -> None:
        assert metadata.state is LedgerState.OPEN
        self._config = config or WriterConfig()
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.version = version
        self.phase = WriterPhase.OPEN
        self.last_add_pushed = NO_ENTRY
        self.length = 0
        self._acks = AckTracker(metadata.quorum, metadata.last_fragment.bookies, confirmed=NO_ENTRY)
        self._change = EnsembleChange(self._acks)
        self._absences = Absences(self._acks, leave_gone_s=self._config.leave_gone_s)
        self._closing: LedgerMetadata | None = None
        self._close_requested = False
        self._gives_up = False
        """Closes the ledger as empty, whatever was added: strangers have its bookies."""
        self._published = NO_ENTRY
        self._changes = 0
        self._busy: dict[int, float] = {}
        """Slots that answered that they are too busy, since when, and nothing else since."""
        self._resends = Retries[AddsRefused](BUSY_RETRY_S)
        """Refused by a busy bookie."""
        self._retry_at: float | None = None
        self._patience_until: float | None = None

    @property
    def last_add_confirmed(self) -> EntryId:
        return EntryId(self._acks.confirmed)

    @property
    def is_degraded(self) -> bool:
        """True while a slot is down without a replacement."""
        return bool(self._change.failed)

    @property
    def failed(self) -> tuple[BookieId, ...]:
        """Bookies of the ensemble that take nothing more and have no replacement, by index."""
        return tuple(self._acks.slots[index].bookie for index in sorted(self._change.failed))

    def deadline(self) -> float | None:
        if not self._resends.waiting and self._retry_at is None and self._absences.leave_at is None:
            return None  # as it mostly is
        if self.phase in _OVER:
            return None
        leave_at = self._absences.leave_at if self._may_change else None
        times = (self._resends.deadline(), self._retry_at, leave_at)
        return min((at for at in times if at is not None), default=None)

    @property
    def _may_change(self) -> bool:
        """True iff nothing stands against a change that is only wished for."""
        spare = self._changes < self._config.ensemble_changes_max
        is_free = self.phase is WriterPhase.OPEN and not self._close_requested
        return is_free and spare and not self._change.failed

    @property
    def _holds_confirmed(self) -> bool:
        """True iff an entry of the last fragment is confirmed."""
        return self.last_add_confirmed >= self.metadata.last_fragment.first_entry

    def step(self, event: WriterEvent, *, now: float) -> list[WriterEffect]:
        """Apply *event*; return what the driver must do, in order."""
        if self.phase in _OVER:
            return []
        confirmed_before = self._acks.confirmed
        effects: list[WriterEffect]
        match event:
            case AddsRefused():
                effects = self._refused(event, now)
            case ReplacementsChosen():
                effects = self._replacements_chosen(event, now)
            case MetadataWritten():
                effects = self._metadata_written(event.version, now)
            case MetadataRead():
                effects = self._metadata_read(event, now)
            case MetadataFailed():
                effects = self._metadata_failed(now)
            case BookiesListed():
                effects = self._listed(event, now)
            case LacksMarked():
                self._absences.marked(event)
                effects = [*self._absences.to_mark(self.metadata.last_fragment.first_entry)]
            case MarkingFailed():
                self._absences.marking_failed()  # again when it goes on without them again
                effects = []
            case CloseRequested():
                self._close_requested = True
                effects = self._progress(now)
            case TimePassed():
                effects = self._time_passed(now)
            case _:
                assert_never(event)
        self.check(confirmed_before=confirmed_before)
        return effects

    # What comes with each add.

    def append(self, count: int, payload_bytes: int, _now: float) -> Sequence[WriterEffect]:
        """The driver encoded *count* more entries of *payload_bytes* together; ids follow on."""
        if self.phase in _OVER:
            return ()
        assert not self._close_requested, "append after close is refused by the handle"
        assert count > 0
        first = self.last_add_pushed + 1
        self.last_add_pushed = EntryId(self.last_add_pushed + count)
        self.length += payload_bytes
        if CHECKS.costly:
            self.check(confirmed_before=self._acks.confirmed)
        return self._sends(range(len(self._acks.slots)), first, self.last_add_pushed)

    def stored(
        self, index: int, generation: int, first: int, last: int, now: float
    ) -> Sequence[WriterEffect]:
        """The bookie at *index* made durable what `SendAdds` with the same range asked for."""
        acks = self._acks
        if self.phase in _OVER or acks.slots[index].generation != generation:
            return ()  # of a bookie that was replaced (rule 8)
        before = acks.confirmed
        if last > before:
            acks.stored(index, generation, first, last)
        if self._busy:
            self._busy.pop(index, None)
        if self._absences.absent and not acks.slots[index].down:
            self._absences.stored(index)
        elif last <= before and self.phase is WriterPhase.OPEN:
            return ()  # the others have confirmed it
        effects = self._progress(now)
        assert before <= acks.confirmed <= self.last_add_pushed
        if CHECKS.costly:
            self.check(confirmed_before=before)
        return effects

    def check(self, *, confirmed_before: int) -> None:
        assert self.last_add_confirmed <= self.last_add_pushed
        assert self._acks.confirmed >= confirmed_before
        assert self._acks.confirmed == confirmed_before or self.phase in _CONFIRMING, (
            f"confirmed while {self.phase.value}"
        )
        assert self._acks.bookies == self.metadata.last_fragment.bookies
        assert (self.phase is WriterPhase.CLOSING) == (
            self._closing is not None
        ) or self.phase in _OVER
        assert not self._change.leaving or self._retry_at is None, "asks twice at once"

    def _sends(self, indexes: range | list[int], first: int, last: int) -> list[WriterEffect]:
        sends: list[WriterEffect] = []
        for index, slot in self._acks.takers(indexes, first, last):
            sends.append(SendAdds(index, slot.bookie, slot.generation, first, last))
        return sends

    def _progress(self, now: float) -> list[WriterEffect]:
        """Confirm what may be confirmed; then, if nothing is pending, close or publish the LAC."""
        if self.phase is not WriterPhase.OPEN:
            return []  # blocked until the change is recorded (rule 19)
        if (
            self._absences.absent
            and self._absences.are_over
            and self._may_change
            and self._holds_confirmed
        ):
            return self._settle(now)  # what could be confirmed now is so behind it
        effects: list[WriterEffect] = []
        before = self._acks.confirmed
        confirmed = EntryId(self._acks.advance(self.last_add_pushed))
        if confirmed > before:
            effects.append(ConfirmAdds(confirmed))
        if confirmed < self.last_add_pushed:
            return effects
        if self._close_requested:
            effects += self._begin_close()
        elif self._published < confirmed:
            self._published = confirmed
            up = self._acks.bookies
            if self._change.failed:
                up = tuple(slot.bookie for slot in self._acks.slots if not slot.down)
            effects.append(PublishLac(confirmed, self.length, up))
        return effects

    # Ensemble change.

    def _refused(self, event: AddsRefused, now: float) -> list[WriterEffect]:
        if not self._acks.is_current(event.index, event.generation):
            return []  # the bookie was replaced already
        if event.first <= self.last_add_confirmed:
            self._absences.missed(event.index)
        if self.phase is WriterPhase.CLOSING:
            return []  # all is confirmed: only the closing CAS decides what the ledger is
        match event.status:
            case Status.FENCED:
                return self._fail(WriterFailure.FENCED)
            case Status.CONFLICT:
                return self._fail(WriterFailure.CONFLICT)
            case (
                Status.OK
                | Status.NO_SUCH_LEDGER
                | Status.WRONG_KEY
                | Status.ACCESS_DENIED
                | Status.IO_ERROR
                | Status.TOO_MANY_REQUESTS
                | Status.READ_ONLY
                | Status.BAD_REQUEST
                | Status.DAMAGED
                | Status.UNKNOWN
                | Status.UNREACHABLE
            ):
                pass  # another bookie may take it
            case _:
                assert_never(event.status)
        slot = self._acks.slots[event.index]
        if slot.down:
            return []
        if event.status is Status.TOO_MANY_REQUESTS:
            since = self._busy.setdefault(event.index, now)
            if now - since < BUSY_PATIENCE_S:
                self._resends.put_off(event, now)
                return []
        self._change.fail(event.index, event.status)
        if event.status is Status.ACCESS_DENIED and not self._acks.quorum_is_up():
            return self._fail(
                WriterFailure.ACCESS_DENIED
            )  # it is not one bookie that knows too little
        if self.phase is not WriterPhase.OPEN:
            return []  # joins the change under way, or is met after it
        may_wait = self._config.delay_ensemble_change and self._acks.quorum_is_up()
        if may_wait and event.status not in _NEVER_AGAIN:
            return self._go_on_degraded(now)
        return self._begin_change()

    def _listed(self, event: BookiesListed, now: float) -> list[WriterEffect]:
        has_come = self._absences.listed(event.writable, now)
        if self.phase is not WriterPhase.OPEN:
            return []
        if has_come and self._change.failed:
            self._retry_at = None
            return self._try_again(now)
        return self._progress(now)

    def _leave(self, now: float) -> list[WriterEffect]:
        """Look for others in the places of bookies that the registry does not list for long."""
        self._change.leaving = self._absences.to_leave(now)
        if not self._change.leaving:
            return []
        self.phase = WriterPhase.CHANGING
        return [self._change.choose()]

    def _settle(self, now: float) -> list[WriterEffect]:
        """Begin a new fragment with the same bookies, so that repair can complete the last."""
        self.phase = WriterPhase.CHANGING
        self._patience_until = now + METADATA_PATIENCE_S
        self._change.again(self._absences.lacking)
        marks = self._absences.to_mark(self.metadata.last_fragment.first_entry)
        return [*marks, self._write_change()]

    def _begin_change(self) -> list[WriterEffect]:
        if self._changes >= self._config.ensemble_changes_max:
            return self._fail(WriterFailure.NOT_ENOUGH_BOOKIES)
        self.phase = WriterPhase.CHANGING
        self._retry_at = None
        return [self._change.choose()]

    def _replacements_chosen(self, event: ReplacementsChosen, now: float) -> list[WriterEffect]:
        if self.phase is not WriterPhase.CHANGING:
            return []
        leaving, self._change.leaving = self._change.leaving, ()
        self._patience_until = now + METADATA_PATIENCE_S
        if event.bookies:
            self._change.replacing = dict(event.bookies)
            return [self._write_change()]
        if leaving:
            return self._stay(now)
        if Status.NO_SUCH_LEDGER in self._change.failed.values():
            return [ReadMetadata()]  # it may have been deleted: no CAS is there to find out
        return self._go_on_degraded(now)

    def _stay(self, now: float) -> list[WriterEffect]:
        """Nobody is there for the places of bookies that are gone, and have not failed."""
        if self._change.failed:  # others have, meanwhile
            return self._begin_change()
        self.phase = WriterPhase.OPEN
        self._patience_until = None
        self._absences.plan(now, pause_s=DEGRADED_RETRY_S)
        return self._progress(now)

    def _go_on_degraded(self, now: float) -> list[WriterEffect]:
        """No replacement: go on while Qa bookies of each write set are left (rules 26, 27)."""
        if not self._acks.quorum_is_up():
            return self._too_few()
        self.phase = WriterPhase.OPEN
        self._change.end()
        self._patience_until = None
        self._retry_at = now + DEGRADED_RETRY_S
        self._absences.went_on_without(self._change.failed)
        marks = self._absences.to_mark(self.metadata.last_fragment.first_entry)
        return marks + self._progress(now)

    def _too_few(self) -> list[WriterEffect]:
        if Status.ACCESS_DENIED in self._change.failed.values():
            return self._fail(WriterFailure.ACCESS_DENIED)
        if Status.WRONG_KEY not in self._change.failed.values():
            return self._fail(WriterFailure.NOT_ENOUGH_BOOKIES)
        if self.last_add_confirmed != NO_ENTRY:
            return self._fail(WriterFailure.WRONG_KEY)
        self._gives_up = True
        return self._begin_close()

    def _write_change(self) -> WriteMetadata:
        return WriteMetadata(self._change.changed(self.metadata), self.version)

    def _change_recorded(
        self, metadata: LedgerMetadata, version: int, now: float
    ) -> list[WriterEffect]:
        self.metadata, self.version = metadata, version
        self._changes += 1
        self._patience_until = None
        replaced = self._change.put()
        self._absences.began_fragment(replaced, now)
        effects: list[WriterEffect] = [*self._absences.to_mark(metadata.last_fragment.first_entry)]
        effects += self._send_pending(replaced)
        if self._change.failed:  # more bookies failed meanwhile (rule 24)
            return effects + self._begin_change()
        self._change.end()
        self.phase = WriterPhase.OPEN
        return effects + self._progress(now)  # only now that all of them are un-set

    def _send_pending(self, replaced: list[int]) -> list[WriterEffect]:
        """Send to bookies that are new at their indexes; they lack the LAC, too."""
        for index in replaced:
            self._busy.pop(index, None)
        self._published = NO_ENTRY
        return self._sends(replaced, self.last_add_confirmed + 1, self.last_add_pushed)

    # Close.

    def _begin_close(self) -> list[WriterEffect]:
        self.phase = WriterPhase.CLOSING
        self._closing = self.metadata.closed(self.last_add_confirmed, self._final_length())
        return [WriteMetadata(self._closing, self.version)]

    def _final_length(self) -> int:
        return 0 if self._gives_up else self.length

    def _closed(self, metadata: LedgerMetadata, version: int) -> list[WriterEffect]:
        if self._gives_up:
            return self._fail(WriterFailure.CLOSED_EMPTY)
        self.phase = WriterPhase.CLOSED
        self.metadata, self.version = metadata, version
        marks = self._absences.to_mark(metadata.last_fragment.first_entry, closed=True)
        self._acks = AckTracker(
            metadata.quorum, metadata.last_fragment.bookies, confirmed=self._acks.confirmed
        )
        return [*marks, FinishClose(metadata, version)]

    # Answers of the metadata store.

    def _metadata_written(self, version: int, now: float) -> list[WriterEffect]:
        if self._closing is not None:
            return self._closed(self._closing, version)
        if self.phase is not WriterPhase.CHANGING or not self._change.replacing:
            return []
        return self._change_recorded(self._write_change().metadata, version, now)

    def _metadata_read(self, event: MetadataRead, now: float) -> list[WriterEffect]:
        stored = event.metadata
        if self.phase is WriterPhase.OPEN:
            return []  # nothing was asked
        if stored is None:
            return self._fail(WriterFailure.DELETED)
        if stored.state is not LedgerState.OPEN:
            end = (self.last_add_confirmed, self._final_length())
            if self._closing is not None and (stored.last_entry, stored.length) == end:
                return self._closed(stored, event.version)
            return self._fail(WriterFailure.FENCED)
        if self._change.replacing and (
            stored.last_fragment == self._write_change().metadata.last_fragment
        ):
            return self._change_recorded(stored, event.version, now)  # our own lost reply
        if stored.last_fragment != self.metadata.last_fragment:
            return self._fail(WriterFailure.FENCED)  # only a writer may change the last fragment
        # Re-replication edited older fragments: keep its edits, then try again (rule 25).
        self.metadata, self.version = stored, event.version
        if self._is_out_of_patience(now):
            return self._fail(WriterFailure.METADATA_UNAVAILABLE)
        if self._closing is not None:
            return self._begin_close()
        if self._change.replacing:
            return [self._write_change()]
        return self._go_on_degraded(now)

    def _metadata_failed(self, now: float) -> list[WriterEffect]:
        """The write may have happened: nothing may be confirmed before it is known."""
        if self._is_out_of_patience(now):
            return self._fail(WriterFailure.METADATA_UNAVAILABLE)
        self._retry_at = now + METADATA_RETRY_S
        return []

    def _is_out_of_patience(self, now: float) -> bool:
        """Return True iff what the metadata store has to do has taken too long by *now*."""
        self._patience_until = self._patience_until or now + METADATA_PATIENCE_S
        return now >= self._patience_until

    def _time_passed(self, now: float) -> list[WriterEffect]:
        effects = self._resend(now)
        if self._may_change:
            effects += self._leave(now)
        if self._retry_at is None or now < self._retry_at:
            return effects
        self._retry_at = None
        if self.phase is WriterPhase.OPEN and self._change.failed:
            return effects + self._try_again(now)
        return [*effects, ReadMetadata()]

    def _resend(self, now: float) -> list[WriterEffect]:
        effects: list[WriterEffect] = []
        for event in self._resends.due(now):
            if self._acks.is_current(event.index, event.generation):
                if event.first <= self.last_add_confirmed:
                    self._absences.missed(event.index)
                first = max(event.first, self.last_add_confirmed + 1)
                effects += self._sends([event.index], first, event.last)
        return effects

    def _try_again(self, now: float) -> list[WriterEffect]:
        """Send to the bookies that were down: back, they just missed some entries (rule 27).

        If they fail again, the change that follows looks for replacements again."""
        return self._send_pending(self._change.revive()) + self._progress(now)

    def _fail(self, failure: WriterFailure) -> list[WriterEffect]:
        self.phase = WriterPhase.FAILED
        return [FailWriter(failure)]
