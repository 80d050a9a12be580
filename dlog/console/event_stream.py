"""Server-sent events: pages that stay new, logs that are followed, searches and checks.

Every stream ends when its browser goes, when it takes nothing for a while, and when the console
stops. So many run at once; one more is told that the console is full. Records are read for a page a
bounded number at a time, within a deadline.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response, StreamingResponse

from dlog.aio import Log, Reader
from dlog.aio.read.places import start_offset
from dlog.aio.store import ManifestNode
from dlog.console.poller import Gatherer
from dlog.console.views.records import matches
from dlog.health.findings import are
from dlog.names import check_name
from dlog.position import Record, Start
from dlog.starts import parse_start
from ledger.client import LedgerClient
from ledger.entry import Header, judge_replicas
from ledger.errors import LogError
from ledger.ids import BookieId, LedgerId
from ledger.log_events import now_ms
from ledger.metadata import LedgerMetadata
from ledger.quorum import write_set
from ledger.requests import Status
from ledger.values import counted

PAGE_RECORDS: Final = 50
READ_S: Final = 5.0
PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of values that one page takes in."""
STREAMS_MAX: Final = 32
LIVE_S: Final = 2.0
"""A page is made again after so long, whether or not there is news: it says how old it is."""
TAIL_WAIT_S: Final = 2.5
TAIL_PAUSE_S: Final = 0.25
TAIL_ROWS_MAX: Final = 100
"""In one message; of more that came meanwhile the oldest are skipped."""
TAIL_BEHIND_MAX: Final = 2_000
SEARCH_RECORDS_MAX: Final = 1_000_000
SEARCH_S_MAX: Final = 120.0
FOUND_MAX: Final = 200
TEXT_MAX: Final = 200
PROGRESS_S: Final = 0.3
VERIFIES_MAX: Final = 2
"""Checks of ledgers at once."""
VERIFY_ENTRIES_MAX: Final = 10_000_000
VERIFY_STEP: Final = 64
"""Entries that are read of one fragment at a time."""
FAULTS_MAX: Final = 100
Shown = Callable[[Sequence[Record]], str]
"""Returns the rows of records, as markup."""


class TakesTooLong(LogError):
    def __init__(self, what: str) -> None:
        super().__init__(f"{what} took longer than {READ_S:g} s; check the bookies, then try again")


def position_of(text: str, name: str = "at") -> Start:
    """Return the place that *text* names. Raises `InvalidValue`."""
    return parse_start(text[:100] or "start", name, now_ms)


async def offset_of(client: LedgerClient, log: str, at: Start) -> int:
    """Raises `InvalidName`, `NoSuchLog`, `TakesTooLong`, and what reading raises."""
    try:
        async with asyncio.timeout(READ_S):
            return await start_offset(client, ManifestNode(client.store, check_name(log)), at)
    except TimeoutError:
        raise TakesTooLong(f"finding {at} in log {log!r}") from None


async def read_records(client: LedgerClient, log: str, first: int, count: int) -> list[Record]:
    """Return up to *count* records from offset *first* on, as many as there are. Raises as
    `offset_of`, and `Trimmed`."""
    found: list[Record] = []
    size_bytes = 0
    try:
        async with asyncio.timeout(READ_S):
            reader = await Log.tail(
                log, start=first, stop=first + count, follow=False, client=client
            )
            try:
                async for record in reader:
                    found.append(record)
                    size_bytes += len(record.value)
                    if len(found) >= count or size_bytes > PAGE_BYTES_MAX:
                        break
            finally:
                await reader.close()
    except TimeoutError:
        if not found:
            raise TakesTooLong(f"reading log {log!r}") from None
    return found


def message(event: str, data: str, id_: object = None) -> str:
    lines = "".join(f"data: {line}\n" for line in data.splitlines()) or "data:\n"
    return f"event: {event}\n{lines}" + (f"id: {id_}\n" if id_ is not None else "") + "\n"


