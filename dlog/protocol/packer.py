"""Which records go into which entry, and when an entry is sent.

A record joins the open group; a group that is full is closed and a new one begins. A closed
group may be sent as soon as the window has room. The open one is sent when nothing is in
flight, or when a slot of the small window is free: so a lone append leaves at once, and
under load entries grow by themselves, without a timer.

A group carries the outcome of its records, which the driver settles when the group's entry is
confirmed. Hot path: no object per record beyond what the caller gave.

Invariants (asserted by `check`):
    pending_bytes is the sum over open, full and sent groups, a record's share included
    at most sent_max groups are in flight, at most partial_max if the last was not full
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final, TypeVar

from dlog.columns import Columns
from dlog.encoded_batch import placed
from dlog.outcome import Outcome
from dlog.position import NO_TXID
from dlog.receipts import Receipt
from dlog.recordbatch import BatchHeader, Codec, encode_batch, parse_header

ENTRY_BYTES_FULL: Final = 512 * 1024
ENTRY_RECORDS_MAX: Final = 64 * 1024
PARTIAL_MAX: Final = 4
"""Groups in flight beyond which a group that is not full waits."""
SENT_MAX: Final = 32
"""Groups in flight beyond which any group waits."""
SENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes in flight beyond which any group waits."""

RECORD_CHARGE: Final = 128
"""Bytes that a pending record counts beside its own: so much it costs however small it is."""


_Value = TypeVar("_Value")


@dataclass(slots=True, kw_only=True)
class Group(Columns):
    """The records of one entry, from the append to its confirmation. It grows until it is taken,
    and has its place in the segment once it is sent; another one if it is sent again."""

    values: list[bytes] = field(default_factory=list)
    base_timestamp_ms: int
    outcome: Outcome = field(default_factory=Outcome)
    size_bytes: int = 0
    receipt: Receipt | None = None
    """Of the unit that these records are; None: they are none."""
    base_index: int = 0
    """Records of its segment before it."""
    previous_txid: int = NO_TXID
    """The last one before it in the log; `NO_TXID` if there is none."""
    carries: Receipt | None = None
    """Of the last unit in its segment, itself included."""

    @property
    def charge(self) -> int:
        return self.size_bytes + RECORD_CHARGE * self.count

    def last_txid(self, before: int) -> int:
        """Return the last txid up to here, if that is *before* ahead of these records."""
        if self.txids is None:
            return before
        return next((txid for txid in reversed(self.txids or ()) if txid is not None), before)

    def encode(self, *, codec: Codec, codec_level: int) -> bytes:
        """Return the entry of these records at its place."""
        return encode_batch(
            self,
            base_index=self.base_index,
            base_timestamp_ms=self.base_timestamp_ms,
            previous_txid=self.previous_txid,
            codec=codec,
            codec_level=codec_level,
            receipt=self.carries,
        )


@dataclass(slots=True, kw_only=True)
class EncodedGroup(Group):
    """Records that were encoded before they came in; there are no columns of them here."""

    payload: bytes
    header: BatchHeader

    @property
    def count(self) -> int:
        return self.header.count

    def last_txid(self, before: int) -> int:
        return before if self.header.first_txid == NO_TXID else self.header.last_txid

    def encode(self, *, codec: Codec, codec_level: int) -> bytes:
        return placed(
            self.payload,
            base_index=self.base_index,
            previous_txid=self.previous_txid,
            codec=codec,
            codec_level=codec_level,
            receipt=self.carries,
        )


