"""Named consumers in the metadata store: carries out `protocol.consumer_steps`."""

import asyncio
import secrets
from typing import Any, Final

from dlog.aio.cancellation import is_cancelled
from dlog.aio.procedures import on_store, run_on_store
from dlog.errors import NoSuchConsumer
from dlog.manifest import Manifest
from dlog.protocol import consumer_steps
from dlog.protocol.consumer_state import ConsumerState
from dlog.protocol.consumer_steps import (
    AwaitChange,
    Change,
    ConsumerSteps,
    Stored,
    consumers_path,
)
from ledger.errors import DamagedMetadata
from ledger.metastore.nodes import hidden_of
from ledger.metastore.port import MetadataStore, Watch
from ledger.procedures import run
from ledger.protocol.procedure import Action

UNLOCK_S: Final = 1.0
"""How long letting a lock go keeps its caller waiting."""

_unlocking: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references


class ConsumerNode:
    """One consumer's node. Raises `InvalidName` if there can be no such log or consumer.

    See `ConsumerSteps` for all of it."""

    def __init__(self, store: MetadataStore, log: str, name: str) -> None:
        self.steps = ConsumerSteps(log, name, token=secrets.token_hex(8))
        self._store = store

    @property
    def name(self) -> str:
        return self.steps.name

    @property
    def path(self) -> str:
        return self.steps.path

    async def read(self) -> Stored:
        """Return state and version, as of now. Raises `NoSuchConsumer`, `DamagedMetadata`."""
        return await run_on_store(self.steps.read(), self._store)

    async def read_to_edit(self) -> Stored:
        """As `read`, for an `edit` that follows. Raises `NoSuchLog` too."""
        return await run_on_store(self.steps.read_to_edit(), self._store)

    async def create(self, state: ConsumerState) -> None:
        """Create it unless it is there. Raises `NoSuchLog`, `TooManyConsumers`, `BadVersion`."""
        await run_on_store(self.steps.create(state), self._store)

    async def edit(self, change: Change, known: Stored) -> Stored:
        """Apply *change*, first to what was *known*, until it is stored; return that.

        Requires `read_to_edit` before. *change* is safe to repeat, so a lost reply is no
        trouble. Raises what it raises, `NoSuchConsumer` also if the log was renamed or another
        one has its name, and `MetadataUnavailable` or `BadVersion` after several attempts."""
        return await run_on_store(self.steps.edit(change, known), self._store)

    async def delete(self) -> None:
        """Delete it. Raises `NoSuchConsumer`, and `ConsumerBusy` while its lock is held."""
        await run_on_store(self.steps.delete(), self._store)

    async def owner(self) -> str | None:
        """Return who holds the lock, or None."""
        return await run_on_store(self.steps.owner(), self._store)

    async def lock(self, owner: str, *, wait_s: float) -> None:
        """Take the lock. Raises `ConsumerBusy` if another one has it for *wait_s* more."""
        began = asyncio.get_running_loop().time()
        watch = self._store.watch(self.steps.lock_path)
        otherwise = on_store(self._store)

        async def perform(action: Action[Any]) -> object:
            if isinstance(action, AwaitChange):
                return await _changed(watch, began + action.within_s)
            return await otherwise(action)

        try:
            await run(self.steps.lock(owner, wait_s=wait_s), perform)
        finally:
            watch.close()

    async def unlock(self) -> None:
        """Let the lock go if it is ours, for certain: after `UNLOCK_S` in the background.

        Left behind by a session that lives on it would keep everybody out for as long."""
        lost = self._store.session.lost
        steps = self.steps.unlock(session_lost=lost.is_set)
        task = asyncio.create_task(run_on_store(steps, self._store))
        _unlocking.add(task)
        task.add_done_callback(_unlocking.discard)
        await asyncio.wait({task}, timeout=UNLOCK_S)


async def _changed(watch: Watch, deadline: float) -> bool:
    """Wait for *watch*; return False at *deadline*."""
    try:
        async with asyncio.timeout_at(deadline):
            await watch.changed()
    except TimeoutError:
        return False
    except asyncio.CancelledError:
        if is_cancelled():
            raise
    return True


async def consumer_names(store: MetadataStore, log: str) -> list[str]:
    """Return the names of the consumers of *log*, sorted."""
    return await run_on_store(consumer_steps.consumer_names(log), store)


async def read_consumers(
    store: MetadataStore, log: str, manifest: Manifest
) -> list[tuple[str, ConsumerState]]:
    """Return name and state of each consumer of this life of *log*, by name.

    Raises `DamagedMetadata` for one that is listed still and cannot be found."""
    consumers: list[tuple[str, ConsumerState]] = []
    missing: list[str] = []
    for name in await consumer_names(store, log):
        node = ConsumerNode(store, log, name)
        try:
            state, _ = await node.read()
        except NoSuchConsumer:
            missing.append(node.path)
            continue
        if state.log_incarnation == manifest.incarnation:
            consumers.append((name, state))
    for path in await hidden_of(store, consumers_path(log), missing):
        raise DamagedMetadata(path, "it is listed, and a read of it finds nothing")
    return consumers
