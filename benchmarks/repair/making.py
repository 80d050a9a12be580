"""Makes very many small ledgers quickly: metadata of closed ones, and their entries on bookies.

As writers would leave them, without the calls that a writer makes for each.
"""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

from benchmarks.repair.bench import Running
from benchmarks.runs import runs_of
from ledger.entry import access_key
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.log_events import now_ms
from ledger.metadata import SECRET_BYTES, Fragment, LedgerMetadata, LedgerState
from ledger.quorum import Quorum
from ledger.requests import AddRun, Status
from ledger.transport.sockets import SocketTransport

ENTRIES: Final = 2
ENTRY_BYTES: Final = 100
_STREAMS: Final = 8
_AT_ONCE: Final = 16
"""Ledgers under way on each stream."""
_BUSY_S: Final = 0.02
_PATIENCE_S: Final = 60.0


class NotStored(Exception):
    """A bookie answered an add with something else than yes or "later"."""


async def make_ledgers(
    on: Running, ensembles: Sequence[tuple[BookieId, ...]], *, absent: frozenset[BookieId]
) -> list[LedgerId]:
    """Make a closed ledger on each of *ensembles*; nothing is sent to bookies that are *absent*."""
    made: list[LedgerId] = []
    waiting = iter(ensembles)

    async def work(transport: SocketTransport) -> None:
        made.extend([await _make(on, transport, each, absent) for each in waiting])

    # Several: on one stream a bookie asks the metadata store for one new ledger after the other.
    transports = [
        SocketTransport(
            on.client.bookies.address, timeout_s=_PATIENCE_S, meant=on.client.bookies.identity
        )
        for _ in range(_STREAMS)
    ]
    try:
        await asyncio.gather(*(work(each) for each in transports * _AT_ONCE))
    finally:
        await asyncio.gather(*(transport.close() for transport in transports))
    return made


async def _make(
    on: Running,
    transport: SocketTransport,
    ensemble: tuple[BookieId, ...],
    absent: frozenset[BookieId],
) -> LedgerId:
    secret = secrets.token_bytes(SECRET_BYTES)
    metadata = LedgerMetadata(
        quorum=Quorum(3, 3, 2),
        fragments=(Fragment(EntryId(0), ensemble),),
        state=LedgerState.CLOSED,
        last_entry=EntryId(ENTRIES - 1),
        length=ENTRIES * ENTRY_BYTES,
        access_key=access_key(secret),
        secret=secret,
        creation_token=secrets.token_bytes(16),
        created_ms=now_ms(),
    )
    ledger_id = await on.client.ledgers.create(metadata)
    [run] = runs_of(ledger_id, ENTRY_BYTES, ENTRIES, run_bytes=1 << 20, key=metadata.access_key)
    await asyncio.gather(*(_add(transport, each, run) for each in ensemble if each not in absent))
    return ledger_id


async def _add(transport: SocketTransport, bookie: BookieId, run: AddRun) -> None:
    loop = asyncio.get_running_loop()
    while True:
        answered: asyncio.Future[Status] = loop.create_future()
        transport.add(bookie, run, answered.set_result)
        status = await answered
        if status is Status.OK:
            return
        if status is not Status.TOO_MANY_REQUESTS:
            raise NotStored(status.name)
        await asyncio.sleep(_BUSY_S)
