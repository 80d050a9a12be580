"""Carries out `protocol.log_seal`: ends a log for good."""

from collections.abc import Callable, Collection
from typing import Any

from dlog.aio.port import Ledgers
from dlog.aio.procedures import on_ledgers
from dlog.aio.read.segments import seal_of
from dlog.aio.store.manifests import ManifestNode
from dlog.manifest import Manifest
from dlog.protocol import log_seal
from dlog.protocol.actions import RecoverSegment
from ledger.ids import LedgerId
from ledger.procedures import run
from ledger.protocol.procedure import Action


async def seal(
    ledgers: Ledgers,
    node: ManifestNode,
    *,
    now_ms: Callable[[], int],
    incarnation: str | None = None,
    own: Collection[LedgerId] | None = None,
) -> Manifest:
    """Seal the log; return its manifest. Raises what `protocol.log_seal.seal` does."""
    otherwise = on_ledgers(ledgers)

    async def perform(action: Action[Any]) -> object:
        if not isinstance(action, RecoverSegment):
            return await otherwise(action)
        return await seal_of(
            ledgers,
            node.log,
            action.ledger_id,
            last_txid=action.last_txid,
            created_ms=now_ms(),
            without_key=True,
        )

    return await run(log_seal.seal(node.steps, incarnation=incarnation, own=own), perform)
