"""Which records go into which entry, and when an entry is sent.

A record joins the open group; a group that is full is closed and a new one begins. A closed
group may be sent as soon as the window has room. The open one is sent when nothing is in
flight, or when a slot of the small window is free: so a lone append leaves at once, and
under load entries grow by themselves, without a timer.

The packer is opaque to what a ticket is; the driver resolves tickets when the group's entry
is confirmed. Hot path: no object per record beyond what the caller gave.

Invariants (asserted by `check`):
    pending_bytes is the sum over open, full and sent groups
    at most sent_max groups are in flight, at most partial_max if the last was not full
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

ENTRY_BYTES_FULL: Final = 512 * 1024
ENTRY_RECORDS_MAX: Final = 64 * 1024
PARTIAL_MAX: Final = 4
"""Groups in flight beyond which a group that is not full waits."""
SENT_MAX: Final = 32
"""Groups in flight beyond which any group waits."""
SENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes in flight beyond which any group waits."""

Ticket = TypeVar("Ticket")


@dataclass(slots=True)
class Group(Generic[Ticket]):
    """The records of one entry, as columns. A column that no record needs is None."""

    base_timestamp_ms: int
    tickets: list[Ticket] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    timestamps_ms: list[int] | None = None
    txids: list[int | None] | None = None
    keys: list[bytes | None] | None = None
    size_bytes: int = 0

    @property
    def count(self) -> int:
        return len(self.values)


class Packer(Generic[Ticket]):
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
        self._open: Group[Ticket] | None = None
        self._full: deque[Group[Ticket]] = deque()
        self._sent: deque[Group[Ticket]] = deque()
        self._sent_bytes = 0
        self.pending_bytes = 0
        """Bytes of all records that are not confirmed yet."""

    @property
    def in_flight(self) -> int:
        """How many groups are sent and not confirmed."""
        return len(self._sent)

    @property
    def idle(self) -> bool:
        """True iff every record was confirmed."""
        return not self._sent and not self._full and self._open is None

    def add(
        self,
        ticket: Ticket,
        value: bytes,
        key: bytes | None,
        txid: int | None,
        timestamp_ms: int | None,
        now_ms: int,
    ) -> None:
        """Put one record behind those before."""
        group = self._open
        size = len(value) if key is None else len(value) + len(key)
        if group is None:
            group = self._open = Group(now_ms)
        elif group.size_bytes + size > self._entry_bytes_full:
            self._full.append(group)
            group = self._open = Group(now_ms)
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
            group.timestamps_ms.append(now_ms if timestamp_ms is None else timestamp_ms)
        group.values.append(value)
        group.tickets.append(ticket)
        group.size_bytes += size
        self.pending_bytes += size
        if group.size_bytes >= self._entry_bytes_full or len(group.values) >= ENTRY_RECORDS_MAX:
            self._full.append(group)
            self._open = None

    def take(self) -> Group[Ticket] | None:
        """Return the group to send now, counted as in flight, or None to wait."""
        in_flight = len(self._sent)
        if in_flight and self._sent_bytes >= SENT_BYTES_MAX:
            return None
        if self._full:
            if in_flight >= self._sent_max:
                return None
            group = self._full.popleft()
        elif self._open is not None and in_flight < self._partial_max:
            group, self._open = self._open, None
        else:
            return None
        self._sent.append(group)
        self._sent_bytes += group.size_bytes
        return group

    def put_back(self, group: Group[Ticket]) -> None:
        """Undo the last `take`: *group* could not be sent."""
        assert self._sent[-1] is group, "only the last one taken can be put back"
        self._sent.pop()
        self._sent_bytes -= group.size_bytes
        self._full.appendleft(group)

    def confirmed(self) -> Group[Ticket]:
        """Return the oldest group in flight: its entry is confirmed. Requires one."""
        group = self._sent.popleft()
        self._sent_bytes -= group.size_bytes
        self.pending_bytes -= group.size_bytes
        return group

    def fail(self) -> tuple[list[Group[Ticket]], list[Group[Ticket]]]:
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
        assert self.pending_bytes == sum(group.size_bytes for group in groups)
        assert self._sent_bytes == sum(group.size_bytes for group in self._sent)
        assert len(self._sent) <= self._sent_max
