"""When a new segment begins, and in which order.

    1. create the next ledger, while appends go on in the present one
    2. list it in the manifest by compare-and-swap, while appends go on
    3. hold new adds back until every add of the present ledger is confirmed, then switch
    4. close the ledger before, while appends go on in the new one
    5. record its end in the manifest

Step 3 makes the log one sequence: no record of the new segment is confirmed before all of the
one before are. Step 4 may come last because a takeover fences all open segments. The
next roll waits for step 4 and 5, so never more than two segments are open.

Trouble with bookies or the metadata store postpones the step, and so does a manifest that has no
room until somebody truncates the log; appends go on. A ledger whose
listing has an unknown outcome is kept and listed again: it may be part of the log.

Invariants (asserted by `check`):
    a next ledger is known exactly from its creation to the switch
    the end of the segment before is known exactly while it is being recorded
    it never waits to try again while nothing is begun
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from dlog.manifest import Sealed
from dlog.settings import LogSettings
from ledger.delays import Backoff
from ledger.ids import LedgerId

BACKOFF_S: Final = 0.5
BACKOFF_S_MAX: Final = 30.0


# Events.


@dataclass(frozen=True, slots=True)
class RollOrdered:
    """By the application, whatever the limits say."""


@dataclass(frozen=True, slots=True)
class LedgerCreated:
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class SegmentListed:
    """The manifest lists the next segment as the last one."""


@dataclass(frozen=True, slots=True)
class AddsConfirmed:
    """Every add of the present ledger is confirmed, and new ones are held back."""


@dataclass(frozen=True, slots=True)
class LedgerClosed:
    sealed: Sealed


@dataclass(frozen=True, slots=True)
class SegmentSealed:
    """The manifest knows the end of the segment before."""


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The last effect failed and may be repeated; lost ownership ends the writer instead."""


@dataclass(frozen=True, slots=True)
class RollTimePassed:
    """`deadline` was reached."""


RollEvent = (
    RollOrdered
    | LedgerCreated
    | SegmentListed
    | AddsConfirmed
    | LedgerClosed
    | SegmentSealed
    | StepFailed
    | RollTimePassed
)


# Effects. Each is answered by one event, except `SwitchSegment` and `Rolled`.


@dataclass(frozen=True, slots=True)
class CreateSegmentLedger:
    """Answer: `LedgerCreated`."""

    segment: int


@dataclass(frozen=True, slots=True)
class ListSegment:
    """Answer: `SegmentListed`."""

    segment: int
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class HoldAdds:
    """Send no entry more; answer `AddsConfirmed` once all that were sent are confirmed."""


@dataclass(frozen=True, slots=True)
class SwitchSegment:
    """Send entries again, to the ledger that was created last, as *segment*."""

    segment: int


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """Close the ledger that was switched from. Answer: `LedgerClosed`.

    *recover*: closing failed before, so use recovery, which ends the same: all its entries
    were confirmed."""

    recover: bool


@dataclass(frozen=True, slots=True)
class SealSegment:
    """Answer: `SegmentSealed`."""

    segment: int
    sealed: Sealed


@dataclass(frozen=True, slots=True)
class Rolled:
    """All records of segments below *segment* are in sealed segments."""

    segment: int


RollEffect = (
    CreateSegmentLedger
    | ListSegment
    | HoldAdds
    | SwitchSegment
    | CloseLedger
    | SealSegment
    | Rolled
)


class RollPhase(Enum):
    IDLE = "idle"
    CREATING = "creating"
    LISTING = "listing"
    HOLDING = "holding"
    CLOSING = "closing"
    SEALING = "sealing"


