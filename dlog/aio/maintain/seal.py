"""Ending a log for good: everything in it stays readable, nobody can append any more.

    1. read the manifest
    2. recover (fence and close) the ledgers of its open segments: whoever writes the log loses it
    3. compare-and-swap the manifest: their ends, and the mark that the log is sealed

If another writer took the log over between 1 and 3, the swap finds an open segment that was
not recovered, and all begins again. A crash before 3 leaves the log as a failed takeover
does: its writer has lost it, and the next one opens it.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from dlog.aio.port import Ledgers
from dlog.aio.read.segments import seal_of
from dlog.aio.store.manifests import ManifestNode
from dlog.errors import LostOwnership, TakeoverFailed
from dlog.manifest import Manifest, Sealed
from dlog.protocol.edits import check_incarnation, check_living, end_log
from ledger.errors import NoSuchLedger
from ledger.ids import LedgerId

ATTEMPTS_MAX: Final = 8
BACKOFF_S: Final = 0.05
BACKOFF_S_MAX: Final = 1.0


async def seal(
    ledgers: Ledgers,
    node: ManifestNode,
    *,
    now_ms: Callable[[], int],
    incarnation: str | None = None,
    own: Collection[LedgerId] | None = None,
) -> Manifest:
    """Seal the log; return its manifest. Sealing one that is sealed changes nothing.

    With *incarnation*, only that log; with *own*, only if its last ledger is one of these.
    Raises `NoSuchLog`, `LostOwnership`, `TakeoverFailed` if others took it over each time,
    and what recovery raises (then try again)."""
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            await asyncio.sleep(min(BACKOFF_S * 2**attempt, BACKOFF_S_MAX))
        manifest, _ = await node.read()
        incarnation = incarnation or manifest.incarnation
        check_incarnation(manifest, node.log, incarnation)
        check_living(manifest, node.log)
        if manifest.sealed:
            return manifest
        if own is not None and (manifest.last is None or manifest.last.ledger_id not in own):
            raise LostOwnership(node.log)
        try:
            ends = await _ends(ledgers, node, manifest, now_ms)
        except NoSuchLedger:  # deleted or trimmed after the manifest was read
            continue
        manifest = await node.edit(end_log(node.log, incarnation=incarnation, ends=ends))
        if manifest.sealed:
            return manifest
    raise TakeoverFailed(node.log, ATTEMPTS_MAX)


async def _ends(
    ledgers: Ledgers, node: ManifestNode, manifest: Manifest, now_ms: Callable[[], int]
) -> dict[int, Sealed]:
    """Return what the open segments hold, by number, for ever."""
    ends: dict[int, Sealed] = {}
    last_txid = manifest.sealed_last_txid
    for segment in manifest.segments:
        if segment.sealed is None:
            ends[segment.number] = await seal_of(
                ledgers, node.log, segment.ledger_id, last_txid=last_txid, created_ms=now_ms()
            )
            last_txid = ends[segment.number].last_txid
    return ends
