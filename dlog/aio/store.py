"""The nodes of logs in the metadata store: manifests, named consumers; and watches of
these.

Carries out `protocol.manifest_steps` and `protocol.consumer_steps`.
"""

import asyncio
import secrets
from collections import deque
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

from dlog.aio.port import Ledgers
from dlog.aio.procedures import on_store, run_on_ledgers, run_on_store
from dlog.errors import NoSuchConsumer
from dlog.manifest import Manifest
from dlog.names import LOGS_PATH, is_own, name_of
from dlog.protocol import consumer_steps, manifest_steps
from dlog.protocol.consumer_steps import (
    AwaitChange,
    Change,
    ConsumerState,
    ConsumerSteps,
    Stored,
    consumers_path,
)
from dlog.protocol.edits import Edit
from dlog.protocol.manifest_steps import ManifestSteps
from ledger.delays import Backoff
from ledger.errors import DamagedMetadata, HandleClosed, LogError, NoSuchNode
from ledger.log_events import get_logger
from ledger.metastore.port import MetadataStore, Watch, hidden_of
from ledger.procedures import run
from ledger.protocol.procedure import Action
from ledger.tasks import is_cancelled

UNLOCK_S: Final = 1.0
"""How long letting a lock go keeps its caller waiting."""
_unlocking: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references
BACKOFF_S: Final = 0.1
BACKOFF_S_MAX: Final = 5.0
_log = get_logger(__name__)


def new_incarnation() -> str:
    return secrets.token_hex(8)


class ManifestNode:
    """Raises `InvalidName` if there can be no log *log*. See `ManifestSteps` for all of it."""

    def __init__(self, store: MetadataStore, log: str) -> None:
        self.steps = ManifestSteps(log)
        self.store = store

    @property
    def log(self) -> str:
        """The log's name, where it was found last."""
        return self.steps.log

    @property
    def path(self) -> str:
        return self.steps.path

    def follow(self, incarnation: str) -> None:
        """Mean the log with *incarnation* from now on, whatever name it is given."""
        self.steps.followed = incarnation

    @property
    def followed(self) -> str | None:
        """The incarnation that is meant; None: whatever has the name."""
        return self.steps.followed

    async def read(self, *, fresh: bool = True) -> tuple[Manifest, int]:
        """Return manifest and version. Raises `NoSuchLog`, `DamagedMetadata`.

        *fresh*: see all writes that were finished before the call, for one more round trip."""
        return await run_on_store(self.steps.read(fresh=fresh), self.store)

    async def create(self, manifest: Manifest) -> Manifest:
        """Create the log; return what is stored. Raises `LogExists`."""
        steps = self.steps.create(manifest, incarnations=new_incarnation)
        return await run_on_store(steps, self.store)

    async def write(self, manifest: Manifest, version: int) -> int:
        """Compare and swap; return the new version.

        Raises `BadVersion`, and `NoSuchLog` also if another log has the name by now."""
        return await run_on_store(self.steps.write(manifest, version), self.store)

    async def edit(self, edit: Edit) -> Manifest:
        """Apply *edit* until it is in the manifest; return that.

        Raises what *edit* raises, `NoSuchLog`, `MetadataUnavailable` (outcome unknown),
        `BadVersion` if others were faster very many times."""
        return await run_on_store(self.steps.edit(edit), self.store)

    async def touch(self) -> Manifest:
        """Write the manifest as it is: a `write` that was decided before it raises `BadVersion`.

        Raises as `edit`."""
        return await run_on_store(self.steps.touch(), self.store)

    async def delete(self, life: str, version: int) -> None:
        """Delete the log with this `Manifest.life`. No error if it is gone already.

        Raises `BadVersion`."""
        await run_on_store(self.steps.delete(life, version), self.store)

    def watch(self) -> Watch:
        """Watch the manifest, where it is and where it goes."""
        return _ManifestWatch(self, self.store)


