"""Carries out `protocol.lifecycle`: how logs begin and end. What each raises is said there."""

from contextlib import suppress

from dlog.aio.port import Ledgers
from dlog.aio.procedures import run_on_ledgers, run_on_store
from dlog.aio.store.manifests import ManifestNode, new_incarnation
from dlog.manifest import Manifest
from dlog.protocol import lifecycle
from dlog.settings import LogSettings
from ledger.errors import NoNamespace
from ledger.feature_level import ENCRYPTION
from ledger.feature_level_upgrade import read_held
from ledger.metastore.port import MetadataStore


async def ensure_log(
    ledgers: Ledgers, node: ManifestNode, settings: LogSettings | None, *, own: bool = False
) -> None:
    """Create the log unless it exists; *own*: dlog itself does. Raises `LevelTooLow`."""
    await check_level(node.store, settings)
    steps = lifecycle.ensure(node.steps, settings, incarnations=new_incarnation, own=own)
    await run_on_ledgers(steps, ledgers)


async def create(ledgers: Ledgers, node: ManifestNode, settings: LogSettings | None) -> Manifest:
    """Create the log; finish the deletion of an earlier one first. Raises `LogExists`,
    `LevelTooLow`."""
    await check_level(node.store, settings)
    steps = lifecycle.create(node.steps, settings, incarnations=new_incarnation)
    return await run_on_ledgers(steps, ledgers)


async def check_level(store: MetadataStore, settings: LogSettings | None) -> None:
    """Raise `LevelTooLow` if a log with *settings* is written as older programs cannot read it, and
    there may be some. A level never falls: what passes once may be done later on."""
    if settings is not None and settings.encrypt_with:
        with suppress(NoNamespace):  # whoever opens it says so
            (await read_held(store)).check_brings(ENCRYPTION, "an encrypted log")


async def drop(ledgers: Ledgers, node: ManifestNode, *, incarnation: str | None = None) -> None:
    """Delete the log; with *incarnation*, only that one."""
    await run_on_ledgers(lifecycle.drop(node.steps, incarnation=incarnation), ledgers)


async def begin_drop(node: ManifestNode) -> Manifest:
    """Do the first step of a deletion; return the manifest before it."""
    return await run_on_store(lifecycle.begin_drop(node.steps), node.store)


async def finish_drop(ledgers: Ledgers, node: ManifestNode) -> None:
    """Finish a deletion that has begun, if one has."""
    await run_on_ledgers(lifecycle.finish_drop(node.steps), ledgers)
