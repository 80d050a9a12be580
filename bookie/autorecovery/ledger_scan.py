"""Reads the metadata of all ledgers, part by part: one part is in memory at a time."""

from collections.abc import AsyncIterator
from typing import Final

from ledger.concurrently import for_each
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
    found: dict[LedgerId, LedgerMetadata | None] = {}

    async def read(ledger_id: LedgerId) -> None:
        exists, metadata = await _metadata(ledgers, ledger_id)
        if exists:
            found[ledger_id] = metadata

    await for_each(ids, read, at_once=READS_MAX)
    missing = [ledger_id for ledger_id in ids if ledger_id not in found]
    found |= dict.fromkeys(await ledgers.hidden(missing))
    return [(ledger_id, found[ledger_id]) for ledger_id in ids if ledger_id in found]


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
