"""How a sink commits a unit: all of its records become part of the log, once, or none does.

A sink takes the log over like any writer, once; all that it does later is *within its epoch*, which
each step demands. A small unit becomes one entry of an open segment:

    1. a segment is open, or a takeover within the epoch opens one
    2. the records are appended as one entry, which carries the receipt

A large one was staged by tasks, each in a ledger of its own that is CLOSED by now:

    1. what travelled beside them is staged too
    2. the open segment is closed, for the offset of what comes next is not known before
    3. compare-and-swap of the manifest: the ledgers as its next segments, and the receipt

Whatever fails in a way that may pass, and whatever has an unknown outcome, ends with opening
within the epoch: then all segments are sealed, and the receipts in the manifest say whether the
unit is in the log. If it is not it never will be, for who might have added it is fenced; so it is
tried again.

A unit is committed by one sink at a time. Two of them with one receipt, as of an application that
is started again while its former self sleeps: one takes the log over from the other, and the
receipt tells it what the other did.

Only the last unit of an origin can come again, from an application that died before it made a note
of it. One that goes back further has lost its notes, and what it brings under an old number need
not be what the log has: it is refused, for to drop it in silence would lose it.
"""

from dataclasses import dataclass, replace
from typing import Final

from dlog.errors import AppendFailed, EpochChanged, LogSealed, LostOwnership, UnitSuperseded
from dlog.manifest import Manifest
from dlog.protocol.accumulator import UNIT_BYTES_MAX, UNIT_RECORDS_MAX
from dlog.protocol.edits import Staged, adopt, check_incarnation, taken_by
from dlog.protocol.manifest_steps import ManifestSteps
from dlog.receipts import Receipt, Receipts
from ledger.delays import Backoff
from ledger.errors import LogError, NoSuchLedger
from ledger.protocol.procedure import Action, Steps, Wait

TROUBLES_MAX: Final = 8
"""Attempts that may fail in a way that may pass, each after what its own steps bear."""
BACKOFF_S: Final = 0.2
BACKOFF_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class UnitAppended:
    """Offsets from *first_offset* to before *end_offset*; *last_txid* of the log up to there."""

    first_offset: int
    end_offset: int
    last_txid: int


@dataclass(frozen=True, slots=True)
class OpenSegment(Action[Manifest]):
    """Take the log over within *epoch*. Answer: the manifest, with the new segment as its last
    one. Raises `EpochChanged`, and what else a takeover raises."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AppendUnit(Action[UnitAppended]):
    """Append the records that travel to the open segment, as one entry. Raises what an append
    fails with."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class StageRun(Action[Staged]):
    """Write those payloads of what travels to a ledger of their own, and close it."""

    receipt: Receipt
    payloads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseSegments(Action[None]):
    """Confirm nothing more, and seal what is open, if that can be done; it never fails."""


@dataclass(slots=True)
class Tenure:
    """What a sink knows of the log that it writes, kept from one unit to the next."""

    incarnation: str
    epoch: int
    receipts: Receipts
    end_offset: int
    last_txid: int
    writing: bool
    """Whether a segment is open here."""
    origin: bytes | None = None
    """Whose units that segment has."""
    in_doubt: bool = False
    """Whether an entry was sent of which it is not known whether it is in the log."""

    @classmethod
    def of(cls, manifest: Manifest) -> "Tenure":
        """Return what is known after the takeover that *manifest* is of."""
        return cls(
            manifest.incarnation,
            manifest.epoch,
            manifest.receipts,
            manifest.sealed_end,
            manifest.sealed_last_txid,
            writing=True,
        )

    def learn(self, manifest: Manifest, *, writing: bool) -> None:
        """Take over what *manifest* says, of which all is sealed but a segment opened here."""
        self.receipts = manifest.receipts
        self.end_offset, self.last_txid = manifest.sealed_end, manifest.sealed_last_txid
        self.writing, self.origin, self.in_doubt = writing, None, False


@dataclass(frozen=True, slots=True)
class Inline:
    """Records that travel, payload *number* of those that the driver has."""

    number: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Unit:
    """What is to be committed, in order: records that travel, and ledgers that were staged."""

    receipt: Receipt
    parts: tuple[Inline | Staged, ...]
    entry_bytes_max: int
    """What travels becomes an entry if it has no more than so many bytes, and `UNIT_BYTES_MAX`."""

    @property
    def is_entry(self) -> bool:
        records = size = 0
        for part in self.parts:
            if isinstance(part, Staged):
                return False
            records, size = records + part.records, size + part.bytes
        return size <= min(self.entry_bytes_max, UNIT_BYTES_MAX) and records <= UNIT_RECORDS_MAX


@dataclass(frozen=True, slots=True)
class Committed:
    """Where a unit is: offsets from *first_offset* to before *end_offset*.

    If it was in the log *already*, that is not known, and the two are where the log ended."""

    first_offset: int
    end_offset: int
    already: bool = False


