"""What one micro-batch reads, how its records are spread over tasks, and how long it is held back
so that more come together. Pure.

Invariants:
    a position never moves back: what Spark has planned once is never planned again
    a position never moves past what is committed
    all tasks together read exactly what lies between start and end; where they are cut is a matter
    of speed alone, and follows what is known of the sizes of records at the time

The delay counts from when the source first saw that something waits, so no record waits longer
than that for its batch to begin, whatever came before. A query that starts again counts anew.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from dlog.protocol.table import Table, TableFile, times_overlap
from dlog.spark.errors import LogDeleted, LogReplaced, RecordsTrimmed, StreamBroken
from dlog.spark.offsets import StreamPosition, name_of


class StoredSizes(Protocol):
    """What `dlog.aio.read.tails.LogTail` knows of the sizes of records."""

    def stored_sizes(self) -> list[tuple[int, float]]:
        """Return ends of segments, with the average size of their records."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """What is known of a log now: committed records first_offset .. next_offset - 1."""

    incarnation: str
    first_offset: int
    next_offset: int
    record_bytes: float = 1.0
    """Average size of a record, an estimate; it serves the byte limit only."""
    committed: StoredSizes | None = field(default=None, compare=False, repr=False)
    """What it was made of, where sizes are known of each segment."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """Records first .. end - 1 of one incarnation of a log."""

    log: str
    incarnation: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """The table of a log as it was when a job was planned."""

    storage: str
    table: Table


@dataclass(frozen=True, slots=True)
class FileRange:
    """Rows first .. end - 1 of a file of a log's table: those offsets that it has of them."""

    log: str
    storage: str
    file: TableFile
    first: int
    end: int
    first_us: int | None = None
    last_us: int | None = None
    """Rows outside of these times may be left out."""


TASKS_MAX: Final = 10_000
"""Of one batch, whatever its bytes: each costs Spark about 30 ms."""
ROW_BYTES: Final = 32
"""What a row costs beside key and value, as bytes: so that small records count, too."""
FILE_PIECE_BYTES: Final = 8 << 20
"""Files of tables are cut into pieces of so many bytes at least: each opens the file again."""
OnLoss = Callable[[StreamBroken], None]
"""Is told what is lost, and raises it unless the stream is to go on."""


def fail(loss: StreamBroken) -> None:
    """Be an `OnLoss` that accepts no loss."""
    raise loss


def advance(
    start: Mapping[str, StreamPosition],
    tails: Mapping[str, LogEnd],
    *,
    records_max: int | None = None,
    bytes_max: int | None = None,
    wanted: Callable[[str], bool] = lambda _: False,
    on_loss: OnLoss = fail,
) -> dict[str, StreamPosition]:
    """Return where the next batch ends: as far as the tails and the limits allow.

    A limit is shared by filling the smallest backlogs first, so a log far behind does not
    starve the others; each log with a backlog advances by one record at least, so the limit
    may be passed by as many records as there are logs. A log that has no position yet gets
    its first one, and is read from the next batch on: so every range has both its ends in
    (start, end). A log that was renamed is read under the name that it had first; another one
    that has this name by now has a key of its own (`dlog.spark.offsets`).

    A log without a tail keeps its position, unless it is *wanted*: then it was deleted. Where
    *on_loss* lets the stream go on, such a log is forgotten, one that was made again begins
    with its first record in the next batch, and what was trimmed counts for no limit.
    """
    end = dict(start)
    read = {position.incarnation for position in start.values()}
    # A log that was renamed, and deleted then: what has its name is read under a key of its own.
    tails = {
        log: tail
        for log, tail in tails.items()
        if log not in start
        or tail.incarnation == start[log].incarnation
        or tail.incarnation not in read
    }
    for log in start:
        if log not in tails and wanted(name_of(log)):
            on_loss(LogDeleted(name_of(log), start[log].next_offset))
            del end[log]
    backlogs: dict[str, int] = {}
    for log in sorted(tails):
        tail = tails[log]
        if log not in start:
            if tail.incarnation not in read:
                end[log] = StreamPosition(tail.incarnation, tail.first_offset)
            continue
        end[log] = continued(log, start[log], tail, on_loss=on_loss)
        if end[log].incarnation == start[log].incarnation:
            backlogs[log] = max(0, tail.next_offset - end[log].next_offset)
    costs = {log: max(1.0, tails[log].record_bytes) for log in backlogs}
    for budget, cost in ((records_max, dict.fromkeys(backlogs, 1.0)), (bytes_max, costs)):
        if budget is not None:
            backlogs = _share(backlogs, cost, budget)
    for log, count in backlogs.items():
        end[log] = replace(end[log], next_offset=end[log].next_offset + count)
    return end


