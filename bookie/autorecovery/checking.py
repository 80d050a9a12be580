"""The check of all ledgers: asks every bookie what it holds, and marks what lacks entries.

It finds what no bookie's loss shows: entries that were in flight to a bookie when it died, or was
away for a moment. No entry is read for it. Bookies that are away, or do not say, lack nothing.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from bookie.autorecovery.looking import look
from bookie.autorecovery.mark import Lack, Reason
from bookie.autorecovery.marks import CheckRecord, Marks
from bookie.autorecovery.surveying import parts_of
from ledger.client import LedgerClient
from ledger.clock import now_ms
from ledger.environment import Environment, repair_credentials
from ledger.ids import BookieId, LedgerId
from ledger.metadata import LedgerMetadata

LEDGERS_MAX: Final = 8
"""Checked at a time."""


@dataclass(slots=True)
class Check:
    """What a check came to."""

    ledgers: int = 0
    lacking: int = 0
    """Ledgers of which a bookie that is there lacks entries; they are marked."""
    unsure: int = 0
    """Ledgers of which a bookie is away, or did not say all."""
    unreadable: int = 0
    """Ledgers whose metadata cannot be read."""


async def check_all(
    client: LedgerClient, *, on_progress: Callable[[Check], None] = lambda _: None
) -> Check:
    """Check all ledgers, and mark what lacks entries; return what was found.

    Raises `MetadataUnavailable`; what was marked until then stays so."""
    check, marks = Check(), Marks(client.store)

    async def judge(ledger_id: LedgerId, metadata: LedgerMetadata | None) -> None:
        check.ledgers += 1
        if metadata is None:
            check.unreadable += 1
            return
        lacking, unsure = await lacks_of(client.environment, ledger_id, metadata)
        check.unsure += unsure
        if lacking:
            check.lacking += 1
            since_ms = now_ms()
            await marks.add(
                ledger_id, [Lack(bookie, Reason.MISSING, since_ms) for bookie in lacking]
            )

    async def work(waiting: Iterator[tuple[LedgerId, LedgerMetadata | None]]) -> None:
        for ledger_id, metadata in waiting:
            await judge(ledger_id, metadata)

    async for part in parts_of(client.ledgers):
        before = check.lacking
        waiting = iter(part)
        tasks = [asyncio.ensure_future(work(waiting)) for _ in range(LEDGERS_MAX)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        if check.lacking > before:
            await marks.ring()
        on_progress(check)
    return check


async def lacks_of(
    environment: Environment, ledger_id: LedgerId, metadata: LedgerMetadata
) -> tuple[tuple[BookieId, ...], bool]:
    """Return which members said that they lack entries of the ledger, and whether some said
    nothing of some. Only of what is settled."""
    registered = {found.bookie for found in environment.bookies.available()}
    credentials = repair_credentials(ledger_id, metadata)
    lacking: dict[BookieId, None] = {}
    unsure = False
    for fragment in metadata.fragments:
        end = metadata.settled_end(fragment)
        if end is None or end < fragment.first_entry:
            continue
        for index, bookie in enumerate(fragment.bookies):
            if bookie not in registered:
                unsure = True
                continue
            share = await look(
                environment.transport,
                credentials,
                bookie,
                index,
                metadata.quorum,
                fragment.first_entry,
                end,
                thorough=False,
            )
            unsure |= bool(share.unsure)
            if share.missing:
                lacking[bookie] = None
    return tuple(sorted(lacking)), unsure


async def record(marks: Marks, check: Check, *, at_ms: int) -> None:
    """Write down how *check* ended: the next one is due a while after that, whoever makes it."""
    await marks.report_check(
        CheckRecord(
            at_ms=at_ms,
            ledgers=check.ledgers,
            lacking=check.lacking,
            unsure=check.unsure,
            unreadable=check.unreadable,
        )
    )
