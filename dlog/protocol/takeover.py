"""Opening a log for writing: the takeover, in the order that makes two writers impossible.

    1. read the manifest
    2. recover (fence and close) the ledgers of the open segments, the last two at most: the
       writer before may still be adding to the second to last while it has just listed the last.
       A seal in the manifest says that its ledger is CLOSED and what it holds: nobody is asked
    3. create a ledger, stamped with the log and the next segment number
    4. compare-and-swap the manifest: the ends of the recovered segments, and the new segment
    5. only then hand the ledger out

A log whose manifest is full is refused at 1, so its writer is not disturbed in vain.

If the swap loses, somebody else changed the log between 1 and 4: delete the own ledger, ask
whether leadership still holds, start again, a bounded number of times. If its reply is lost,
the manifest is read again: the own ledger as the last one listed means success. As long as a
swap's outcome is unknown the own ledger is *not* deleted: the manifest may list it.

The loser leaves at most a ledger stamped with a number below the manifest's next one and
not listed there; that one can never become part of the log.

With an *expected epoch* the log is taken over only if nobody did so since: the epoch is
looked at in each manifest that is read, before any ledger is fenced, and the swap proves that it
still was so. A writer *heals* that way: it takes over its own log within its epoch, so its
segments stay one tenure, and a writer that took the log meanwhile is not disturbed.

Invariants (asserted by `check`):
    there is an own ledger exactly while one is being listed or was
    there is a deadline exactly while it waits before it begins again
    after `Opened` or `GiveUp` nothing more happens
"""

from enum import Enum
from typing import Final, assert_never

from dlog.errors import EpochChanged, LostOwnership, NoSuchLog, TakeoverFailed
from dlog.manifest import Manifest
from dlog.protocol.edits import check_incarnation, check_writable
from dlog.protocol.takeover_events import (
    LEADERS_ONLY,
    CheckLeadership,
    CreateLedger,
    DeleteLedger,
    GiveUp,
    LeadershipChecked,
    LeadershipLost,
    LedgerCreated,
    LedgerDeleted,
    ManifestConflicted,
    ManifestRead,
    ManifestWritten,
    Opened,
    OpenRequested,
    ReadManifest,
    RecoverSegment,
    SegmentRecovered,
    Step,
    StepFailed,
    TakeoverEffect,
    TakeoverEvent,
    WriteManifest,
)
from ledger.backoff import Backoff
from ledger.errors import LogError, NoSuchLedger
from ledger.ids import LedgerId
from ledger.protocol.shared import TimePassed

__all__ = [
    "ATTEMPTS_MAX",
    "LEADERS_ONLY",
    "TROUBLES_MAX",
    "CheckLeadership",
    "CreateLedger",
    "DeleteLedger",
    "GiveUp",
    "LeadershipChecked",
    "LeadershipLost",
    "LedgerCreated",
    "LedgerDeleted",
    "ManifestConflicted",
    "ManifestRead",
    "ManifestWritten",
    "OpenRequested",
    "Opened",
    "Phase",
    "ReadManifest",
    "RecoverSegment",
    "SegmentRecovered",
    "Step",
    "StepFailed",
    "Takeover",
    "TakeoverEffect",
    "TakeoverEvent",
    "TimePassed",
    "WriteManifest",
]

ATTEMPTS_MAX: Final = 8
TROUBLES_MAX: Final = 3
"""Attempts that may end in an error of bookies or metadata store; the rest are for races."""
BACKOFF_S: Final = 0.05
BACKOFF_S_MAX: Final = 2.0


class Phase(Enum):
    NEW = "new"
    READING = "reading"
    RECOVERING = "recovering"
    CREATING = "creating"
    WRITING = "writing"
    RE_READING = "re-reading"
    """The swap's reply was lost."""
    CHECKING = "checking"
    WAITING = "waiting"
    DISCARDING = "discarding"
    """The own ledger is deleted; then either again, or `GiveUp`."""
    DONE = "done"


_WITH_LEDGER: Final = frozenset({Phase.WRITING, Phase.RE_READING, Phase.DISCARDING})


