"""The end of what was acknowledged when somebody asked, found without disturbing the writer.

The last add confirmed, as bookies report it, may lag behind the acknowledgements: a writer's
next entry carries it, or its next idle moment. So it is a lower bound, and a read that ends
there right after an acknowledgement may miss that very record. The strongest *upper* bound
that a reader can have without fencing is what bookies hold: what was acknowledged is on an
ack quorum, so the highest entry that a covering set of bookies holds is not below it
(`LedgerReader.read_last_stored`). A barrier finds that bound and then waits until the bound
itself is confirmed, which takes a living writer about a round trip.

What it promises: every record acknowledged before the call began has an offset below the
returned one, and every record below that is committed and can be read. What it cannot: if the
writer died after its last acknowledgement and before it reported the last add confirmed, nobody
can know, without taking the log over, whether the last entries were acknowledged. Then the
barrier is `BarrierNotReached`; it is reached as soon as somebody opens the log.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dlog.aio.port import Ledgers, LedgerTail
from dlog.aio.read.segments import first_offset_of, header_of, opened
from dlog.aio.read.tails import tail_of
from dlog.aio.store.manifests import ManifestNode
from dlog.errors import BarrierNotReached, NoSuchLog
from dlog.manifest import Manifest, Segment
from dlog.position import DLSN
from ledger.errors import LogError, NoSuchLedger
from ledger.ids import NO_ENTRY, EntryId, LedgerId
from ledger.log_events import get_logger

BARRIER_S: Final = 10.0
"""How long a barrier waits for a record that bookies hold to be confirmed."""
END_GRACE_S: Final = 2.0
"""The same for reads up to "end", which then go on without it."""
RETRY_S: Final = 0.05

Learned = Callable[[LedgerId, EntryId], None]

_log = get_logger(__name__)


async def acknowledged_end(
    ledgers: Ledgers,
    node: ManifestNode,
    *,
    timeout_s: float = BARRIER_S,
    incarnation: str | None = None,
    learned: Learned | None = None,
) -> int:
    """Return the offset after all that was acknowledged before the call; all is readable.

    With *incarnation*, of that life of the log only. *learned* is called with a ledger and its last
    entry that is confirmed: bookies may forget that, and a reader that knew less would wait.
    Tries again after errors that may pass. Raises `NoSuchLog`, `BarrierNotReached`, and after
    *timeout_s* what bookies and metadata store raise."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    was_gone = False
    while True:
        try:
            return await _try(ledgers, node, incarnation, deadline, timeout_s, learned)
        except BarrierNotReached:
            raise
        except LogError as error:
            # A ledger that is gone was trimmed or dropped after the manifest was read: who reads
            # it again knows which, and is let do so once, however late it is.
            is_gone = isinstance(error, NoSuchLedger)
            is_late = loop.time() + RETRY_S >= deadline
            if not (error.retryable or is_gone):
                raise
            if is_late and (was_gone or not is_gone):
                raise
            was_gone = is_gone
            await asyncio.sleep(RETRY_S)


async def end_now(ledgers: Ledgers, node: ManifestNode) -> int:
    """Return `acknowledged_end` or, if nobody reports it soon, the end of what is confirmed."""
    with suppress(BarrierNotReached):
        return await acknowledged_end(ledgers, node, timeout_s=END_GRACE_S)
    _log.warning("end_is_not_certain", log=node.log, waited_s=END_GRACE_S)
    return (await tail_of(ledgers, node.log)).next_offset


async def _try(
    ledgers: Ledgers,
    node: ManifestNode,
    incarnation: str | None,
    deadline: float,
    timeout_s: float,
    learned: Learned | None,
) -> int:
    manifest, _ = await node.read()
    if manifest.dropped:
        raise NoSuchLog(node.log, "it is being deleted")
    if incarnation not in {None, manifest.incarnation}:
        raise NoSuchLog(node.log, "it was deleted, and another one has its name")
    end = max(manifest.sealed_end, manifest.trim_offset)
    for segment in reversed(manifest.segments):
        if segment.sealed is not None:
            break
        async with opened(ledgers, segment.ledger_id) as reader:
            bound = await reader.read_last_stored()
            if bound == NO_ENTRY:
                continue  # nothing was ever acknowledged here
            place = DLSN(segment.number, bound, 0)
            if not await until_confirmed(reader, bound, deadline):
                raise BarrierNotReached(node.log, place, timeout_s)
            if learned is not None:
                learned(segment.ledger_id, reader.last_add_confirmed)
            return max(end, await _end_of(ledgers, manifest, segment, reader, bound))
    return end


async def until_confirmed(reader: LedgerTail, bound: int, deadline: float) -> bool:
    """Wait until the entry *bound* is confirmed, or certain never to be; False: not in time."""
    loop = asyncio.get_running_loop()
    while reader.last_add_confirmed < bound and not reader.closed:
        wait_s = deadline - loop.time()
        if wait_s <= 0:
            return await reader.read_last_add_confirmed() >= bound or reader.closed
        await reader.read_some(bound, last=bound, bytes_max=1, wait_s=wait_s)
    return True


async def _end_of(
    ledgers: Ledgers, manifest: Manifest, segment: Segment, reader: LedgerTail, bound: int
) -> int:
    last = bound if reader.last_entry is None else min(bound, reader.last_entry)
    records = 0 if last == NO_ENTRY else (await header_of(reader, last)).end_index
    return await first_offset_of(ledgers, manifest, segment) + records