@dataclass(slots=True)
class Part:
    """Records that went into one group."""

    group: Group
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
        self._entry_bytes_full = entry_bytes_full
        self._partial_max = partial_max
        self._sent_max = sent_max
        self._open: Group | None = None
        self._full: deque[Group] = deque()
        self._sent: deque[Group] = deque()
        self._sent_bytes = 0
        self._newest_was_open = False
        """Whether the group taken last was not full."""
        self.pending_bytes = 0
        """Bytes of all records that are not confirmed yet, with `RECORD_CHARGE` for each."""

    @property
    def in_flight(self) -> int:
        """How many groups are sent and not confirmed."""
        return len(self._sent)

    @property
    def has_full(self) -> bool:
        """Whether a group waits that gets nothing more."""
        return bool(self._full)

    @property
    def has_open(self) -> bool:
        """Whether a group waits that is not full."""
        return self._open is not None

    @property
    def oldest(self) -> Group:
        """The one in flight that is confirmed next. Requires one."""
        return self._sent[0]

    def add(
        self,
        value: bytes,
        key: bytes | None,
        txid: int | None,
        timestamp_ms: int | None,
        headers: bytes | None,
        now_ms: Callable[[], int],
    ) -> Group:
        """Put one record behind those before, as the last of the group that is returned."""
        group = self._open
        size = len(value) if key is None else len(value) + len(key)
        if headers is not None:
            size += len(headers)
        if group is None or group.size_bytes + size > self._entry_bytes_full:
            group = self._begin(now_ms())
        if key is not None or group.keys is not None:
            if group.keys is None:
                group.keys = [None] * len(group.values)
            group.keys.append(key)
        if txid is not None or group.txids is not None:
            if group.txids is None:
                group.txids = [None] * len(group.values)
            group.txids.append(txid)
        if timestamp_ms is not None or group.timestamps_ms is not None:
            if group.timestamps_ms is None:
                group.timestamps_ms = [group.base_timestamp_ms] * len(group.values)
            group.timestamps_ms.append(now_ms() if timestamp_ms is None else timestamp_ms)
        if headers is not None or group.headers is not None:
            if group.headers is None:
                group.headers = [None] * len(group.values)
            group.headers.append(headers)
        group.values.append(value)
        group.size_bytes += size
        self.pending_bytes += size + RECORD_CHARGE
        if group.size_bytes >= self._entry_bytes_full or len(group.values) >= ENTRY_RECORDS_MAX:
            self._full.append(group)
            self._open = None
        return group

    def add_many(
        self,
        records: Columns,
        now_ms: Callable[[], int],
    ) -> list[Part]:
        """Put records behind those before; return where they went, in order.

        They become one entry's, if all of them fit into one."""
        size = records.total_bytes()
        fits = size <= self._entry_bytes_full and records.count <= ENTRY_RECORDS_MAX
        if fits and not self._has_room(size, records.count):
            self._begin(now_ms())
        if fits:
            return [self._extend(records, size, now_ms)]
        parts: list[Part] = []
        for row in records.rows():
            group = self.add(*row, now_ms)
            if parts and parts[-1].group is group:
                parts[-1].count += 1
            else:
                parts.append(Part(group, group.count - 1, 1))
        return parts

    def add_encoded(self, payload: bytes, receipt: Receipt | None) -> Group:
        """Put the records of an encoded batch without a place behind those before, as one entry
        that holds nothing else."""
        if self._open is not None:
            self._full.append(self._open)
            self._open = None
        header = parse_header(payload)
        group = EncodedGroup(
            payload=payload,
            header=header,
            base_timestamp_ms=header.base_timestamp_ms,
            size_bytes=header.records_bytes,
            receipt=receipt,
        )
        self.pending_bytes += group.charge
        self._full.append(group)
        return group

    def _has_room(self, size: int, count: int) -> bool:
        group = self._open
        return group is None or (
            group.size_bytes + size <= self._entry_bytes_full
            and group.count + count <= ENTRY_RECORDS_MAX
        )

    def _extend(self, records: Columns, size: int, now_ms: Callable[[], int]) -> Part:
        """Add records to the open group, which has room for all of them."""
        group = self._open or self._begin(now_ms())
        slot, count = group.count, records.count
        group.keys = _joined(group.keys, records.keys, slot, count)
        group.txids = _joined(group.txids, records.txids, slot, count)
        group.headers = _joined(group.headers, records.headers, slot, count)
        if records.timestamps_ms is not None or group.timestamps_ms is not None:
            now = now_ms()
            times = [now if t is None else t for t in records.timestamps_ms or repeat(None, count)]
            if group.timestamps_ms is None:
                group.timestamps_ms = [group.base_timestamp_ms] * slot
            group.timestamps_ms.extend(times)
        group.values.extend(records.values)
        group.size_bytes += size
        self.pending_bytes += size + RECORD_CHARGE * count
        if group.size_bytes >= self._entry_bytes_full or group.count >= ENTRY_RECORDS_MAX:
            self._full.append(group)
            self._open = None
        return Part(group, slot, count)

    def _begin(self, now_ms: int) -> Group:
        """Begin a group; the open one, if there is one, gets nothing more."""
        if self._open is not None:
            self._full.append(self._open)
        self._open = Group(base_timestamp_ms=now_ms)
        return self._open

    def take(self) -> Group | None:
        """Return the group to send now, counted as in flight, or None to wait."""
        if self._open is None and not self._full:
            return None
        in_flight = len(self._sent)
        if in_flight and self._sent_bytes >= SENT_BYTES_MAX:
            return None
        if self._full:
            if in_flight >= self._sent_max:
                return None
            group, self._newest_was_open = self._full.popleft(), False
        elif self._open is not None and in_flight < self._partial_max:
            group, self._open, self._newest_was_open = self._open, None, True
        else:
            return None
        self._sent.append(group)
        self._sent_bytes += group.size_bytes
        return group

    def put_back(self) -> Group:
        """Undo the last `take` that is neither confirmed nor undone; return what it returned."""
        group = self._sent.pop()
        self._sent_bytes -= group.size_bytes
        self._full.appendleft(group)
        return group

    def put_all_back(self) -> None:
        """Undo every `take` that is not confirmed: none of these groups was kept."""
        self._full.extendleft(reversed(self._sent))
        self._sent.clear()
        self._sent_bytes = 0

    def confirmed(self) -> Group:
        """Return the oldest group in flight: its entry is confirmed. Requires one."""
        group = self._sent.popleft()
        self._sent_bytes -= group.size_bytes
        self.pending_bytes -= group.charge
        return group

    def fail(self) -> tuple[list[Group], list[Group]]:
        """Give up everything; return the groups that were sent and those that were not."""
        sent, unsent = list(self._sent), list(self._full)
        if self._open is not None:
            unsent.append(self._open)
        self._sent.clear()
        self._full.clear()
        self._open = None
        self._sent_bytes = self.pending_bytes = 0
        return sent, unsent

    def check(self) -> None:
        groups = [*self._sent, *self._full]
        if self._open is not None:
            assert self._open.values, "an open group holds a record"
            groups.append(self._open)
        assert self.pending_bytes == sum(group.charge for group in groups)
        assert self._sent_bytes == sum(group.size_bytes for group in self._sent)
        assert len(self._sent) <= self._sent_max
        assert len(self._sent) <= self._partial_max or not self._newest_was_open


def _joined(
    before: list[_Value | None] | None,
    column: list[_Value | None] | None,
    slot: int,
    count: int,
) -> list[_Value | None] | None:
    """Return an optional column of *slot* records and, behind them, of *count* more."""
    if column is None and before is None:
        return None
    joined: list[_Value | None] = [None] * slot if before is None else before
    joined.extend([None] * count if column is None else column)
    return joined
