"""Where the records of a writer come in: refused at once, or given an offset and put into a group.

The one path that every single record goes; what becomes of the groups is `protocol.log_writer`'s to
say. An append costs no task and no wake-up of its own: it joins the open gathering, and *wake* is
called once per turn, for all that gathers until the writer looks (`taken`). What gathered is given
its offsets together (`settle`), and these are final: if an entry cannot be confirmed every later
append fails too.

Hot path: no object per record beyond what the caller gave.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from dlog.columns import Columns, Row
from dlog.encoded_batch import decode_encoded, joined, largest_record_bytes
from dlog.errors import BatchTooLarge, RecordTooLarge, TxidOutOfOrder, UnexpectedOffset
from dlog.headers import PAIRED_RECORD, are_paired
from dlog.outcome import Outcome
from dlog.position import NO_TXID, TXID_MAX
from dlog.protocol.packer import ENTRY_RECORDS_MAX, Packer, Part
from dlog.protocol.pending_batch import Gathering
from dlog.receipts import Receipt
from dlog.recordbatch import Flag, RecordBatch
from ledger.errors import LevelTooLow, LogError, TooManyPending
from ledger.feature_level import HEADER_PAIRS

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of unconfirmed records, each counted with `packer.RECORD_CHARGE`, beyond which no other
gathering is begun: appends are refused."""
PENDING_BYTES_ROOM: Final = 32 * 1024 * 1024
"""Bytes of unconfirmed records below which waiting appends go on."""

