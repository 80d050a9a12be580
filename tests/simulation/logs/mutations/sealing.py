"""The end of a segment, as seen by somebody who did not fence it: for mutations."""

from dlog.aio.port import Ledgers
from dlog.aio.read.segments import header_of, opened, seal_of
from dlog.manifest import Sealed
from ledger.ids import NO_ENTRY, EntryId, LedgerId


async def seal_by_lac(
    ledgers: Ledgers, log: str, ledger_id: LedgerId, *, last_txid: int, created_ms: int
) -> Sealed:
    """As `seal_of`, without fencing: what is confirmed now is taken for the end."""
    async with opened(ledgers, ledger_id) as reader:
        if reader.closed:
            return await seal_of(
                ledgers, log, ledger_id, last_txid=last_txid, created_ms=created_ms
            )
        last = await reader.read_last_add_confirmed()
        if last == NO_ENTRY:
            return Sealed.empty(last_txid, created_ms)
        header = await header_of(reader, last)
    return Sealed(EntryId(last), header.end_index, 0, last_txid, header.last_txid, 0, 0)
