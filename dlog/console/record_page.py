"""Reads records for a page: a bounded number, within a deadline."""

import asyncio
from typing import Final

from dlog.aio import Log
from dlog.aio.read.places import start_offset
from dlog.aio.store.manifests import ManifestNode
from dlog.names import check_name
from dlog.position import Record, Start
from dlog.starts import parse_start
from ledger.client import LedgerClient
from ledger.clock import now_ms
from ledger.errors import LogError

PAGE_RECORDS: Final = 50
READ_S: Final = 5.0
PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of values that one page takes in."""


class TakesTooLong(LogError):
    def __init__(self, what: str) -> None:
        super().__init__(f"{what} took longer than {READ_S:g} s; look at the bookies, try again")


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