APPEND_MANY_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of records that one `submit_many` may bring."""

UNIT_BYTES_MAX: Final = 8 * 1024 * 1024
UNIT_RECORDS_MAX: Final = ENTRY_RECORDS_MAX
"""Of the records of one unit (`submit_encoded`), which is one entry."""


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
        """Offset of the next append, behind all that is settled."""
        self._log = log
        self._record_bytes_max = record_bytes_max
        self._last_txid = last_txid
        """The highest one that was taken; `NO_TXID` if there is none."""
        self._now_ms = now_ms
        self._wake = wake
        self._level = level
        self._told = told
        self._woken = False
        self._origin: bytes | None = None
        """Whose units come in here."""
        self._gathering: Gathering | None = None
        """What has gathered since it was settled."""
        self._shut: LogError | None = None
        """What every append is answered; None: they are taken."""

    @property
    def pending_bytes(self) -> int:
        """Of all records that are not confirmed."""
        gathering = self._gathering
        return self.packer.pending_bytes + (0 if gathering is None else gathering.charge)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come in that is not confirmed, or failed."""
        return self._gathering is None and not self.packer.pending_bytes

    @property
    def end_offset(self) -> int:
        """Offset behind all that came in, settled or not."""
        return self.next_offset + (0 if self._gathering is None else self._gathering.count)

    @property
    def has_room(self) -> bool:
        """True iff appends are welcome; or refused at once, when nothing is pending any more."""
        return self.pending_bytes < PENDING_BYTES_ROOM

    def shut(self, answer: LogError) -> None:
        """Take nothing more: every append fails with *answer*."""
        self._shut = answer

    def taken(self) -> None:
        """The writer looks at what has gathered: call *wake* again for the next record."""
        self._woken = False

    def gather(
        self, record: bytes | Row, charge: int, expected_offset: int | None
    ) -> tuple[Gathering, int]:
        """Append one record, which counts *charge* bytes; return where its outcome will be found.

        Raises `TooManyPending` alone."""
        gathering = self._gathering
        if (
            gathering is None
            or gathering.charge + charge > gathering.limit
            or expected_offset is not None
        ):
            gathering = self._begin(expected_offset)
        gathering.charge += charge
        records = gathering.records
        records.append(record)
        return gathering, len(records) - 1

    def _begin(self, expected_offset: int | None) -> Gathering:
        self.settle()
        if self._shut is not None:
            return Gathering.placed(Outcome.refused(self._shut, self._told))
        self._check_pending()
        gathering = self._gathering = Gathering(expected_offset)
        self.wake_writer()
        return gathering

    def settle(self) -> None:
        """Give what has gathered its places."""
        gathering, self._gathering = self._gathering, None
        if gathering is not None:
            self.submit_gathered(gathering)

    def submit_gathered(self, gathering: Gathering) -> None:
        """Append the records of *gathering*, each for itself; the writer is not woken."""
        if not gathering.records:
            return  # who began it was interrupted
        records, expected = gathering.take(), gathering.expected_offset
        refusal = self._refusal_of_all(records, expected)
        if refusal is None:
            (part,) = self._take_all(records)
            gathering.place(part.group.outcome, part.slot)
        else:
            gathering.place_each([self.submit(*row, expected) for row in records.rows()])

    def submit(
        self,
        payload: bytes,
        key: bytes | None,
        txid: int | None,
        timestamp_ms: int | None,
        headers: bytes | None,
        expected_offset: int | None,
    ) -> tuple[Outcome, int]:
        """Append one record; return the outcome it will have, sooner or later, and its slot. The
        writer is not woken."""
        size = len(payload) if key is None else len(payload) + len(key)
        if headers is not None:
            size += len(headers)
        refusal = self._refusal(size, txid, expected_offset)
        if refusal is None and headers is not None and are_paired(headers):
            refusal = self._pairs_refusal()
        if refusal is not None:
            return Outcome.refused(refusal, self._told), 0
        if txid is not None:
            self._last_txid = txid
        self.next_offset += 1
        group = self.packer.add(payload, key, txid, timestamp_ms, headers, self._now_ms)
        return group.outcome, group.count - 1

    def submit_many(
        self,
        records: Columns,
        expected_offset: int | None,
    ) -> list[Part]:
        """Append records behind each other, all or none; return where they went, in order.

        Raises why they are refused, and `TooManyPending`."""
        self.settle()
        self._check_pending()
        refusal = self._refusal_of_all(records, expected_offset)
        if refusal is None and (size := records.total_bytes()) > APPEND_MANY_BYTES_MAX:
            refusal = BatchTooLarge(self._log, size, APPEND_MANY_BYTES_MAX)
        if refusal is not None:
            raise refusal
        parts = self._take_all(records)
        self.wake_writer()
        return parts

    def submit_encoded(self, payloads: Sequence[bytes], receipt: Receipt) -> Outcome:
        """Append the records of encoded batches, which have no place yet, as one entry, all or
        none; return the outcome they will have. No record of them becomes an object.

        Requires at most `UNIT_BYTES_MAX` and `UNIT_RECORDS_MAX`, and one origin for all units.
        Raises the error that refuses them, and `DamagedBatch`, `BatchTooNew`."""
        assert self._origin in {None, receipt.origin}, "an entry has one receipt"
        batches = [decode_encoded(payload) for payload in payloads]
        assert sum(batch.header.records_bytes for batch in batches) <= UNIT_BYTES_MAX, "one entry"
        assert sum(batch.count for batch in batches) <= UNIT_RECORDS_MAX
        self.settle()
        last_txid = self._last_txid
        for batch in batches:
            refusal = self._refusal_of_encoded(batch, last_txid)
            if refusal is not None:
                raise refusal
            if batch.header.first_txid != NO_TXID:
                last_txid = batch.header.last_txid
        payload = payloads[0] if len(payloads) == 1 else joined(batches)
        group = self.packer.add_encoded(payload, receipt)
        self._origin, self._last_txid = receipt.origin, last_txid
        self.next_offset += group.count
        self.wake_writer()
        return group.outcome

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
        if not self._woken:
            self._woken = True
            self._wake()

    def _check_pending(self) -> None:
        if self.pending_bytes >= PENDING_BYTES_MAX:
            raise TooManyPending(self.pending_bytes, PENDING_BYTES_MAX)

    def _take_all(self, records: Columns) -> list[Part]:
        self._advance(records)
        return self.packer.add_many(records, self._now_ms)

    def _advance(self, records: Columns) -> None:
        """Give *records*, which are not refused, their offsets."""
        for txid in records.txids or ():
            if txid is not None:
                self._last_txid = txid
        self.next_offset += records.count

    def _refusal_of_all(self, records: Columns, expected_offset: int | None) -> LogError | None:
        """Return why *records* are refused, as far as that is the fault of any of them."""
        refusal = self._refusal(max(records.sizes()), None, expected_offset)
        last_txid = self._last_txid
        for txid in records.txids or ():
            if refusal is None and txid is not None:
                refusal = self._txid_refusal(txid, last_txid)
                last_txid = txid
        if refusal is None and any(map(are_paired, records.headers or ())):
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