def commit(node: ManifestSteps, tenure: Tenure, unit: Unit, *, now_ms: int) -> Steps[Committed]:
    """Commit *unit*, which has a record or more; keep *tenure* up to date.

    Raises `UnitSuperseded`; `LostOwnership`, with who has the log by now; `LogSealed`,
    `NoSuchLog`, `TxidOutOfOrder`, `RecordTooLarge`; and what did not pass in `TROUBLES_MAX`
    attempts, perhaps with an unknown outcome: to commit the unit again is safe, and shows whether
    it is there."""
    assert unit.parts, "a unit has records"
    backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
    for left in reversed(range(TROUBLES_MAX)):
        try:
            if tenure.in_doubt:  # also of a commit that was cancelled
                yield from _end(tenure)
                yield from _open(tenure)
            if is_last(tenure.receipts, unit.receipt, node.log):
                return _already(tenure)
            if unit.is_entry:
                return (yield from _append(node, tenure, unit))
            unit = replace(unit, parts=(yield from _staged(unit)))
            return (yield from _adopt(node, tenure, unit, now_ms))
        except (EpochChanged, LostOwnership, LogSealed, NoSuchLedger) as error:
            manifest, _ = yield from node.read()
            check_incarnation(manifest, node.log, tenure.incarnation)
            if manifest.receipts.last(unit.receipt.origin) == unit.receipt.number:
                tenure.learn(manifest, writing=False)
                return _already(tenure)
            if manifest.epoch != tenure.epoch:
                raise LostOwnership(node.log, taken_by(manifest.owner)) from error
            is_last(manifest.receipts, unit.receipt, node.log)
            if manifest.sealed or not left:
                raise  # else somebody has fenced the sink, and may still fail to take the log over
        except LogError as error:
            if not (left and (error.retryable or error.outcome_unknown)):
                raise
        yield from _end(tenure)
        yield from Wait(backoff.next())
    raise AssertionError("the last attempt returns or raises")


def is_last(receipts: Receipts, receipt: Receipt, log: str) -> bool:
    """Return whether *receipt* is the last one of its origin. Raises `UnitSuperseded`."""
    last = receipts.last(receipt.origin)
    if last is not None and last > receipt.number:
        raise UnitSuperseded(log, receipt.number, last)
    return last == receipt.number


def _append(node: ManifestSteps, tenure: Tenure, unit: Unit) -> Steps[Committed]:
    if tenure.writing and tenure.origin not in {None, unit.receipt.origin}:
        yield from _end(tenure)  # the last entry of a segment has one receipt
    if not tenure.writing:
        yield from _open(tenure)
        if is_last(tenure.receipts, unit.receipt, node.log):
            return _already(tenure)
    tenure.origin, tenure.in_doubt = unit.receipt.origin, True
    place = yield from AppendUnit(unit.receipt)
    tenure.receipts, tenure.in_doubt = tenure.receipts.with_one(unit.receipt), False
    tenure.end_offset, tenure.last_txid = place.end_offset, place.last_txid
    return Committed(place.first_offset, place.end_offset)


def _staged(unit: Unit) -> Steps[tuple[Staged, ...]]:
    """Stage what travels, each run of it in a ledger of its own: the order stays."""
    parts: list[Staged] = []
    run: list[int] = []
    for part in (*unit.parts, None):
        if isinstance(part, Inline):
            run.append(part.number)
            continue
        if run:
            staged = yield from StageRun(unit.receipt, tuple(run))
            parts.append(staged)
            run = []
        if part is not None:
            parts.append(part)
    return tuple(parts)


def _adopt(node: ManifestSteps, tenure: Tenure, unit: Unit, now_ms: int) -> Steps[Committed]:
    staged = [part for part in unit.parts if isinstance(part, Staged)]
    edit = adopt(
        node.log,
        incarnation=tenure.incarnation,
        epoch=tenure.epoch,
        receipt=unit.receipt,
        staged=staged,
        now_ms=now_ms,
    )
    yield from _end(tenure)
    manifest = yield from node.edit(edit)
    if not is_last(manifest.receipts, unit.receipt, node.log):  # closing did not seal all of it
        yield from _open(tenure)
        yield from _end(tenure)
        manifest = yield from node.edit(edit)
        if not is_last(manifest.receipts, unit.receipt, node.log):
            raise AppendFailed(node.log, "its last segment could not be closed")
    tenure.learn(manifest, writing=False)
    first = next((s for s in manifest.segments if s.ledger_id == staged[0].ledger_id), None)
    if first is None or first.first_offset is None:
        return _already(tenure)
    records = sum(each.sealed.records for each in staged)
    return Committed(first.first_offset, first.first_offset + records)


def _open(tenure: Tenure) -> Steps[None]:
    """Take the log over within the epoch: all segments are sealed then, but the new one."""
    manifest = yield from OpenSegment(tenure.epoch)
    tenure.learn(manifest, writing=True)


def _end(tenure: Tenure) -> Steps[None]:
    """Write no segment any more; it is sealed, or the next one to open seals it."""
    if tenure.writing:
        tenure.writing = False
        yield from CloseSegments()


def _already(tenure: Tenure) -> Committed:
    return Committed(tenure.end_offset, tenure.end_offset, already=True)