class Takeover:
    """One attempt of one process to become the writer of *log*."""

    def __init__(
        self,
        log: str,
        *,
        owner: str = "",
        expected_epoch: int | None = None,
        heals: str | None = None,
        attempts_max: int = ATTEMPTS_MAX,
    ) -> None:
        """*heals*: the incarnation of the log whose writer, of *expected_epoch*, heals."""
        assert heals is None or expected_epoch is not None, "who heals has an epoch"
        self.log = log
        self._owner = owner
        self._expected_epoch = expected_epoch
        self._heals = heals
        self._attempts_max = attempts_max
        self._attempts = 1
        self._backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        self._phase = Phase.NEW
        self._manifest: Manifest | None = None
        self._version = -1
        self._recovering: tuple[int, ...] = ()
        """Numbers of the segments that are still to be recovered, in order."""
        self._segment = 0
        self._ledger_id: LedgerId | None = None
        self._wanted: Manifest | None = None
        self._verdict: LogError | None = None
        """Why to give up, once the own ledger is discarded; None: begin again."""
        self._troubles = 0
        self._reason: LogError | None = None
        """The trouble that made the last attempt fail; None: another writer was faster."""
        self._again_at: float | None = None

    def deadline(self) -> float | None:
        """Return when `TimePassed` is due, or None."""
        return self._again_at

    def step(self, event: TakeoverEvent, *, now: float) -> list[TakeoverEffect]:
        """Apply *event*; return the one thing to do next, or nothing while it waits."""
        assert self._phase is not Phase.DONE, "the takeover is over"
        effect = self._dispatch(event, now)
        self.check()
        return [] if effect is None else [effect]

    def check(self) -> None:
        assert (self._ledger_id is not None) == (self._phase in _WITH_LEDGER) or (
            self._phase is Phase.DONE
        )
        assert 1 <= self._attempts <= self._attempts_max
        assert not self._recovering or self._phase is Phase.RECOVERING
        assert (self._again_at is not None) == (self._phase is Phase.WAITING)

    def _dispatch(  # noqa: PLR0911 - one way out per event
        self, event: TakeoverEvent, now: float
    ) -> TakeoverEffect | None:
        match event:
            case OpenRequested():
                return self._read(Phase.READING)
            case ManifestRead() if self._phase is Phase.RE_READING:
                return self._re_read(event)
            case ManifestRead():
                return self._manifest_read(event)
            case SegmentRecovered():
                return self._recovered(event)
            case LedgerCreated():
                return self._created(event)
            case ManifestWritten():
                return self._opened()
            case ManifestConflicted():
                # The swap whose reply was lost may be the one that was first.
                return self._read(Phase.RE_READING)
            case LeadershipChecked():
                return self._checked(now, held=event.held)
            case LeadershipLost():
                return self._step_down()
            case LedgerDeleted():
                return self._discarded()
            case StepFailed():
                return self._failed(event.error)
            case TimePassed():
                return self._time_passed(now)
            case _:
                assert_never(event)

    def _read(self, phase: Phase) -> TakeoverEffect:
        self._phase = phase
        return ReadManifest()

    def _manifest_read(self, event: ManifestRead) -> TakeoverEffect:
        assert self._phase is Phase.READING
        if event.manifest is None:
            return self._give_up(NoSuchLog(self.log))
        try:
            check_writable(event.manifest, self.log)
            self._check_expected(event.manifest)
            event.manifest.check_room(self.log)
        except LogError as error:
            return self._give_up(error)
        self._manifest, self._version = event.manifest, event.version
        still_open = (s.number for s in event.manifest.segments if s.sealed is None)
        self._recovering = tuple(still_open)
        self._phase = Phase.RECOVERING
        return self._recover_next()

    def _check_expected(self, manifest: Manifest) -> None:
        if self._heals is not None:
            check_incarnation(manifest, self.log, self._heals)
        if self._expected_epoch is not None and manifest.epoch != self._expected_epoch:
            raise EpochChanged(self.log, self._expected_epoch, manifest.epoch, manifest.owner)

    def _recover_next(self) -> TakeoverEffect:
        assert self._manifest is not None
        if self._recovering:
            segment = self._manifest.find(self._recovering[0])
            assert segment is not None
            last_txid = self._manifest.sealed_last_txid
            return RecoverSegment(segment.number, segment.ledger_id, last_txid)
        self._phase = Phase.CREATING
        self._segment = self._manifest.next_segment
        return CreateLedger(self._segment, self._manifest)

    def _recovered(self, event: SegmentRecovered) -> TakeoverEffect:
        assert self._phase is Phase.RECOVERING
        assert self._manifest is not None
        assert event.number == self._recovering[0], "recovered another segment than asked"
        self._manifest = self._manifest.with_sealed(event.number, event.sealed)
        self._recovering = self._recovering[1:]
        return self._recover_next()

    def _created(self, event: LedgerCreated) -> TakeoverEffect:
        assert self._phase is Phase.CREATING
        assert self._manifest is not None
        self._ledger_id = event.ledger_id
        made = (self._segment, event.ledger_id, event.created_ms)
        self._wanted = (
            self._manifest.taken_over(*made, self._owner)
            if self._heals is None
            else self._manifest.with_segment(*made)
        )
        self._phase = Phase.WRITING
        return WriteManifest(self._wanted, self._version)

    def _re_read(self, event: ManifestRead) -> TakeoverEffect:
        manifest = event.manifest
        assert self._wanted is not None
        if manifest is None or manifest.incarnation != self._wanted.incarnation:
            # Renamed or deleted: under its new name it may list the ledger.
            return self._leave(NoSuchLog(self.log))
        own = manifest.find(self._segment)
        if own is not None and own.ledger_id == self._ledger_id:
            if own == manifest.last:
                self._wanted = manifest
                return self._opened()
            self._ledger_id = None  # part of the log, and taken over already
            return self._give_up(LostOwnership(self.log))
        if event.version != self._version:  # the swap can never succeed any more
            self._reason = None
            return self._discard(None)
        # It has not arrived and still may: repeat it, one of both will win.
        if not self._again():
            return self._leave(self._reason or LostOwnership(self.log))
        assert self._wanted is not None
        self._phase = Phase.WRITING
        return WriteManifest(self._wanted, self._version)

    def _opened(self) -> TakeoverEffect:
        assert self._wanted is not None
        assert self._phase in {Phase.WRITING, Phase.RE_READING}
        self._phase = Phase.DONE
        return Opened(self._wanted, self._segment)

    def _failed(self, error: LogError) -> TakeoverEffect:
        self._reason = error
        if self._phase is Phase.WRITING and error.outcome_unknown:
            return self._read(Phase.RE_READING) if self._again() else self._leave(error)
        if self._phase is Phase.RE_READING:
            return self._read(Phase.RE_READING) if self._again() else self._leave(error)
        # A ledger that is gone was trimmed after the manifest was read: read it again.
        raced = isinstance(error, NoSuchLedger)
        verdict = None if error.retryable or raced else error
        if self._phase is Phase.WRITING and isinstance(error, NoSuchLog):
            return self._leave(error)  # as above: a swap before this one may have arrived
        if self._phase is Phase.WRITING:
            return self._discard(verdict)
        if verdict is not None:
            return self._give_up(verdict)
        self._troubles += not raced
        if self._troubles == TROUBLES_MAX:
            return self._give_up(error)  # each may have taken the time-outs of several requests
        return self._begin_again()

    def _again(self) -> bool:
        if self._attempts == self._attempts_max:
            return False
        self._attempts += 1
        return True

    def _leave(self, error: LogError) -> TakeoverEffect:
        """Give up without deleting the ledger, which the manifest may list."""
        self._ledger_id = None
        return self._give_up(error)

    def _step_down(self) -> TakeoverEffect:
        error = LostOwnership(self.log, "leadership was lost during the takeover")
        if self._phase is Phase.WRITING:
            return self._discard(error)
        self._ledger_id = None  # in RE_READING its swap may have arrived
        return self._give_up(error)

    def _discard(self, verdict: LogError | None) -> TakeoverEffect:
        assert self._ledger_id is not None
        self._phase = Phase.DISCARDING
        self._verdict = verdict
        return DeleteLedger(self._ledger_id)

    def _discarded(self) -> TakeoverEffect:
        self._ledger_id = None
        if self._verdict is not None:
            return self._give_up(self._verdict)
        return self._begin_again()

    def _begin_again(self) -> TakeoverEffect:
        self._recovering = ()
        if not self._again():
            return self._give_up(self._reason or TakeoverFailed(self.log, self._attempts))
        self._phase = Phase.CHECKING
        return CheckLeadership()

    def _checked(self, now: float, *, held: bool) -> TakeoverEffect | None:
        if not held:
            return self._step_down()
        self._phase = Phase.WAITING
        self._again_at = now + self._backoff.next()
        return None

    def _time_passed(self, now: float) -> TakeoverEffect | None:
        if self._again_at is None or now < self._again_at:
            return None
        self._again_at = None
        return self._read(Phase.READING)

    def _give_up(self, error: LogError) -> TakeoverEffect:
        self._phase = Phase.DONE
        self._recovering = ()
        return GiveUp(error)