class Roll:
    """Rolls the segments of one writer, from *segment*, which it opened with at *now*."""

    def __init__(self, settings: LogSettings, segment: int, *, now: float) -> None:
        self._settings = settings
        self._segment = segment
        self._began = self._grown = now
        """When the segment began, and when it last got a record."""
        self._records = 0
        self._bytes = 0
        self._phase = RollPhase.IDLE
        self._next_ledger: LedgerId | None = None
        self._sealed: Sealed | None = None
        self._requested = False
        self._failed = False
        """Whether the present phase's step has failed before."""
        self._backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        self._retry_at: float | None = None

    @property
    def segment(self) -> int:
        """The segment that is appended to."""
        return self._segment

    @property
    def next_ledger(self) -> LedgerId | None:
        """The one to switch to, once it is created."""
        return self._next_ledger

    @property
    def holds(self) -> bool:
        """Whether it waits until every add is confirmed, to switch."""
        return self._phase is RollPhase.HOLDING

    def deadline(self) -> float | None:
        """Return when `RollTimePassed` is due, or None."""
        if self._retry_at is not None:
            return self._retry_at
        if self._phase is not RollPhase.IDLE or not self._records:
            return None
        age_s, idle_s = self._settings.roll_age_s, self._settings.roll_idle_s
        by_age = self._began + age_s if age_s else None
        if not idle_s:
            return by_age
        by_idle = self._grown + idle_s
        return by_idle if by_age is None else min(by_age, by_idle)

    def step(self, event: RollEvent, *, now: float) -> list[RollEffect]:
        effects = self._dispatch(event, now)
        self.check()
        return effects

    def grown(self, records: int, size_bytes: int, now: float) -> list[RollEffect]:
        """So much is confirmed in the segment by now."""
        if records > self._records:
            self._grown = now
        self._records, self._bytes = records, size_bytes
        if self._phase is not RollPhase.IDLE or not (self._requested or self._due(now)):
            return []  # as it mostly is
        effects = self._maybe_begin(now)
        self.check()
        return effects

    def check(self) -> None:
        assert (self._next_ledger is not None) == (
            self._phase in {RollPhase.LISTING, RollPhase.HOLDING}
        ), f"next ledger {self._next_ledger} while {self._phase.value}"
        assert (self._sealed is not None) == (self._phase is RollPhase.SEALING)
        assert self._retry_at is None or self._phase is not RollPhase.IDLE

    def _dispatch(self, event: RollEvent, now: float) -> list[RollEffect]:
        match event:
            case RollOrdered():
                self._requested = True
                return self._maybe_begin(now)
            case LedgerCreated():
                assert self._phase is RollPhase.CREATING
                self._next_ledger = event.ledger_id
                return self._enter(RollPhase.LISTING)
            case SegmentListed():
                assert self._phase is RollPhase.LISTING
                return self._enter(RollPhase.HOLDING)
            case AddsConfirmed():
                return self._switch(now)
            case LedgerClosed():
                assert self._phase is RollPhase.CLOSING
                self._sealed = event.sealed
                return self._enter(RollPhase.SEALING)
            case SegmentSealed():
                assert self._phase is RollPhase.SEALING
                self._sealed = None
                self._enter(RollPhase.IDLE)
                return [Rolled(self._segment), *self._maybe_begin(now)]
            case StepFailed():
                assert self._phase not in {RollPhase.IDLE, RollPhase.HOLDING}
                self._failed = True
                self._retry_at = now + self._backoff.next()
                return []
            case RollTimePassed():
                return self._time_passed(now)
            case _:
                assert_never(event)

    def _maybe_begin(self, now: float) -> list[RollEffect]:
        if self._phase is not RollPhase.IDLE:
            return []
        requested, self._requested = self._requested, False
        if requested and not self._records:
            return [Rolled(self._segment + 1)]
        return self._enter(RollPhase.CREATING) if requested or self._due(now) else []

    def _due(self, now: float) -> bool:
        settings = self._settings
        return bool(self._records) and (
            (0 < settings.roll_bytes <= self._bytes)
            or (0 < settings.roll_records <= self._records)
            or (0 < settings.roll_age_s <= now - self._began)
            or (0 < settings.roll_idle_s <= now - self._grown)
        )

    def _enter(self, phase: RollPhase) -> list[RollEffect]:
        self._phase = phase
        self._failed = False
        self._backoff.reset()
        self._retry_at = None
        return self._again()

    def _again(self) -> list[RollEffect]:
        """Return the effect of the present phase."""
        match self._phase:
            case RollPhase.IDLE:
                return []
            case RollPhase.CREATING:
                return [CreateSegmentLedger(self._segment + 1)]
            case RollPhase.LISTING:
                assert self._next_ledger is not None
                return [ListSegment(self._segment + 1, self._next_ledger)]
            case RollPhase.HOLDING:
                return [HoldAdds()]
            case RollPhase.CLOSING:
                return [CloseLedger(recover=self._failed)]
            case RollPhase.SEALING:
                assert self._sealed is not None
                return [SealSegment(self._segment - 1, self._sealed)]
            case _:
                assert_never(self._phase)

    def _switch(self, now: float) -> list[RollEffect]:
        assert self._phase is RollPhase.HOLDING
        self._next_ledger = None
        self._segment += 1
        self._began = self._grown = now
        self._records = self._bytes = 0
        return [SwitchSegment(self._segment), *self._enter(RollPhase.CLOSING)]

    def _time_passed(self, now: float) -> list[RollEffect]:
        if self._retry_at is not None:
            if now < self._retry_at:
                return []
            self._retry_at = None
            return self._again()
        return self._maybe_begin(now)
