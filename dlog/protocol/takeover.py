"""Opening a log for writing: the takeover, in the order that makes two writers impossible.

    1. read the manifest
    2. recover (fence and close) the ledgers of the open segments, the last two at most: the
       writer before may still be adding to the second to last while it has just listed the last.
       A seal in the manifest says that its ledger is CLOSED and what it holds: no bookie is asked
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
checked in each manifest that is read, before any ledger is fenced, and the swap proves that it
still was so. A writer *reopens* that way: it takes over its own log within its epoch, so its
segments stay one tenure, and a writer that took the log meanwhile is not disturbed.

Once leadership is lost, every action but `DeleteLedger` fails with `LostOwnership`.
"""

from dataclasses import dataclass
from typing import Final

from dlog.errors import (
    EpochChanged,
    LedByGateway,
    LostOwnership,
    ManifestTooLarge,
    NoSuchLog,
    TakeoverFailed,
)
from dlog.manifest import Manifest
from dlog.protocol.actions import DeleteLedger, RecoverSegment
from dlog.protocol.edits import check_incarnation, check_writable
from ledger.delays import Backoff
from ledger.errors import BadVersion, LogError, NoSuchLedger
from ledger.ids import LedgerId
from ledger.protocol.procedure import Action, Steps, Wait

ATTEMPTS_MAX: Final = 8
TROUBLES_MAX: Final = 3
"""Attempts that may fail with an error of bookies or of the metadata store, each of which may have
taken the time-outs of several requests; the rest are for races."""
BACKOFF_S: Final = 0.05
BACKOFF_S_MAX: Final = 2.0
_STAYS: Final = (LedByGateway, ManifestTooLarge)
"""Errors that may pass, but not within a takeover."""


@dataclass(frozen=True, slots=True)
class ReadManifest(Action[tuple[Manifest, int]]):
    """Answer: manifest and version, with every write that was finished before. Raises
    `NoSuchLog`."""


@dataclass(frozen=True, slots=True)
class CreateLedger(Action[tuple[LedgerId, int]]):
    """Create a ledger stamped with the log and *segment*. Answer: its id, and when (ms)."""

    segment: int
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class WriteManifest(Action[int]):
    """Answer: the version now. Raises `BadVersion`, and `NoSuchLog`."""

    manifest: Manifest
    version: int


@dataclass(frozen=True, slots=True)
class CheckLeadership(Action[bool]):
    """Ask the election, if there is one. Answer: whether leadership is held."""


@dataclass(frozen=True, slots=True)
class CheckGateways(Action[None]):
    """Raises `LedByGateway` if a gateway for Kafka's clients lives: whichever it is, one of them
    leads the log."""


def take_over(
    log: str,
    *,
    owner: str = "",
    expected_epoch: int | None = None,
    reopens: str | None = None,
    spares_gateways: bool = False,
    is_gateway: bool = False,
    attempts_max: int = ATTEMPTS_MAX,
) -> Steps[tuple[Manifest, int]]:
    """Return the manifest, and the number of the segment to append to.

    *reopens*: the incarnation of the log whose writer, of *expected_epoch*, reopens.
    *spares_gateways*: not if a gateway for Kafka's clients took the log over last, and one lives.
    *is_gateway*: one does now.
    Raises `NoSuchLog`, `LedByGateway`, `LogSealed`, `EpochChanged`, `LostOwnership`,
    `TakeoverFailed` if others were faster each time, and the errors of actions that do not
    pass."""
    assert reopens is None or expected_epoch is not None, "a writer that reopens has an epoch"
    attempts = _Attempts(log, attempts_max)
    backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
    while True:
        try:
            manifest, version = yield from ReadManifest()
            check_writable(manifest, log)
            _check_expected(manifest, log, expected_epoch, reopens)
            if spares_gateways and manifest.gateway:
                yield from CheckGateways()
            manifest.check_room(log)
            manifest = yield from _recover(manifest)
            number = manifest.next_segment
            ledger_id, created_ms = yield from CreateLedger(number, manifest)
        except LogError as error:
            attempts.failed(error)
        else:
            segment = (number, ledger_id, created_ms)
            wanted = (
                manifest.taken_over(*segment, owner, gateway=is_gateway)
                if reopens is None
                else manifest.with_segment(*segment)
            )
            listed = yield from _list(log, wanted, version, attempts)
            if listed is not None:
                return listed, number
        yield from _stay_leader(log, attempts)
        yield from Wait(backoff.next())


