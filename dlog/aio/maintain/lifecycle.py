"""Carries out `protocol.lifecycle`: how logs begin and end, are sealed and get another name.

What each raises is said there.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from dlog.aio.port import Ledgers
from dlog.aio.procedures import on_ledgers, run_on_ledgers, run_on_store
from dlog.aio.read.segments import seal_of
from dlog.aio.store import ManifestNode, new_incarnation
from dlog.manifest import Manifest
from dlog.protocol import lifecycle
from dlog.protocol.actions import RecoverSegment
from dlog.settings import LogSettings
from ledger.errors import NoNamespace
from ledger.feature_level import ARCHIVE, ENCRYPTION
from ledger.feature_level_upgrade import read_held
from ledger.ids import LedgerId
from ledger.metastore.port import MetadataStore
from ledger.procedures import run
from ledger.protocol.procedure import Action


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
    if settings is None or not (settings.encrypt_with or settings.archive):
        return
    with suppress(NoNamespace):  # whoever opens it says so
        held = await read_held(store)
        if settings.encrypt_with:
            held.check_brings(ENCRYPTION, "an encrypted log")
        if settings.archive:
            held.check_brings(ARCHIVE, "a log with object storage")


async def drop(ledgers: Ledgers, node: ManifestNode, *, incarnation: str | None = None) -> None:
    """Delete the log; with *incarnation*, only that one."""
    await run_on_ledgers(lifecycle.drop(node.steps, incarnation=incarnation), ledgers)


async def begin_drop(node: ManifestNode) -> Manifest:
    """Do the first step of a deletion; return the manifest before it."""
    return await run_on_store(lifecycle.begin_drop(node.steps), node.store)


async def finish_drop(ledgers: Ledgers, node: ManifestNode) -> None:
    """Finish a deletion that has begun, if one has."""
    await run_on_ledgers(lifecycle.finish_drop(node.steps), ledgers)


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

    return await run(lifecycle.seal(node.steps, incarnation=incarnation, own=own), perform)


async def rename(
    ledgers: Ledgers, node: ManifestNode, new: ManifestNode, *, now_ms: Callable[[], int]
) -> None:
    """Give the log of *node* the name of *new*. Raises as `log_rename.rename`."""
    await run_on_ledgers(lifecycle.rename(node.steps, new.steps, now_ms=now_ms), ledgers)
