"""Reads the metadata of all ledgers, part by part: one part is in memory at a time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from ledger.errors import DamagedMetadata, NoSuchLedger
from ledger.ids import LedgerId
from ledger.log_events import get_logger
from ledger.manager import LedgerStore
from ledger.metadata import LedgerMetadata

READS_MAX: Final = 500
"""Ledgers of one part, all read at once."""

_log = get_logger(__name__)

Part = list[tuple[LedgerId, LedgerMetadata | None]]
"""Ledgers and their metadata; None where those cannot be read."""


async def parts_of(ledgers: LedgerStore, *, reads_max: int = READS_MAX) -> AsyncIterator[Part]:
    """Yield all ledgers that existed when this was called, in parts; the last one may be empty.

    Complete, or `MetadataUnavailable` is raised: never a silent part."""
    ids: list[LedgerId] = []
    async for ledger_id in ledgers.list():
        ids.append(ledger_id)
        if len(ids) == reads_max:
            yield await _read(ledgers, ids)
            ids = []
    yield await _read(ledgers, ids)


async def _read(ledgers: LedgerStore, ids: list[LedgerId]) -> Part:
    found = await asyncio.gather(*(_metadata(ledgers, ledger_id) for ledger_id in ids))
    return [
        (ledger_id, metadata)
        for ledger_id, (exists, metadata) in zip(ids, found, strict=True)
        if exists
    ]


async def _metadata(
    ledgers: LedgerStore, ledger_id: LedgerId
) -> tuple[bool, LedgerMetadata | None]:
    """Return whether the ledger exists, and its metadata unless they are damaged."""
    try:
        return True, (await ledgers.read(ledger_id))[0]
    except NoSuchLedger:
        return False, None
    except DamagedMetadata as error:
        _log.error("ledger_unreadable", ledger_id=ledger_id, reason=str(error))
        return True, None