class Streams:
    """Counts them."""

    def __init__(self, at_most: int = STREAMS_MAX) -> None:
        self._at_most = at_most
        self.running = 0

    def response(self, messages: AsyncIterator[str]) -> Response:
        return StreamingResponse(self._bounded(messages), media_type="text/event-stream")

    async def _bounded(self, messages: AsyncIterator[str]) -> AsyncIterator[str]:
        if self.running >= self._at_most:
            yield message("full", "too many pages are open")
            return
        self.running += 1
        try:
            async for each in messages:
                yield each
        finally:
            self.running -= 1
            await messages.aclose()  # type: ignore[attr-defined]


async def live(gatherer: Gatherer, render: Callable[[], Awaitable[str]]) -> AsyncIterator[str]:
    """Yield the part of a page again whenever something new was seen and it looks otherwise."""
    seen, before = -1, ""
    while not gatherer.closing:
        seen = await gatherer.next_round(seen, timeout_s=LIVE_S)
        page = await render()
        yield message("page", page) if page != before else message("still", "")
        before = page


async def tail(gatherer: Gatherer, log: str, begin: Start, shown: Shown) -> AsyncIterator[str]:
    """Yield records as they come, the newest first in each message."""
    client = gatherer.client
    try:
        reader = await Log.tail(log, start=begin, client=client)
    except LogError as error:
        yield message("end", str(error))
        return
    try:
        yield message("said", "following")
        while not gatherer.closing:
            found = await _some(reader)
            if not found and reader.at_end:
                yield message("end", "the log is sealed: that was its last record")
                return
            if not found:
                yield message("still", "")
                continue
            kept = found[-TAIL_ROWS_MAX:]
            if len(found) > len(kept):
                yield message("said", f"skipped: {counted(len(found) - len(kept), 'record')}")
            yield message("rows", shown(kept[::-1]), found[-1].offset + 1)
            await asyncio.sleep(TAIL_PAUSE_S)
    except LogError as error:
        yield message("end", str(error))
    finally:
        await reader.close()


async def _some(reader: Reader) -> Sequence[Record]:
    """Wait a while for records; return those there are."""
    found = list(await reader.read_batch(timeout_s=TAIL_WAIT_S))
    while len(found) < TAIL_BEHIND_MAX and reader.is_ready and not reader.at_end:
        found.extend(await reader.read_batch(timeout_s=0.001))
    return found


async def search(
    gatherer: Gatherer, log: str, begin: Start, end: Start, text: str, shown: Shown
) -> AsyncIterator[str]:
    """Yield the records between two places that have *text* in key or value, and how far it is."""
    client, clock = gatherer.client, asyncio.get_running_loop().time
    wanted = text[:TEXT_MAX].encode("utf-8", "replace")
    try:
        last = await offset_of(client, log, "end")
        first = await offset_of(client, log, begin)
        stop = min(last, await offset_of(client, log, end), first + SEARCH_RECORDS_MAX)
        if stop <= first:
            yield message("end", "there is no record in that range")
            return
        reader = await Log.tail(log, start=first, stop=stop, follow=False, client=client)
    except LogError as error:
        yield message("end", str(error))
        return
    began = told_at = clock()
    at, count, found = first, 0, list[Record]()
    why = "that is the end of the range"
    try:
        async for chunk in reader.read_batches():
            found.extend(record for record in chunk if matches(record, wanted))
            at = chunk.end
            now = clock()
            if now - told_at >= PROGRESS_S:
                told_at = now
                if found:
                    yield message("rows", shown(found[: FOUND_MAX - count]))
                    count += len(found)
                    found.clear()
                share = 1000 * (at - first) // (stop - first)
                yield message("done", f"{at - first:,} of {stop - first:,}, {count} found", share)
                await asyncio.sleep(0)
            if count + len(found) >= FOUND_MAX:
                why = f"stopped at {FOUND_MAX} found"
                break
            if now - began > SEARCH_S_MAX or gatherer.closing:
                why = f"stopped after {SEARCH_S_MAX:g} s"
                break
    except LogError as error:
        why = str(error)
    finally:
        await reader.close()
    if found:
        yield message("rows", shown(found[: FOUND_MAX - count]))
        count = min(FOUND_MAX, count + len(found))
    yield message(
        "end", f"{count} found in {counted(at - first, 'record')} up to offset {at}: {why}"
    )


