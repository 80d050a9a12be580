"""Where the records of a writer come in: refused at once, or given an offset and put into a batch.

The one path that every single record goes; what becomes of the batches is `protocol.log_writer`'s
to say. An append costs no task and no wake-up of its own: it joins the open batch, and *wake* is
called once per turn, for all that comes in until the writer looks (`is_woken`). Offsets are final:
if an entry cannot be confirmed every later append fails too.

Hot path: no object per record beyond what the caller gave.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from dlog.columns import Row, size_of
from dlog.encoded_batch import decode_encoded, joined, largest_record_bytes, parse_encoded
from dlog.errors import BatchTooLarge, RecordTooLarge, TxidOutOfOrder, UnexpectedOffset
from dlog.headers import PAIRED_RECORD, are_paired
from dlog.position import NO_TXID, TXID_MAX
from dlog.protocol.packer import ENTRY_BYTES_FULL, ENTRY_RECORDS_MAX, Packer, Part
from dlog.protocol.pending_batch import Outcome, PendingBatch
from dlog.receipts import Receipt
from dlog.recordbatch import Flag, RecordBatch, parse_header
from ledger.errors import LevelTooLow, LogError, TooManyPending
from ledger.feature_level import HEADER_PAIRS, KAFKA_BATCHES

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of unconfirmed records, each counted with `pending_batch.RECORD_CHARGE`, beyond which no
other batch is begun: appends are refused."""
PENDING_BYTES_ROOM: Final = 32 * 1024 * 1024
"""Bytes of unconfirmed records below which waiting appends go on."""

