"""Carries out `protocol.log_rename`: gives a log another name."""

from collections.abc import Callable

from dlog.aio.port import Ledgers
from dlog.aio.procedures import run_on_ledgers
from dlog.aio.store.manifests import ManifestNode
from dlog.protocol import log_rename


async def rename(
    ledgers: Ledgers, node: ManifestNode, new: ManifestNode, *, now_ms: Callable[[], int]
) -> None:
    """Give the log of *node* the name of *new*. Raises as `log_rename.rename`."""
    await run_on_ledgers(log_rename.rename(node.steps, new.steps, now_ms=now_ms), ledgers)
