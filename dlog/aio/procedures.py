"""Does the actions of the procedures of logs (`dlog.protocol.actions`) on a metadata store and on
ledgers."""

from typing import Any, TypeVar

from dlog.aio.port import Ledgers
from dlog.archive import object_store
from dlog.protocol import actions
from ledger.metastore.port import MetadataStore
from ledger.procedures import Perform, run
from ledger.protocol.procedure import Action, Steps

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
            case actions.ListObjects(storage):
                return await object_store.open_folder(storage).names()
            case _:
                return await otherwise(action)
        return None

    return perform
