"""Which records go into which entry, and when an entry is sent.

A record joins the open batch; a batch that is full is closed and a new one begins. A closed
batch may be sent as soon as the window has room. The open one is sent when nothing is in
flight, or when a slot of the small window is free: so a lone append leaves at once, and
under load entries grow by themselves, without a timer.

A batch is the outcome of its records (`protocol.pending_batch`), which the driver settles when the
batch's entry is confirmed. Hot path: no object per record beyond what the caller gave. All that is
pending is counted here alone.

Invariants (asserted by `check`):
    pending_bytes is the sum over open, full and sent batches, a record's share included
    at most sent_max batches are in flight, at most partial_max if the last was not full
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dlog.columns import Row, size_of
from dlog.protocol.pending_batch import RECORD_CHARGE, PendingBatch
from dlog.receipts import Receipt
from dlog.recordbatch import BatchHeader

ENTRY_BYTES_FULL: Final = 512 * 1024
ENTRY_RECORDS_MAX: Final = 64 * 1024
PARTIAL_MAX: Final = 4
"""Batches in flight beyond which a batch that is not full waits."""
SENT_MAX: Final = 32
"""Batches in flight beyond which any batch waits."""
SENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes in flight beyond which any batch waits."""


@dataclass(slots=True)
class Part:
    """Records that went into one batch."""

    batch: PendingBatch
    slot: int
    count: int


