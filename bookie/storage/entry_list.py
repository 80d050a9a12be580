"""Lists which entries of a ledger are here, in the state of one moment, without reading any.

From memory and index pages only: 2 KiB of disk for 127 entries. What an index page names may be
damaged in its entry log; that is found by reading it. One call looks at `PAGES_MAX` pages and, in
each memtable, at `RUNS_MAX` runs at most, and says how far it came.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import merge
from hmac import compare_digest
from itertools import islice
from typing import Final

from bookie.errors import IndexDamaged
from bookie.index.format import PAGE_ENTRIES, LedgerHeader
from bookie.storage.holdings import StorageState
from bookie.storage.ledger_table import LedgerRecord
from bookie.storage.memtable import HeldRuns
from ledger.requests import HeldAnswer, HeldQuery, Status

PAGES_MAX: Final = 1024
"""2 MiB of index, 130,000 entries."""
RUNS_MAX: Final = 4096

_Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _View:
    """What memory says about a ledger, at one moment."""

    stored: LedgerHeader
    floor: int
    """Above it the disk has nothing that memory has not."""
    in_memory: Sequence[HeldRuns]


@dataclass(frozen=True, slots=True)
class _Listed:
    """What the disk has: *ranges* are all up to *listed*, and beyond *considered* a page is
    damaged."""

    ranges: Sequence[_Range]
    considered: int
    listed: int
    is_damaged: bool = False


def held(holdings: StorageState, query: HeldQuery) -> HeldAnswer:
    """Answer from memory and index; may block."""
    if query.first < 0 or query.last < query.first:
        return HeldAnswer(Status.BAD_REQUEST)
    action = partial(_view, holdings, query)
    view = holdings.with_record(query.ledger_id, action, Status.IO_ERROR)
    if view is Status.NO_SUCH_LEDGER:
        return _nothing(query)
    if isinstance(view, Status):
        return HeldAnswer(view, considered=query.first - 1, listed=query.first - 1)
    stored = _on_disk(holdings, view, query)
    if stored.is_damaged and holdings.is_gone(query.ledger_id):
        return _nothing(query)
    return _answer(query, view, stored)


def _view(holdings: StorageState, query: HeldQuery, record: LedgerRecord | None) -> _View | Status:
    if record is None:
        return Status.NO_SUCH_LEDGER
    if not compare_digest(record.key, query.key):
        return Status.WRONG_KEY
    memory = holdings.memory
    in_memory = memory.held(query.ledger_id, query.first, query.last, RUNS_MAX)
    return _View(record.stored, memory.floor(record.stored), in_memory)


def _nothing(query: HeldQuery) -> HeldAnswer:
    return HeldAnswer(Status.NO_SUCH_LEDGER, considered=query.last, listed=query.last)


def _on_disk(holdings: StorageState, view: _View, query: HeldQuery) -> _Listed:
    """Return what index pages name; takes no lock."""
    index = holdings.directory_of(query.ledger_id).index
    ranges: list[_Range] = []
    listed = query.first - 1
    end = min(query.last, view.floor, view.stored.last_entry)
    pages = view.stored.pages(query.first, end) if end >= query.first else iter(())
    for number in islice(pages, PAGES_MAX):
        first = max(query.first, number * PAGE_ENTRIES)
        last = min(query.last, (number + 1) * PAGE_ENTRIES - 1)
        try:
            named = index.held(view.stored, number)
        except IndexDamaged:
            return _Listed(ranges, first - 1, last, is_damaged=True)
        ranges += ((max(a, first), min(b, last)) for a, b in named if a <= last and b >= first)
        listed = last
        if len(ranges) > query.ranges_max:
            return _Listed(ranges, listed, listed)
    if next(pages, None) is not None:
        return _Listed(ranges, listed, listed)
    return _Listed(ranges, query.last, query.last)


def _answer(query: HeldQuery, view: _View, stored: _Listed) -> HeldAnswer:
    """Put together what memory and disk have said."""
    in_memory = min((part.considered for part in view.in_memory), default=query.last)
    listed = min(stored.listed, in_memory)
    considered = min(stored.considered, in_memory)
    parts = [_in_memory(part, query.first, listed) for part in view.in_memory]
    firsts: list[int] = []
    lasts: list[int] = []
    for first, last in _joined(merge(stored.ranges, *parts)):
        if first > listed:
            break
        if len(firsts) == query.ranges_max:
            listed = first - 1
            considered = min(considered, listed)
            break
        firsts.append(first)
        lasts.append(min(last, listed))
    status = Status.OK if considered >= query.first else Status.IO_ERROR
    return HeldAnswer(status, firsts, lasts, considered=considered, listed=listed)


def _in_memory(part: HeldRuns, first: int, last: int) -> Iterator[_Range]:
    """Yield the ranges of *part* in first..last, ascending; two of them may touch."""
    late = sorted(entry_id for entry_id in part.late if first <= entry_id <= last)
    runs = (_of_run(run.entries, first, last) for run in part.runs)
    in_runs = (each for ranges in runs for each in ranges)
    return merge(in_runs, ((entry_id, entry_id) for entry_id in late))


def _of_run(entries: Sequence[int], first: int, last: int) -> Iterator[_Range]:
    begin, end = bisect_left(entries, first), bisect_right(entries, last)
    if begin < end and entries[end - 1] - entries[begin] == end - 1 - begin:
        yield entries[begin], entries[end - 1]
    else:
        yield from _joined((entries[at], entries[at]) for at in range(begin, end))


def _joined(ranges: Iterable[_Range]) -> Iterator[_Range]:
    """Yield ascending *ranges*, those as one that touch or overlap."""
    current: _Range | None = None
    for first, last in ranges:
        if current is None:
            current = first, last
        elif first <= current[1] + 1:
            current = current[0], max(current[1], last)
        else:
            yield current
            current = first, last
    if current is not None:
        yield current
