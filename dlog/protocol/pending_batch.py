"""The records of one entry, from their append to the outcome that they share.

A record has one container, whichever way it comes in: a `PendingBatch`. The loop puts records into
the one that is open (`protocol.accumulator`); threads fill batches of their own under a lock, and
the loop adds these as a whole (`PendingBatch.join`). One list takes the records, so an append is
one step that cannot be interrupted in its middle; columns are made when the batch is encoded.

A batch is the outcome of its records, too, settled once: an append's future holds the batch and its
own slot in it, and what it resolves to is made when somebody asks. So an entry of thousands of
records costs one assignment when it is confirmed, and nothing per record, as long as nobody waits
for a single one.

An outcome is settled once, by the loop. Other threads may watch it at any time: who watches
adds itself first and looks then, who settles does it in the other order, so none is missed; one
may be called twice.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Self, cast

from dlog.columns import Columns, Row
from dlog.encoded_batch import placed
from dlog.position import NO_TXID, Place, RecordId
from dlog.receipts import Receipt
from dlog.recordbatch import BatchHeader, Codec, encode_batch
from ledger.errors import LogError

RECORD_CHARGE: Final = 128
"""Bytes that a pending record counts beside its own: so much it costs however small it is."""


class Outcome:
    __slots__ = ("_error_of", "_told", "_watchers", "base_timestamp_ms", "place")

    def __init__(self) -> None:
        self.place: Place | None = None
        """Set once the entry is confirmed."""
        self.base_timestamp_ms = 0
        """Of records that came without one."""
        self._error_of: Callable[[int], LogError] | None = None
        self._told: Callable[[], None] | None = None
        self._watchers: list[Callable[[], None]] = []

    @classmethod
    def refused(cls, error: LogError, told: Callable[[], None] | None = None) -> Self:
        """Return the outcome of a record that was never taken."""
        outcome = cls()
        outcome.fail(lambda _: error, told)
        return outcome

    @property
    def done(self) -> bool:
        return self.place is not None or self._error_of is not None

    def fail(
        self, error_of: Callable[[int], LogError], told: Callable[[], None] | None = None
    ) -> None:
        """Fail the entry; *error_of* returns the error of the record in a slot.

        *told* is called, from any thread, when the application is given one (`tell`)."""
        if not self.done:
            self._told = told
            self._error_of = error_of
            self._notify()

    def record_id(self, slot: int) -> RecordId:
        """Return the id of the record in *slot*, or raise its error. Requires `done`."""
        place = self.place
        if place is None:
            error = self.tell(slot)
            assert error is not None, "the outcome is not known yet"
            raise error
        offset = place.first_offset + slot
        return RecordId(offset, place.dlsn(offset))

    def tell(self, slot: int) -> LogError | None:
        """Return what `error` returns, to the application."""
        error = self.error(slot)
        if error is None:
            return None
        if self._told is not None:
            self._told()
        # It may be that of each append to come: its traceback must not grow by every caller,
        # and hold what they wanted to append.
        return error.with_traceback(None)

    def error(self, slot: int) -> LogError | None:
        """Return why the record in *slot* failed; None if it did not."""
        return None if self._error_of is None else self._error_of(slot)

    def watch(self, call: Callable[[], None]) -> None:
        """Call *call* when the outcome is known: on the loop, or here if it is already."""
        self._watchers.append(call)
        if self.place is not None or self._error_of is not None:
            call()

    def _notify(self) -> None:
        for call in tuple(self._watchers):
            call()
        self._watchers.clear()


class PendingBatch(Outcome):
    """It grows until it is sent, and has its place in the segment from then on; another one if it
    is sent again. Its records are let go of once their outcome is known: a future may be kept long.
    """

    __slots__ = (
        "_each",
        "_joined",
        "_slot",
        "base_index",
        "carries",
        "charge",
        "count",
        "encoded",
        "expected_offset",
        "has_rows",
        "header",
        "newest_txid",
        "previous_txid",
        "receipt",
        "records",
        "size_bytes",
    )

    def __init__(
        self, records: list[bytes | Row] | None = None, *, expected_offset: int | None = None
    ) -> None:
        # As `Outcome.__init__`, without a call of its own.
        self.place = self._error_of = self._told = None
        self._watchers = []
        self.records: list[bytes | Row] = [] if records is None else records
        """In their order; `bytes` are payloads alone."""
        self.count = self.charge = 0
        """How many records it has, and bytes that they count while they are pending; set once
        nothing more is put into it (`shut`)."""
        self.has_rows = False
        """Whether any record is more than a payload; set before it leaves for its entry."""
        self.size_bytes = 0
        """Of all records."""
        self.expected_offset = expected_offset
        """Of its only record; None: of any."""
        self.newest_txid = NO_TXID
        """The last one in it, if it has one."""
        self.base_timestamp_ms = 0
        self.encoded: bytes | None = None
        """Records that were encoded before they came in; `records` has none then."""
        self.header: BatchHeader | None = None
        """Of `encoded`."""
        self.receipt: Receipt | None = None
        """Of the unit that these records are; None: they are none."""
        self.base_index = 0
        """Records of its segment before it."""
        self.previous_txid = NO_TXID
        """The last one before it in the log; `NO_TXID` if there is none."""
        self.carries: Receipt | None = None
        """Of the last unit in its segment, itself included."""
        self._joined: PendingBatch | None = None
        """Where its records are by now, from `_slot` on."""
        self._slot = 0
        self._each: Sequence[tuple[Outcome, int]] = ()
        """Of each record, if not all were taken."""

    @classmethod
    def of_encoded(cls, payload: bytes, header: BatchHeader, receipt: Receipt | None) -> Self:
        """Return one of the records of an encoded batch without a place, with its header."""
        batch = cls()
        batch.encoded, batch.header, batch.receipt = payload, header, receipt
        batch.base_timestamp_ms = header.base_timestamp_ms
        batch.size_bytes = header.records_bytes
        batch.newest_txid = NO_TXID if header.first_txid == NO_TXID else header.last_txid
        batch.count, batch.charge = header.count, batch.size_bytes + RECORD_CHARGE * header.count
        return batch

    def shut(self) -> None:
        """Nothing more is put into it: its records are counted."""
        self.count = len(self.records)
        self.charge = self.size_bytes + RECORD_CHARGE * self.count

    def encode(self, *, codec: Codec, codec_level: int) -> bytes:
        """Return the entry of these records at its place."""
        if self.encoded is not None:
            return placed(
                self.encoded,
                header=self.header,
                base_index=self.base_index,
                previous_txid=self.previous_txid,
                codec=codec,
                codec_level=codec_level,
                receipt=self.carries,
            )
        return encode_batch(
            Columns.of(self.records)
            if self.has_rows
            else Columns(cast("list[bytes]", self.records)),
            base_index=self.base_index,
            base_timestamp_ms=self.base_timestamp_ms,
            previous_txid=self.previous_txid,
            codec=codec,
            codec_level=codec_level,
            receipt=self.carries,
        )

    def confirm(self, offset: int, segment: int, entry: int) -> None:
        """Confirm the entry, with *offset* for its first record."""
        if self.place is None and self._error_of is None:
            self.records, self.encoded = [], None
            self.place = Place(segment, entry, offset)
            self._notify()

    def fail(
        self, error_of: Callable[[int], LogError], told: Callable[[], None] | None = None
    ) -> None:
        self.records, self.encoded = [], None
        super().fail(error_of, told)

    # Batches of threads.

    def absorb(self, batch: "PendingBatch") -> None:
        """Take the records of *batch* behind its own; their outcome is found here from now on."""
        slot = len(self.records)
        self.records += batch.records
        self.has_rows = self.has_rows or batch.has_rows
        self.size_bytes += batch.size_bytes
        if batch.newest_txid != NO_TXID:
            self.newest_txid = batch.newest_txid
        batch.moved_to(self, slot)

    def moved_to(self, batch: "PendingBatch", slot: int) -> None:
        """Tell that its records are in *batch*, from *slot* on."""
        self.records, self._slot = [], slot
        self._joined = batch  # last, as threads look
        self._notify()

    def scatter(self, each: Sequence[tuple[Outcome, int]]) -> None:
        """Tell each record's outcome and slot in it: not all were taken."""
        self.records = []
        self._each = each
        self._notify()

    def find(self, index: int) -> tuple[Outcome, int]:
        """Return the outcome of a record as it came in, and its slot in that."""
        if self._joined is not None:
            return self._joined, self._slot + index
        return self._each[index] if self._each else (self, index)

    def watch_record(self, index: int, call: Callable[[], None]) -> None:
        """As `watch`, for the outcome of a record; perhaps twice."""
        look = partial(self._look, index, call)
        self._watchers.append(look)  # before looking, as whoever settles looks here afterwards
        if self._joined is not None or self._each or self.done:
            look()

    def _look(self, index: int, call: Callable[[], None]) -> None:
        outcome, _ = self.find(index)
        if outcome is self:
            call()
        else:
            outcome.watch(call)