def waiting(start: Mapping[str, StreamPosition], tails: Mapping[str, LogEnd]) -> int:
    """Return how many records can be read that lie after *start*."""
    return sum(
        max(0, tails[log].next_offset - max(position.next_offset, tails[log].first_offset))
        for log, position in start.items()
        if log in tails and tails[log].incarnation == position.incarnation
    )


def is_current(start: Mapping[str, StreamPosition], tails: Mapping[str, LogEnd]) -> bool:
    """Return whether every log is the one that it was, and each has a position."""
    read = {position.incarnation for position in start.values()}
    return all(tail.incarnation in read for tail in tails.values())


def continued(
    log: str, position: StreamPosition, tail: LogEnd, *, on_loss: OnLoss = fail
) -> StreamPosition:
    """Return where reading goes on that has got to *position*; tell *on_loss* what it skips."""
    if position.incarnation != tail.incarnation:
        on_loss(
            LogReplaced(
                name_of(log),
                position.incarnation,
                tail.incarnation,
                next_offset=position.next_offset,
            )
        )
        return StreamPosition(tail.incarnation, tail.first_offset)
    if position.next_offset < tail.first_offset:
        on_loss(RecordsTrimmed(name_of(log), position.next_offset, tail.first_offset))
        return replace(position, next_offset=tail.first_offset)
    return position


