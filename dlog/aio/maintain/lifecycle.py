"""Carries out `protocol.dropping`: how logs begin and end. What each raises is said there."""

from dlog.aio.port import Ledgers
from dlog.aio.procedures import run_on_ledgers, run_on_store
from dlog.aio.store.manifests import ManifestNode, new_incarnation
from dlog.manifest import Manifest
from dlog.protocol import dropping
from dlog.settings import LogSettings


async def ensure_log(
    ledgers: Ledgers, node: ManifestNode, settings: LogSettings | None, *, own: bool = False
) -> None:
    """Create the log unless it exists; *own*: dlog itself does."""
    steps = dropping.ensure(node.steps, settings, incarnations=new_incarnation, own=own)
    await run_on_ledgers(steps, ledgers)


async def create(ledgers: Ledgers, node: ManifestNode, settings: LogSettings | None) -> Manifest:
    """Create the log; finish the deletion of an earlier one first. Raises `LogExists`."""
    steps = dropping.create(node.steps, settings, incarnations=new_incarnation)
    return await run_on_ledgers(steps, ledgers)


async def drop(ledgers: Ledgers, node: ManifestNode, *, incarnation: str | None = None) -> None:
    """Delete the log; with *incarnation*, only that one."""
    await run_on_ledgers(dropping.drop(node.steps, incarnation=incarnation), ledgers)


async def begin_drop(node: ManifestNode) -> Manifest:
    """Do the first step of a deletion; return the manifest before it."""
    return await run_on_store(dropping.begin_drop(node.steps), node.store)


async def finish_drop(ledgers: Ledgers, node: ManifestNode) -> None:
    """Finish a deletion that has begun, if one has."""
    await run_on_ledgers(dropping.finish_drop(node.steps), ledgers)