class Packer:
    def __init__(
        self,
        *,
        entry_bytes_full: int = ENTRY_BYTES_FULL,
        partial_max: int = PARTIAL_MAX,
        sent_max: int = SENT_MAX,
    ) -> None:
        assert 1 <= partial_max <= sent_max
        self.entry_bytes_full = entry_bytes_full
        self._partial_max = partial_max
        self._sent_max = sent_max
        self.open: PendingBatch | None = None
        """What single records are put into."""
        self.full: deque[PendingBatch] = deque()
        """Batches that wait and get nothing more."""
        self._sent: deque[PendingBatch] = deque()
        self._sent_bytes = 0
        self._newest_was_open = False
        """Whether the batch taken last was not full."""
        self.shut_bytes = 0
        """What the batches count that get nothing more."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of all records that are not confirmed yet, with `RECORD_CHARGE` for each."""
        batch = self.open
        if batch is None:
            return self.shut_bytes
        return self.shut_bytes + batch.size_bytes + RECORD_CHARGE * len(batch.records)

    @property
    def in_flight(self) -> int:
        """How many batches are sent and not confirmed."""
        return len(self._sent)

    @property
    def oldest(self) -> PendingBatch:
        """The one in flight that is confirmed next. Requires one."""
        return self._sent[0]

    def add(self, record: bytes | Row, size: int, now_ms: Callable[[], int]) -> PendingBatch:
        """Put one record of *size* bytes behind those before, as the last of the batch that is
        returned."""
        batch = self.open
        if batch is None or batch.size_bytes + size > self.entry_bytes_full:
            batch = self._begin(PendingBatch(), now_ms)
        if type(record) is tuple:
            batch.has_rows = True
            batch.newest_txid = batch.newest_txid if record[2] is None else record[2]
        batch.records.append(record)
        batch.size_bytes += size
        if batch.size_bytes >= self.entry_bytes_full or len(batch.records) >= ENTRY_RECORDS_MAX:
            self._shut_open()
        return batch

    def add_many(self, batch: PendingBatch, now_ms: Callable[[], int]) -> list[Part]:
        """Put the records of *batch* behind those before; return where they went, in order.

        They become one entry's, if all of them fit into one."""
        size, count = batch.size_bytes, len(batch.records)
        if size <= self.entry_bytes_full and count <= ENTRY_RECORDS_MAX:
            return [self.join(batch, now_ms)]
        parts: list[Part] = []
        for record in batch.records:
            taken = self.add(record, size_of(record), now_ms)
            if parts and parts[-1].batch is taken:
                parts[-1].count += 1
            else:
                parts.append(Part(taken, len(taken.records) - 1, 1))
        return parts

    def join(self, batch: PendingBatch, now_ms: Callable[[], int]) -> Part:
        """Put the records of *batch*, which fit into one entry, behind those before: they join the
        open batch, or theirs is the open one from now on."""
        joined, slot, count = self.open, 0, len(batch.records)
        if (
            joined is not None
            and joined.size_bytes + batch.size_bytes <= self.entry_bytes_full
            and len(joined.records) + count <= ENTRY_RECORDS_MAX
        ):
            slot = len(joined.records)
            joined.absorb(batch)
        else:
            joined = self._begin(batch, now_ms)
        if joined.size_bytes >= self.entry_bytes_full or len(joined.records) >= ENTRY_RECORDS_MAX:
            self._shut_open()
        return Part(joined, slot, count)

    def add_encoded(
        self, payload: bytes, header: BatchHeader, receipt: Receipt | None
    ) -> PendingBatch:
        """Put the records of an encoded batch without a place behind those before, as one entry
        that holds nothing else."""
        self._shut_open()
        batch = PendingBatch.of_encoded(payload, header, receipt)
        self.full.append(batch)
        self.shut_bytes += batch.charge
        return batch

    def _begin(self, batch: PendingBatch, now_ms: Callable[[], int]) -> PendingBatch:
        """Make *batch* the open one; the one before it, if there is one, gets nothing more."""
        if self.open is not None:
            self._shut_open()
        batch.base_timestamp_ms = now_ms()
        self.open = batch
        return batch

    def _shut_open(self) -> None:
        """Put nothing more into the open batch, if there is one."""
        if self.open is not None:
            self.open.shut()
            self.shut_bytes += self.open.charge
            self.full.append(self.open)
            self.open = None

    def take(self) -> PendingBatch | None:
        """Return the batch to send now, counted as in flight, or None to wait."""
        if self.open is None and not self.full:
            return None
        in_flight = len(self._sent)
        if in_flight and self._sent_bytes >= SENT_BYTES_MAX:
            return None
        if self.full:
            if in_flight >= self._sent_max:
                return None
            batch, self._newest_was_open = self.full.popleft(), False
        elif self.open is not None and in_flight < self._partial_max:
            batch, self.open, self._newest_was_open = self.open, None, True
            batch.shut()
            self.shut_bytes += batch.charge
        else:
            return None
        self._sent.append(batch)
        self._sent_bytes += batch.size_bytes
        return batch

    def put_back(self) -> PendingBatch:
        """Undo the last `take` that is neither confirmed nor undone; return what it returned."""
        batch = self._sent.pop()
        self._sent_bytes -= batch.size_bytes
        self.full.appendleft(batch)
        return batch

    def put_all_back(self) -> None:
        """Undo every `take` that is not confirmed: none of these batches was kept."""
        self.full.extendleft(reversed(self._sent))
        self._sent.clear()
        self._sent_bytes = 0

    def confirmed(self) -> PendingBatch:
        """Return the oldest batch in flight: its entry is confirmed. Requires one."""
        batch = self._sent.popleft()
        self._sent_bytes -= batch.size_bytes
        self.shut_bytes -= batch.charge
        return batch

    def fail(self) -> tuple[list[PendingBatch], list[PendingBatch]]:
        """Give up everything; return the batches that were sent and those that were not."""
        sent, unsent = list(self._sent), list(self.full)
        if self.open is not None:
            self.open.shut()
            unsent.append(self.open)
        self._sent.clear()
        self.full.clear()
        self.open = None
        self._sent_bytes = self.shut_bytes = 0
        return sent, unsent

    def check(self) -> None:
        shut = [*self._sent, *self.full]
        assert self.open is None or self.open.records, "an open batch holds a record"
        for batch in shut:
            assert batch.charge == batch.size_bytes + RECORD_CHARGE * batch.count
        assert self.shut_bytes == sum(batch.charge for batch in shut)
        assert self._sent_bytes == sum(batch.size_bytes for batch in self._sent)
        assert len(self._sent) <= self._sent_max
        assert len(self._sent) <= self._partial_max or not self._newest_was_open