def plan_partitions(
    start: Mapping[str, StreamPosition],
    end: Mapping[str, StreamPosition],
    *,
    partitions_max: int,
    task_records_min: int,
    partitions_min: int = 1,
    task_bytes_max: int | None = None,
    tasks_max: int = TASKS_MAX,
    tails: Mapping[str, LogEnd] | None = None,
) -> list[tuple[LogRange, ...]]:
    """Cut the records between *start* and *end* into tasks of equal numbers of bytes.

    *partitions_max* bounds what *task_records_min* asks for; *task_bytes_max* is kept in any case,
    up to *tasks_max* tasks. What *tails* do not know the sizes of counts by records alone.
    Tasks follow the logs in the order of their names, and each log in the order of its
    offsets; a task of many small logs has many ranges. Nothing is read of a log that was
    made again in between: its position moved from one to the other, see `advance`.
    """
    ranges = [
        LogRange(name_of(log), end[log].incarnation, start[log].next_offset, end[log].next_offset)
        for log in sorted(end)
        if log in start
        and start[log].incarnation == end[log].incarnation
        and start[log].next_offset < end[log].next_offset
    ]
    total = sum(piece.end - piece.first for piece in ranges)
    if total == 0:
        return []
    by_incarnation = {tail.incarnation: tail for tail in (tails or {}).values()}
    runs = [run for piece in ranges for run in _runs(piece, by_incarnation.get(piece.incarnation))]
    count = max(partitions_min, min(partitions_max, total // task_records_min))
    if task_bytes_max is not None:
        size = sum(records * (cost + ROW_BYTES) for records, cost in runs)
        count = max(count, -(-size // task_bytes_max))
    return _cut(ranges, _cuts(runs, min(count, tasks_max, total)))


def with_history(
    tails: Mapping[str, LogEnd], tables: Mapping[str, TableSnapshot]
) -> dict[str, LogEnd]:
    """Return *tails* of logs that begin where their tables do, if these join the log."""
    longer = dict(tails)
    for log, snapshot in tables.items():
        table, tail = snapshot.table, tails[log]
        if table.first < tail.first_offset <= table.end:
            longer[log] = replace(tail, first_offset=table.first)
    return longer


def split_at_tables(
    start: Mapping[str, StreamPosition],
    end: Mapping[str, StreamPosition],
    tables: Mapping[str, TableSnapshot],
    *,
    first_us: int | None = None,
    last_us: int | None = None,
) -> tuple[list[FileRange], dict[str, StreamPosition]]:
    """Return what is read of tables, and where logs are read from: where their tables end.

    Files without a row between the times *first_us* and *last_us* are left out."""
    files: list[FileRange] = []
    rest = dict(start)
    for log, snapshot in sorted(tables.items()):
        table = snapshot.table
        if log not in start or not table.first <= start[log].next_offset < table.end:
            continue
        first, stop = start[log].next_offset, min(end[log].next_offset, table.end)
        files += (
            FileRange(name_of(log), snapshot.storage, file, first, stop, first_us, last_us)
            for file in table.files
            if file.first < stop and file.last >= first
            if times_overlap(file.first_us, file.last_us, first_us, last_us)
        )
        rest[log] = replace(start[log], next_offset=max(first, stop))
    return files, rest


def cut_files(
    files: Sequence[FileRange], *, partitions_max: int, task_bytes_max: int
) -> list[tuple[FileRange, ...]]:
    """Return tasks that read *files*, in pieces of about equal bytes."""
    total = sum(each.file.bytes for each in files)
    share = min(task_bytes_max, max(FILE_PIECE_BYTES, -(-total // partitions_max)))
    tasks: list[tuple[FileRange, ...]] = []
    task: list[FileRange] = []
    size = 0
    for whole in files:
        first, end = max(whole.first, whole.file.first), min(whole.end, whole.file.last + 1)
        count = max(1, min(round(whole.file.bytes / share), end - first))
        for number in range(count):
            cuts = [first + (end - first) * at // count for at in (number, number + 1)]
            piece = replace(whole, first=cuts[0], end=cuts[1])
            if task and size + whole.file.bytes // count > share:
                tasks.append(tuple(task))
                task, size = [], 0
            task.append(piece)
            size += whole.file.bytes // count
    return [*tasks, tuple(task)] if task else tasks


def _runs(piece: LogRange, tail: LogEnd | None) -> list[tuple[int, int]]:
    """Return how many records of which size, in order, *piece* has."""
    if tail is None:
        return [(piece.end - piece.first, 0)]
    if tail.committed is None:
        return [(piece.end - piece.first, round(tail.record_bytes))]
    runs: list[tuple[int, int]] = []
    first, sizes = piece.first, tail.committed.stored_sizes()
    for end, size in sizes[bisect_right(sizes, (first, math.inf)) :]:
        if first >= piece.end:
            break
        runs.append((min(end, piece.end) - first, round(size)))
        first = min(end, piece.end)
    if first < piece.end:
        runs.append((piece.end - first, round(tail.record_bytes)))
    return runs


def _cuts(runs: list[tuple[int, int]], count: int) -> list[int]:
    """Return after how many records each of *count* tasks ends: equal in bytes, none is empty.

    Of each task all but the last record fit into its share, which therefore may be passed by one.
    Requires as many records."""
    records = [0, *itertools.accumulate(number for number, _ in runs)]
    sizes = [0, *itertools.accumulate(number * (cost + ROW_BYTES) for number, cost in runs)]
    cuts: list[int] = []
    for number in range(1, count):
        share = sizes[-1] * number // count
        run = min(bisect_right(sizes, share), len(runs)) - 1
        cut = records[run] + (share - sizes[run]) // (runs[run][1] + ROW_BYTES)
        cuts.append(min(max(cut, cuts[-1] + 1 if cuts else 1), records[-1] - (count - number)))
    return [*cuts, records[-1]]


def _share(backlogs: Mapping[str, int], costs: Mapping[str, float], budget: int) -> dict[str, int]:
    """Water-filling: return how many records of each backlog the budget pays for."""
    shares: dict[str, int] = {}
    waiting = sorted(
        (log for log in backlogs if backlogs[log]),
        key=lambda log: (backlogs[log] * costs[log], log),
    )
    left = float(budget)
    for number, log in enumerate(waiting):
        fair = left / (len(waiting) - number)
        shares[log] = min(backlogs[log], max(1, int(fair / costs[log])))
        left = max(0.0, left - shares[log] * costs[log])
    return shares


def _cut(ranges: list[LogRange], cuts: list[int]) -> list[tuple[LogRange, ...]]:
    """Cut the concatenation of *ranges* after cuts[0], cuts[1], ... records."""
    tasks: list[tuple[LogRange, ...]] = []
    task: list[LogRange] = []
    seen = 0
    for whole in ranges:
        rest = whole
        while rest.first < rest.end:
            room = cuts[len(tasks)] - seen
            piece = replace(rest, end=min(rest.end, rest.first + room))
            task.append(piece)
            seen += piece.end - piece.first
            rest = replace(rest, first=piece.end)
            if seen == cuts[len(tasks)]:
                tasks.append(tuple(task))
                task = []
    return tasks


@dataclass(slots=True)
class TriggerDelay:
    """Used by one stream."""

    records_min: int
    delay_s: float
    _waiting_since: float | None = None

    def enough(self, waiting: int) -> bool:
        """Return whether *waiting* records need not wait for others."""
        return waiting >= self.records_min

    def left_s(self, now: float) -> float:
        """Return how long what waits may still be held back."""
        if self._waiting_since is None:
            return self.delay_s
        return max(0.0, self._waiting_since + self.delay_s - now)

    def holds(self, waiting: int, now: float) -> bool:
        """Return whether the batch is held back; else it begins now, and the next one anew."""
        if waiting > 0 and self._waiting_since is None:
            self._waiting_since = now
        if waiting == 0 or self.enough(waiting) or self.left_s(now) == 0.0:
            self._waiting_since = None
            return False
        return True