def _check_expected(
    manifest: Manifest, log: str, expected_epoch: int | None, reopens: str | None
) -> None:
    if reopens is not None:
        check_incarnation(manifest, log, reopens)
    if expected_epoch is not None and manifest.epoch != expected_epoch:
        raise EpochChanged(log, expected_epoch, manifest.epoch, manifest.owner)


class _Attempts:
    """How many there may be; *reason*: the error of the last one, None: another was faster."""

    def __init__(self, log: str, attempts_max: int) -> None:
        self._log = log
        self._attempts_max = attempts_max
        self._left = attempts_max - 1
        self._errors = 0
        self.reason: LogError | None = None

    def repeat(self, otherwise: LogError) -> None:
        """Count another one. Raises *otherwise* if there were too many."""
        if not self._left:
            raise otherwise
        self._left -= 1

    def restart(self) -> None:
        self.repeat(self.reason or TakeoverFailed(self._log, self._attempts_max))

    def failed(self, error: LogError) -> None:
        """Raise *error* unless it may pass. A ledger that is gone was trimmed meanwhile; a manifest
        that is full stays so."""
        self.reason = error
        raced = isinstance(error, NoSuchLedger)
        self._errors += not raced
        passes = raced or (error.retryable and not isinstance(error, _STAYS))
        if not passes or self._errors == TROUBLES_MAX:
            raise error


def _recover(manifest: Manifest) -> Steps[Manifest]:
    """Recover the open segments in order; return the manifest with their ends."""
    for segment in [each for each in manifest.segments if each.sealed is None]:
        sealed = yield from RecoverSegment(segment.ledger_id, manifest.sealed_last_txid)
        manifest = manifest.with_sealed(segment.number, sealed)
    return manifest


def _list(log: str, wanted: Manifest, version: int, attempts: _Attempts) -> Steps[Manifest | None]:
    """Swap the manifest; return the one that lists the own ledger, None if none ever will: then
    it is deleted. Where this raises, the ledger is left if the manifest may list it."""
    own = wanted.last
    assert own is not None, "the own segment"
    while True:
        try:
            yield from WriteManifest(wanted, version)
        except BadVersion:
            pass  # a swap before, whose reply was lost, may have been the one that was first
        except NoSuchLog:
            raise  # renamed or deleted: under its new name the log may list the ledger
        except LogError as error:
            attempts.reason = error
            if not error.outcome_unknown:
                yield from DeleteLedger(own.ledger_id)
                if error.retryable or isinstance(error, NoSuchLedger):
                    return None
                raise
            attempts.repeat(error)
        else:
            return wanted
        stored, stored_version = yield from _read_again(attempts)
        if stored.incarnation != wanted.incarnation:
            raise NoSuchLog(log)
        listed = stored.find(own.number)
        if listed is not None and listed.ledger_id == own.ledger_id:
            if listed == stored.last:
                return stored
            raise LostOwnership(log)  # part of the log, and taken over already
        if stored_version != version:  # the swap can never succeed any more
            attempts.reason = None
            yield from DeleteLedger(own.ledger_id)
            return None
        # It has not arrived and still may: repeat it, one of both will win.
        attempts.repeat(attempts.reason or LostOwnership(log))


def _read_again(attempts: _Attempts) -> Steps[tuple[Manifest, int]]:
    while True:
        try:
            return (yield from ReadManifest())
        except (NoSuchLog, LostOwnership):
            raise
        except LogError as error:
            attempts.reason = error
            attempts.repeat(error)


def _stay_leader(log: str, attempts: _Attempts) -> Steps[None]:
    while True:
        attempts.restart()
        try:
            held = yield from CheckLeadership()
        except LogError as error:
            attempts.failed(error)
        else:
            if not held:
                raise LostOwnership(log, "leadership was lost during the takeover")
            return