@dataclass(slots=True)
class _Verdict:
    copies: int = 0
    faults: int = 0


async def verify(
    gatherer: Gatherer, ledger_id: LedgerId, turns: asyncio.Semaphore, row: Callable[[str], str]
) -> AsyncIterator[str]:
    """Read each entry of a ledger from each bookie that should have it; yield what is wrong."""
    if turns.locked():
        yield message("end", f"{VERIFIES_MAX} other checks run; try again when they are done")
        return
    client, clock = gatherer.client, asyncio.get_running_loop().time
    verdict = _Verdict()
    async with turns:
        try:
            metadata = await client.describe(ledger_id)
            confirmed = metadata.last_entry
            if confirmed is None:
                reader = await client.open_no_recovery(ledger_id)
                try:
                    confirmed = await reader.read_last_add_confirmed()
                finally:
                    await reader.close()
            end = min(int(confirmed), VERIFY_ENTRIES_MAX - 1)
            at, told_at = 0, 0.0
            while at <= end and not gatherer.closing:
                fragment = metadata.fragment_of(at)
                fragment_end = metadata.fragment_end(fragment)
                last = min(end, at + VERIFY_STEP - 1, end if fragment_end is None else fragment_end)
                for fault in await _step(gatherer, ledger_id, metadata, at, last, verdict):
                    verdict.faults += 1
                    if verdict.faults <= FAULTS_MAX:
                        yield message("rows", row(fault))
                at = last + 1
                if clock() - told_at >= PROGRESS_S:
                    told_at = clock()
                    yield message(
                        "done", f"{at:,} of {counted(end + 1, 'entry')}", 1000 * at // (end + 1)
                    )
        except LogError as error:
            yield message("end", str(error))
            return
    if verdict.faults:
        words = f"{are(verdict.faults, 'copy')} missing, damaged or not to be had"
    else:
        words = "all copies are there and right"
    yield message("end", f"{counted(end + 1, 'entry')}, {counted(verdict.copies, 'copy')}: {words}")


async def _step(
    gatherer: Gatherer,
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    first: int,
    last: int,
    verdict: _Verdict,
) -> Sequence[str]:
    """Return what is wrong with the copies of entries *first* to *last*, of one fragment."""
    bookies = metadata.fragment_of(first).bookies
    given = await asyncio.gather(
        *(_copies(gatherer, ledger_id, metadata, bookie, first, last) for bookie in bookies)
    )
    faults = []
    for entry in range(first, last + 1):
        holders = [bookies[index] for index in write_set(entry, metadata.quorum)]
        found = {}
        for bookie, (headers, why) in zip(bookies, given, strict=True):
            if bookie not in holders:
                continue
            if entry in headers:
                found[bookie] = headers[entry]
                verdict.copies += 1
            else:
                faults.append(f"entry {entry} on {bookie}: {why.get(entry, 'missing')}")
        _, others = judge_replicas(entry, holders, found)
        faults.extend(f"entry {entry} on {bookie}: not what the others have" for bookie in others)
    return faults


async def _copies(
    gatherer: Gatherer,
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    bookie: BookieId,
    first: int,
    last: int,
) -> tuple[dict[int, Header], dict[int, str]]:
    """Return the headers of what *bookie* has, and why others are not among them."""
    headers: dict[int, Header] = {}
    why: dict[int, str] = {}
    at = first
    while at <= last:
        found = await gatherer.client.read_replica(ledger_id, bookie, at, last, metadata=metadata)
        if found.status is Status.NO_SUCH_LEDGER:
            break
        if found.status is not Status.OK:
            why.update({each: found.status.name.lower() for each in range(at, last + 1)})
            break
        headers.update(found.headers)
        after = found.considered + 1
        if found.damaged is not None:
            why[found.damaged] = "damaged"
            after = max(after, found.damaged + 1)
        if after <= at:
            break
        at = after
    return headers, why
