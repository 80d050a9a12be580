"""Reads what was changed, and by whom."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from dlog.aio.log import Log
from dlog.changes.change import LOG, Change, joined
from dlog.errors import NoSuchLog
from dlog.position import Start, Timestamp

if TYPE_CHECKING:
    from ledger.client import LedgerClient

CHANGES_MAX: Final = 10_000
"""Of one answer; they are in memory at once."""


async def last_changes(
    client: "LedgerClient", *, since_ms: int | None = None, changes_max: int = CHANGES_MAX
) -> list[Change]:
    """Return the last changes, each once, in the order in which they began.

    With *since_ms*, those of which something was written down at that time or later. Raises what
    reading a log raises."""
    assert 1 <= changes_max <= CHANGES_MAX
    found: list[Change] = []
    async for each in _records(client, since_ms=since_ms, follow=False):
        found.append(each)
        if len(found) > 2 * changes_max:
            found = joined(found, changes_max=changes_max)
    return joined(found, changes_max=changes_max)


async def follow_changes(
    client: "LedgerClient", *, since_ms: int | None = None
) -> AsyncIterator[Change]:
    """Yield what is written down, as it happens: a change when it begins, and when it ends.

    Raises `NoSuchLog` if nothing was ever written down."""
    async for each in _records(client, since_ms=since_ms, follow=True):
        yield each


async def _records(
    client: "LedgerClient", *, since_ms: int | None, follow: bool
) -> AsyncIterator[Change]:
    start: Start = "start" if since_ms is None else Timestamp(since_ms)
    try:
        reader = await Log.tail(LOG, start=start, follow=follow, client=client)
    except NoSuchLog:
        if follow:
            raise
        return
    try:
        while batch := await reader.read_batch():
            for record in batch:
                if (change := Change.decode(bytes(record.value))) is not None:
                    yield change
    finally:
        await reader.close()
