"""Ending a log for good: everything in it stays readable, nobody can append any more.

    1. read the manifest
    2. recover (fence and close) the ledgers of its open segments: who writes the log loses it
    3. compare-and-swap the manifest: their ends, and the mark that the log is sealed

If another writer took the log over between 1 and 3, the swap finds an open segment that was
not recovered, and all begins again. A crash before 3 leaves the log as a failed takeover
does: its writer has lost it, and the next one opens it.
"""

from collections.abc import Collection
from typing import Final

from dlog.errors import LostOwnership, TakeoverFailed
from dlog.manifest import Manifest, Sealed
from dlog.protocol.actions import RecoverSegment
from dlog.protocol.edits import check_incarnation, check_living, end_log
from dlog.protocol.manifest_steps import ManifestSteps
from ledger.backoff import Backoff
from ledger.errors import NoSuchLedger
from ledger.ids import LedgerId
from ledger.protocol.procedure import Steps, Wait

ATTEMPTS_MAX: Final = 8
BACKOFF_S: Final = 0.1
BACKOFF_S_MAX: Final = 1.0


def seal(
    node: ManifestSteps,
    *,
    incarnation: str | None = None,
    own: Collection[LedgerId] | None = None,
) -> Steps[Manifest]:
    """Seal the log; return its manifest. Sealing one that is sealed changes nothing.

    With *incarnation*, only that log; with *own*, only if its last ledger is one of these.
    Raises `NoSuchLog`, `LostOwnership`, `TakeoverFailed` if others took it over each time,
    and what recovery raises (then try again)."""
    backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            yield from Wait(backoff.next())
        manifest, _ = yield from node.read()
        incarnation = manifest.incarnation if incarnation is None else incarnation
        check_incarnation(manifest, node.log, incarnation)
        check_living(manifest, node.log)
        if manifest.sealed:
            return manifest
        if own is not None and (manifest.last is None or manifest.last.ledger_id not in own):
            raise LostOwnership(node.log)
        try:
            ends = yield from _ends(manifest)
        except NoSuchLedger:  # deleted or trimmed after the manifest was read
            continue
        manifest = yield from node.edit(end_log(node.log, incarnation=incarnation, ends=ends))
        if manifest.sealed:
            return manifest
    raise TakeoverFailed(node.log, ATTEMPTS_MAX)


def _ends(manifest: Manifest) -> Steps[dict[int, Sealed]]:
    """Return what the open segments hold, by number, for ever."""
    ends: dict[int, Sealed] = {}
    last_txid = manifest.sealed_last_txid
    for segment in manifest.segments:
        if segment.sealed is None:
            sealed = yield from RecoverSegment(segment.ledger_id, last_txid=last_txid)
            ends[segment.number] = sealed
            last_txid = sealed.last_txid
    return ends
