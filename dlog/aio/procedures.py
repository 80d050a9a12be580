"""Does the actions of the procedures of logs (`dlog.protocol.actions`) on a metadata store and on
ledgers."""

import secrets
from typing import Any, Final, TypeVar

from dlog.aio.port import Ledgers
from dlog.archive import object_store, segment_index
from dlog.archive.object_format import encode_owner, parse_owner
from dlog.archive.object_store import ObjectFolder
from dlog.protocol import actions, object_owner, table
from dlog.protocol.object_owner import ObjectOwner
from dlog.protocol.segment_index import ReadIndex, WriteIndex
from ledger.metastore import uri
from ledger.metastore.port import MetadataStore
from ledger.procedures import Perform, run
from ledger.protocol.procedure import Action, Steps

OWNER_BYTES: Final = 8
"""Random, in each token of an owner's mark."""
R = TypeVar("R")


async def run_on_store(steps: Steps[R], store: MetadataStore) -> R:
    """`run` *steps* that need the metadata store only."""
    return await run(steps, on_store(store))


async def run_on_ledgers(steps: Steps[R], ledgers: Ledgers) -> R:
    """`run` *steps* that fence and delete ledgers too."""
    return await run(steps, on_ledgers(ledgers))


def on_store(store: MetadataStore) -> Perform:
    """Return what does the actions of the metadata store."""

    async def perform(action: Action[Any]) -> object:
        match action:
            case actions.Sync(path):
                await store.sync(path)
            case actions.Get(path):
                return await store.get(path)
            case actions.Exists(path):
                return await store.exists(path)
            case actions.Children(path):
                return await store.children(path)
            case actions.Create(path):
                await store.create(path)
            case actions.Delete(path):
                await store.delete(path)
            case actions.Transact(ops):
                await store.multi(ops)
            case _:
                raise AssertionError(f"these steps need more than a metadata store: {action}")
        return None

    return perform


def on_ledgers(ledgers: Ledgers) -> Perform:
    """Return what does the actions of the metadata store, and fences and deletes ledgers, and
    deletes objects."""
    otherwise = on_store(ledgers.store)

    async def perform(action: Action[Any]) -> object:
        match action:
            case actions.Fence(ledger_id):
                await ledgers.recover(ledger_id)
            case actions.DeleteLedger(ledger_id):
                await ledgers.delete(ledger_id)
            case actions.DeleteObject(storage, name):
                await object_store.open_folder(storage).delete(name)
            case object_owner.DrawOwner():
                return ObjectOwner(secrets.token_hex(OWNER_BYTES), uri.places_of(ledgers.store.uri))
            case object_owner.ReadOwner(storage):
                return _parsed(await object_store.open_folder(storage).read_mark())
            case object_owner.SwapOwner(storage, seen, owner):
                return await _swap_owner(object_store.open_folder(storage), seen, owner)
            case object_owner.DeleteOwner(storage):
                await object_store.open_folder(storage).delete_mark()
            case table.ReadTable(storage):
                return _table(await object_store.open_folder(storage).read_mark())
            case table.SwapTable(storage, seen, now):
                expected = None if seen is None else table.encode_table(seen)
                folder = object_store.open_folder(storage)
                return _table(await folder.swap_mark(expected, table.encode_table(now)))
            case ReadIndex(log, run):
                return await segment_index.read_run(log, run)
            case WriteIndex():
                return await segment_index.write_index(action)
            case actions.ListObjects(storage):
                return await object_store.open_folder(storage).names()
            case _:
                return await otherwise(action)
        return None

    return perform


def _table(manifest: bytes | None) -> table.Table | None:
    return None if manifest is None else table.parse_table(manifest)


def _parsed(mark: bytes | None) -> ObjectOwner | None:
    return None if mark is None else parse_owner(mark)


async def _swap_owner(
    folder: ObjectFolder, seen: ObjectOwner | None, owner: ObjectOwner
) -> ObjectOwner | None:
    expected = None if seen is None else encode_owner(seen)
    return _parsed(await folder.swap_mark(expected, encode_owner(owner)))
