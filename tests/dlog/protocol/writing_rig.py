"""A log's writer without a log: the machine, its accumulator, and a clock that tests set."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlog.columns import Row
from dlog.manifest import Manifest, Sealed, Segment
from dlog.position import NO_TXID
from dlog.protocol import roll
from dlog.protocol.accumulator import RecordAccumulator
from dlog.protocol.log_writer import Writing
from dlog.protocol.log_writer_events import (
    Reopened,
    RollRequested,
    RollStepped,
    SendEntries,
    WritingEffect,
    WritingEvent,
)
from dlog.protocol.pending_batch import Outcome, PendingBatch
from dlog.receipts import Receipt
from dlog.settings import LogSettings
from ledger.feature_level import LEVEL_MAX
from ledger.ids import EntryId, LedgerId

FIRST = LedgerId(1)
NEXT = LedgerId(2)


def seal(records: int, last_txid: int = NO_TXID) -> Sealed:
    return Sealed(EntryId(records - 1), records, records, NO_TXID, last_txid, 0, 0)


def reopened(end: int, ledger_id: LedgerId = NEXT, *, last_txid: int = NO_TXID) -> Reopened:
    """The log ends at *end*, all of it in the first segment."""
    segments = (Segment(1, FIRST, 0, 0, seal(end, last_txid)), Segment(9, ledger_id, 0, end))
    return Reopened(
        Manifest(incarnation="i", segments=segments, next_segment=10, epoch=1), 9, ledger_id
    )


@dataclass(frozen=True, slots=True)
class RecordsGathered:
    """`Writing.gathered`."""


@dataclass(frozen=True, slots=True)
class EntryConfirmed:
    """`Writing.confirmed`."""

    ledger_id: LedgerId
    entry_id: EntryId
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A batch at the place that it was sent to."""

    batch: PendingBatch
    base_index: int
    previous_txid: int
    receipt: Receipt | None = None


@dataclass(frozen=True, slots=True)
class Sends:
    """`SendEntries`, with the places of that moment."""

    ledger_id: LedgerId
    entries: tuple[Entry, ...]


Effect = WritingEffect | Sends


def fixed(effect: WritingEffect) -> Effect:
    if not isinstance(effect, SendEntries):
        return effect
    entries = (
        Entry(batch, batch.base_index, batch.previous_txid, batch.carries)
        for batch in effect.batches
    )
    return Sends(effect.ledger_id, tuple(entries))


Event = WritingEvent | RecordsGathered | EntryConfirmed
"""What comes to the machine, its methods among them."""


def name_of(event: Event) -> str:
    """Return what `TRANSITIONS` calls it."""
    match event:
        case RecordsGathered():
            return "gathered"
        case EntryConfirmed():
            return "confirmed"
        case _:
            return type(event).__name__


class Rig:
    def __init__(self, *, reopen_timeout_s: float = 30.0, **settings: int) -> None:
        manifest = Manifest(
            incarnation="i",
            settings=LogSettings(**settings),  # type: ignore[arg-type]
            segments=(Segment(1, FIRST, 0, 0),),
            next_segment=2,
            epoch=1,
        )
        self.now = 0.0
        self.woken = 0
        self.accumulator = RecordAccumulator(
            "log",
            record_bytes_max=1000,
            next_offset=0,
            last_txid=NO_TXID,
            now_ms=lambda: 0,
            wake=self._wake,
            level=lambda: LEVEL_MAX,
        )
        self.machine = Writing(
            "log", manifest, 1, FIRST, self.accumulator, reopen_timeout_s=reopen_timeout_s, now=0.0
        )

    def _wake(self) -> None:
        self.woken += 1

    def step(self, event: Event) -> list[Effect]:
        effects: Sequence[WritingEffect]
        match event:
            case RecordsGathered():
                effects = self.machine.gathered(self.now)
            case EntryConfirmed(ledger_id, entry_id, size_bytes):
                effects = self.machine.confirmed(ledger_id, entry_id, size_bytes, self.now)
            case _:
                effects = self.machine.step(event, now=self.now)
        self.accumulator.packer.check()
        return list(map(fixed, effects))

    def append(self, *values: bytes, txid: int | None = None) -> PendingBatch:
        """Take *values* into one batch; return it."""
        records: list[bytes | Row] = [*values]
        if txid is not None:
            records = [(value, None, txid, None, None) for value in values]
        (part,) = self.accumulator.submit_many(records, None)
        return part.batch

    def submit(self, value: bytes, *, txid: int | None = None) -> tuple[Outcome, int]:
        """Take one record, or refuse it; return its outcome and its slot."""
        return self.accumulator.append((value, None, txid, None, None), len(value), None)

    def sent(self, *values: bytes, txid: int | None = None) -> list[PendingBatch]:
        """Send *values* as an entry each."""
        batches = []
        for value in values:
            batches.append(self.append(value, txid=txid))
            (send,) = self.step(RecordsGathered())
            assert isinstance(send, Sends)
        return batches

    def confirm(self, entry: int = 0, ledger_id: LedgerId = FIRST) -> list[Effect]:
        return self.step(EntryConfirmed(ledger_id, EntryId(entry), 100))

    def rolled(self, event: roll.RollEvent) -> list[Effect]:
        """A step of the first roll machine ends."""
        return self.step(RollStepped(1, event))

    def holding(self) -> list[PendingBatch]:
        """Hold, with one record confirmed and two entries in flight; return these."""
        self.sent(b"a")
        self.confirm()
        self.step(RollRequested(1))
        self.rolled(roll.LedgerCreated(NEXT))
        batches = self.sent(b"b", b"c")
        assert self.rolled(roll.SegmentListed()) == []
        return batches