class _ManifestWatch:
    """A watch of the node that its `ManifestNode` stands for at the time."""

    def __init__(self, node: ManifestNode, store: MetadataStore) -> None:
        self._node = node
        self._store = store
        self._path = node.path
        self._watch = store.watch(node.path)

    async def changed(self) -> None:
        if self._path == self._node.path:
            await self._watch.changed()
            return
        # It moved, as the last change showed: what happened there since was not seen.
        self._watch.close()
        self._path = self._node.path
        self._watch = self._store.watch(self._path)

    def close(self) -> None:
        self._watch.close()


async def delete_listed(
    ledgers: Ledgers, node: ManifestNode, manifest: Manifest, *, fenced: bool = False
) -> Manifest:
    """Second step of a deletion: delete the ledgers in `deleting`, then clear the list.

    Of a log that is being deleted itself only who has *fenced* the last ones deletes any."""
    steps = manifest_steps.delete_listed(node.steps, manifest, fenced=fenced)
    return await run_on_ledgers(steps, ledgers)


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


class LogChange(NamedTuple):
    """A log that is there now and was not before, or the other way round."""

    kind: Literal["added", "removed"]
    log: str


async def log_names(store: MetadataStore, prefix: str = "") -> list[str]:
    """Return the names of all logs that begin with *prefix*, dlog's own among them, sorted."""
    await store.sync(LOGS_PATH)
    try:
        nodes = await store.children(LOGS_PATH)
    except NoSuchNode:
        return []
    return sorted(name for name in map(name_of, nodes) if name.startswith(prefix))


async def listed_names(store: MetadataStore, prefix: str = "") -> list[str]:
    """Return the names that begin with *prefix*, sorted; dlog's own only if *prefix* is of them:
    who reads all logs means all that were written by applications."""
    names = await log_names(store, prefix)
    return names if is_own(prefix) else [name for name in names if not is_own(name)]


class LogWatch:
    """Made by `watch_logs`: an async iterator of `LogChange`, without end; close it.

    It compares what it saw with what there is: a log that is deleted and re-created between
    two looks is no change, a renamed one is removed and added. Trouble with the metadata store,
    the loss of its session too, is waited out; what changed meanwhile is reported afterwards.
    Cancelling a read loses nothing. Used by one task at a time."""

    def __init__(
        self, ledgers: Ledgers, *, prefix: str, known: list[str], owns_ledgers: bool
    ) -> None:
        self._ledgers = ledgers
        self._store = ledgers.store
        self._prefix = prefix
        self._owns_ledgers = owns_ledgers
        self._known = known
        self._changes: deque[LogChange] = deque()
        self._watch = self._store.watch(LOGS_PATH)
        self._fresh = False
        """Whether nothing has changed since the last look, as far as we know."""
        self._backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        self._closed = False

    @property
    def logs(self) -> tuple[str, ...]:
        """The names at the last look, whose changes were all reported, or are about to be."""
        return tuple(self._known)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LogChange:
        """Return the next change; wait for it. Raises `HandleClosed`, and what cannot pass."""
        while not self._changes:
            if self._closed:
                raise HandleClosed("watch of logs")
            if self._fresh:
                await self._wait()
                continue
            await self._look()
        return self._changes.popleft()

    async def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._changes.clear()
        self._watch.close()
        if self._owns_ledgers:
            await self._ledgers.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _wait(self) -> None:
        try:
            await self._watch.changed()
        except asyncio.CancelledError:
            if is_cancelled() and not self._closed:
                raise
        self._fresh = False

    async def _look(self) -> None:
        try:
            names = await listed_names(self._store, self._prefix)
        except LogError as error:
            if self._closed or not error.retryable:
                raise
            delay_s = self._backoff.next()
            _log.warning("log_watch_interrupted", error=str(error), retry_in_s=delay_s)
            await asyncio.sleep(delay_s)
            return
        self._backoff.reset()
        self._fresh = True
        before, after = dict.fromkeys(self._known), dict.fromkeys(names)
        self._known = names
        self._changes.extend(LogChange("removed", name) for name in before if name not in after)
        self._changes.extend(LogChange("added", name) for name in after if name not in before)
