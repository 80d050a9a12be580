"""What Kafka's clients were told, beside what a native reader finds in the logs: one history?

A record is ``PREFIX.NUMBER``, of one producer's life. Each rule adds a sentence to `broken` at once
where that is possible, else at the end (`check`).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

CLOCK_S: Final = 0.05
"""By how much times of two clients may differ."""

Position = tuple[str, int]
"""Of a group, in a partition."""


@dataclass(slots=True)
class KafkaHistory:
    partitions: int
    logs: list[list[str]] = field(init=False)
    """Records of each partition, as a native reader finds them."""
    records: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    """Record at a partition and offset, and who said so first."""
    acknowledged: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Where each is; offset -1: that was not told, as it was a repetition."""
    committed: dict[Position, int] = field(default_factory=dict)
    """The highest offset whose commit was acknowledged."""
    broken: list[str] = field(default_factory=list)
    _found: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Where each record is in a log."""
    _last: dict[tuple[int, str], int] = field(default_factory=dict)
    """The last number of each prefix in each partition."""
    _assigned: dict[str, dict[int, int | None]] = field(default_factory=dict)
    """The offset that a consumer reads next, of each partition that it has; None: not known yet."""
    _read: dict[Position, set[int]] = field(default_factory=lambda: defaultdict(set))
    _reads: dict[Position, list[tuple[float, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """When a group was at which offset."""
    _whole: dict[Position, int] = field(default_factory=dict)
    _stored: list[tuple[float, str, int, int]] = field(default_factory=list)
    """When a gateway said that a group had committed an offset in a partition."""
    _newest: dict[Position, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.logs = [[] for _ in range(self.partitions)]

    # What is said.

    def sent(self, record: str, partition: int, offset: int) -> None:
        """A producer was told that *record* is at *offset*."""
        if record in self.acknowledged:
            self.broken.append(f"{record} was acknowledged twice")
        self.acknowledged[record] = partition, offset
        if offset >= 0:
            self._is_at(partition, offset, record, "its producer")

    def found(self, record: str, partition: int, offset: int) -> None:
        """A native reader got *record*, the next one."""
        log = self.logs[partition]
        if offset != len(log):
            self.broken.append(f"partition {partition}: the log has {offset} after {len(log) - 1}")
            return
        log.append(record)
        self._is_at(partition, offset, record, "the log")
        if (other := self._found.setdefault(record, (partition, offset))) != (partition, offset):
            self.broken.append(f"{record} is doubled: at {other} and {(partition, offset)}")
        prefix, _, number = record.rpartition(".")
        last = self._last.get((partition, prefix), -1)
        if int(number) <= last and other == (partition, offset):
            self.broken.append(
                f"{record} at {(partition, offset)} is out of order: {prefix}.{last} is before it"
            )
        self._last[partition, prefix] = max(last, int(number))

    def assigned(self, consumer: str, partitions: list[int]) -> None:
        self._assigned.setdefault(consumer, {}).update(dict.fromkeys(partitions))

    def revoked(self, consumer: str, partitions: list[int]) -> None:
        mine = self._assigned.get(consumer, {})
        for partition in partitions:
            mine.pop(partition, None)

    def read(
        self, group: str, consumer: str, partition: int, offset: int, record: str, at: float
    ) -> None:
        """A consumer got *record*."""
        self._is_at(partition, offset, record, consumer)
        mine = self._assigned.get(consumer, {})
        if partition in mine:
            due = mine[partition]
            floor = self.committed.get((group, partition), 0)
            if due is None and offset < floor:
                self.broken.append(
                    f"{consumer} begins partition {partition} at {offset}, although {group} has "
                    f"committed {floor}"
                )
            elif due is not None and offset != due:
                self.broken.append(
                    f"{consumer} got {offset} of partition {partition}, and {due} was next"
                )
            mine[partition] = offset + 1
        self._read[group, partition].add(offset)
        self._reads[group, partition].append((at, offset + 1))

    def commit(self, group: str, partition: int, offset: int) -> None:
        """A consumer was told that its commit is stored."""
        key = group, partition
        self.committed[key] = max(offset, self.committed.get(key, 0))

    def stored(
        self, group: str, partition: int, offset: int, since: Mapping[Position, int], at: float
    ) -> None:
        """A gateway says that *offset* is committed; *since*: `committed` before it was asked."""
        key = group, partition
        if offset < since.get(key, 0):
            self.broken.append(
                f"{group} has committed {offset} of partition {partition}, after {since[key]}"
            )
        newest = self._newest.get(key, 0)
        if offset < newest:
            self.broken.append(
                f"what {group} has committed of partition {partition} went from {newest} back to "
                f"{offset}"
            )
        self._newest[key] = max(newest, offset)
        self._stored.append((at, group, partition, offset))

    def _is_at(self, partition: int, offset: int, record: str, source: str) -> None:
        other, first = self.records.setdefault((partition, offset), (record, source))
        if other != record:
            self.broken.append(
                f"{record} is at {(partition, offset)}, says {source}; {other}, says {first}"
            )

    def next_of(self, group: str, partition: int) -> int:
        """Return the offset after the last record that *group* has read of those in a row."""
        read, end = self._read[group, partition], self._whole.get((group, partition), 0)
        while end in read:
            end += 1
        self._whole[group, partition] = end
        return end

    # The end.

    def check(self, groups: list[str]) -> list[str]:
        """Return the sentences of all promises that were broken; the logs were read to their ends,
        and so did *groups*."""
        broken = list(self.broken)
        for record, place in self.acknowledged.items():
            there = self._found.get(record)
            if there is None:
                broken.append(f"{record} was acknowledged at {place} and is lost")
            elif place[1] >= 0 and there != place:
                broken.append(f"{record} was acknowledged at {place} and is at {there}")
        for (partition, offset), (record, source) in self.records.items():
            if offset >= len(self.logs[partition]):
                broken.append(f"{source} had {record} at {(partition, offset)}: it is in no log")
        for group in groups:
            for partition, log in enumerate(self.logs):
                missed = sorted(set(range(len(log))) - self._read[group, partition])
                if missed:
                    broken.append(
                        f"{group} never got {len(missed)} records of partition {partition}, the "
                        f"first at {missed[0]}"
                    )
        return broken + self._beyond()

    def _beyond(self) -> list[str]:
        """Return where a group committed what none of its consumers had read."""
        ends: dict[Position, tuple[list[float], list[int]]] = {}
        for key, reads in self._reads.items():
            reads.sort()
            ends[key] = [at for at, _ in reads], list(accumulate((end for _, end in reads), max))
        broken = []
        for at, group, partition, offset in self._stored:
            times, highest = ends.get((group, partition), ([], []))
            index = bisect_right(times, at + CLOCK_S)
            read = highest[index - 1] if index else 0
            if offset > read:
                broken.append(
                    f"{group} committed {offset} of {partition} and had read up to {read}"
                )
        return broken