APPEND_MANY_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of records that one `submit_many` may bring."""

UNIT_BYTES_MAX: Final = 8 * 1024 * 1024
UNIT_RECORDS_MAX: Final = ENTRY_RECORDS_MAX
"""Of the records of one unit (`submit_encoded`), which is one entry."""


KAFKA_OVERHEAD: Final = 12
"""Bytes that Kafka does not count of a batch: with the defaults of both, what Kafka takes fits."""
_SHORT_RECORDS_MAX: Final = ENTRY_RECORDS_MAX - 1
"""In the open batch: one more does not close it."""


class RecordAccumulator:
    """Takes the records of *log* from *next_offset* on, each up to *record_bytes_max* bytes."""

    def __init__(
        self,
        log: str,
        *,
        record_bytes_max: int,
        next_offset: int,
        last_txid: int,
        now_ms: Callable[[], int],
        wake: Callable[[], object],
        level: Callable[[], int],
        told: Callable[[], None] | None = None,
    ) -> None:
        """*level* returns the feature level of the cluster. *told* is called when the application
        is given the error of a record that was not taken; from any thread."""
        self.packer = Packer()
        self.next_offset = next_offset
        """Offset of the next append, behind all that was taken."""
        self._log = log
        self._record_bytes_max = record_bytes_max
        self._last_txid = last_txid
        """The highest one that was taken; `NO_TXID` if there is none."""
        self._now_ms = now_ms
        self._wake = wake
        self._level = level
        self._told = told
        self.is_woken = False
        """Whether *wake* was called and the writer has not looked since."""
        self._origin: bytes | None = None
        """Whose units come in here."""
        self._shut: LogError | None = None
        """What every append is answered; None: they are taken."""
        self._short_bytes_max = record_bytes_max
        """Of a record that joins the open batch without ceremony; -1: all are refused."""

    @property
    def pending_bytes(self) -> int:
        """Of all records that are not confirmed."""
        return self.packer.pending_bytes

    @property
    def has_room(self) -> bool:
        """True iff appends are welcome; or refused at once, when nothing is pending any more."""
        return self.pending_bytes < PENDING_BYTES_ROOM

    def shut(self, answer: LogError) -> None:
        """Take nothing more: every append fails with *answer*."""
        self._shut = answer
        self._short_bytes_max = -1

    def append(
        self, record: bytes | Row, size: int, expected_offset: int | None
    ) -> tuple[Outcome, int]:
        """Append one record of *size* bytes; return the outcome it will have, sooner or later, and
        its slot in that.

        Raises `TooManyPending` alone."""
        batch = self.packer.open
        if (
            batch is not None
            and expected_offset is None
            and batch.size_bytes + size < ENTRY_BYTES_FULL
            and size <= self._short_bytes_max
            and len(records := batch.records) < _SHORT_RECORDS_MAX
            and (type(record) is bytes or self._is_short(record, batch))
        ):  # as it mostly is; the writer was woken for this batch
            self.next_offset += 1
            batch.size_bytes += size
            records.append(record)
            return batch, len(records) - 1
        begins = batch is None or batch.size_bytes + size > self.packer.entry_bytes_full
        if begins and self._shut is None:
            self._check_pending()
        taken = self.submit(record, size, expected_offset)
        self.wake_writer()
        return taken

    def _is_short(self, record: bytes | Row, batch: PendingBatch) -> bool:
        """Whether neither txid nor headers of *record* refuse it; *batch* has its txid then."""
        _, _, txid, _, headers = record
        if headers is not None:
            return False
        if txid is not None:
            if not self._last_txid <= txid <= TXID_MAX or txid <= NO_TXID:
                return False
            self._last_txid = batch.newest_txid = txid
        batch.has_rows = True
        return True

    def submit(
        self, record: bytes | Row, size: int, expected_offset: int | None
    ) -> tuple[Outcome, int]:
        """As `append`, whatever is pending; the writer is not woken."""
        txid = headers = None
        if type(record) is tuple:
            _, _, txid, _, headers = record
        if (
            expected_offset is not None
            or size > self._short_bytes_max
            or txid is not None
            or headers is not None
        ):
            refusal = self._refusal(size, txid, expected_offset)
            if refusal is None and headers is not None and are_paired(headers):
                refusal = self._pairs_refusal()
            if refusal is not None:
                return Outcome.refused(refusal, self._told), 0
        self.next_offset += 1
        batch = self.packer.add(record, size, self._now_ms)
        if txid is not None:
            self._last_txid = txid
        return batch, len(batch.records) - 1

    def submit_batch(self, batch: PendingBatch) -> None:
        """Append the records of *batch*, which threads have filled up to an entry's, each for
        itself; the writer is not woken."""
        if not batch.records:
            return  # who began it was interrupted
        expected = batch.expected_offset
        if self._refusal_of_all(batch, expected) is None:
            self._advance(batch)
            self.packer.join(batch, self._now_ms)
        else:
            taken = [self.submit(record, size_of(record), expected) for record in batch.records]
            batch.scatter(taken)

    def submit_many(self, records: list[bytes | Row], expected_offset: int | None) -> list[Part]:
        """Append records behind each other, all or none; return where they went, in order.

        Raises why they are refused, and `TooManyPending`."""
        self._check_pending()
        batch = PendingBatch(records)
        refusal = self._refusal_of_all(batch, expected_offset)
        if refusal is None and batch.size_bytes > APPEND_MANY_BYTES_MAX:
            refusal = BatchTooLarge(self._log, batch.size_bytes, APPEND_MANY_BYTES_MAX)
        if refusal is not None:
            raise refusal.with_traceback(None)  # as in `Outcome.tell`
        self._advance(batch)
        parts = self.packer.add_many(batch, self._now_ms)
        self.wake_writer()
        return parts

    def submit_encoded(self, payloads: Sequence[bytes], receipt: Receipt) -> Outcome:
        """Append the records of encoded batches, which have no place yet, as one entry, all or
        none; return the outcome they will have. No record of them becomes an object.

        Requires at most `UNIT_BYTES_MAX` and `UNIT_RECORDS_MAX`, and one origin for all units; none
        is Kafka's. Raises the error that refuses them, and `DamagedBatch`, `BatchTooNew`."""
        assert self._origin in {None, receipt.origin}, "an entry has one receipt"
        batches = [decode_encoded(payload) for payload in payloads]
        assert sum(batch.header.records_bytes for batch in batches) <= UNIT_BYTES_MAX, "one entry"
        assert sum(batch.count for batch in batches) <= UNIT_RECORDS_MAX
        last_txid = self._last_txid
        for batch in batches:
            refusal = self._refusal_of_encoded(batch, last_txid)
            if refusal is not None:
                raise refusal.with_traceback(None)
            if batch.header.first_txid != NO_TXID:
                last_txid = batch.header.last_txid
        payload = payloads[0] if len(payloads) == 1 else joined(batches)
        pending = self.packer.add_encoded(payload, parse_header(payload), receipt)
        self._origin, self._last_txid = receipt.origin, last_txid
        self.next_offset += pending.count
        self.wake_writer()
        return pending

    def submit_kafka(self, payload: bytes) -> PendingBatch:
        """Append the records of one encoded batch of Kafka's, which has no place yet, as one entry;
        return the outcome they will have. Its records are not looked at.

        The batch counts as one record. Raises the error that refuses it, `TooManyPending`,
        `DamagedBatch`."""
        header = parse_encoded(payload)
        assert header.flags & Flag.KAFKA, "other batches are checked whole"
        self._check_pending()
        refusal = self._refusal(header.value_bytes - KAFKA_OVERHEAD, None, None)
        if refusal is None and (level := self._level()) < KAFKA_BATCHES:
            refusal = LevelTooLow("a batch of Kafka's", KAFKA_BATCHES, level)
        if refusal is not None:
            raise refusal.with_traceback(None)
        pending = self.packer.add_encoded(payload, header, None)
        self.next_offset += pending.count
        self.wake_writer()
        return pending

    def _refusal_of_encoded(self, batch: RecordBatch, last_txid: int) -> LogError | None:
        size = batch.header.records_bytes
        if size > self._record_bytes_max:  # of all its records together
            size = largest_record_bytes(batch)
        refusal = self._refusal(size, None, None)
        if refusal is None and batch.header.flags & Flag.PAIRS:
            refusal = self._pairs_refusal()
        txids = [txid for txid in batch.txid_list() or () if txid is not None]
        if refusal is None and txids:
            refusal = self._txid_refusal(txids[0], last_txid)
            if refusal is None and txids != sorted(txids):
                before, after = next(pair for pair in pairwise(txids) if pair[0] > pair[1])
                refusal = self._txid_refusal(after, before)
        return refusal

    def wake_writer(self) -> None:
        """Let the writer look in the next turn of the loop, behind all that is about to come in."""
        if not self.is_woken:
            self.is_woken = True
            self._wake()

    def _check_pending(self) -> None:
        if self.pending_bytes >= PENDING_BYTES_MAX:
            raise TooManyPending(self.pending_bytes, PENDING_BYTES_MAX)

    def _advance(self, batch: PendingBatch) -> None:
        """Give the records of *batch*, which are not refused, their offsets."""
        self.next_offset += len(batch.records)
        if batch.newest_txid != NO_TXID:
            self._last_txid = batch.newest_txid

    def _refusal_of_all(self, batch: PendingBatch, expected_offset: int | None) -> LogError | None:
        """Return why the records of *batch* are refused, as far as that is the fault of any of
        them; and put into it what was seen of them."""
        records = batch.records
        batch.has_rows = tuple in set(map(type, records))
        sizes = list(map(size_of if batch.has_rows else len, records))
        batch.size_bytes = sum(sizes)
        refusal = self._refusal(max(sizes), None, expected_offset)
        last_txid = self._last_txid
        for record in records if batch.has_rows else ():
            if not isinstance(record, tuple):
                continue
            _, _, txid, _, headers = record
            if refusal is None and txid is not None:
                refusal = self._txid_refusal(txid, last_txid)
                last_txid = batch.newest_txid = txid
            if refusal is None and headers is not None and are_paired(headers):
                refusal = self._pairs_refusal()
        return refusal

    def _refusal(self, size: int, txid: int | None, expected_offset: int | None) -> LogError | None:
        if self._shut is not None:
            return self._shut
        if size > self._record_bytes_max:
            return RecordTooLarge(self._log, size, self._record_bytes_max)
        if expected_offset is not None and expected_offset != self.next_offset:
            return UnexpectedOffset(self._log, expected_offset, self.next_offset)
        return None if txid is None else self._txid_refusal(txid, self._last_txid)

    def _pairs_refusal(self) -> LogError | None:
        level = self._level()
        return None if level >= HEADER_PAIRS else LevelTooLow(PAIRED_RECORD, HEADER_PAIRS, level)

    def _txid_refusal(self, txid: int, last_txid: int) -> LogError | None:
        if max(last_txid, NO_TXID + 1) <= txid <= TXID_MAX:
            return None
        return TxidOutOfOrder(self._log, txid, last_txid)
