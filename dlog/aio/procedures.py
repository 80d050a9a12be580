"""Runs procedures (`dlog.protocol.procedure`) on a metadata store and on ledgers.

It does each action, and reports the answer or the error; what that means the steps decide.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar, assert_never

from dlog.aio.port import Ledgers
from dlog.protocol import procedure
from dlog.protocol.procedure import (
    Action,
    ActionFailed,
    Answered,
    Procedure,
    ProcedureEvent,
    Started,
    Steps,
)
from ledger.errors import LogError
from ledger.machine_loop import run_in_turn
from ledger.metastore.port import MetadataStore
from ledger.protocol.shared import TimePassed

R = TypeVar("R")
Perform = Callable[[Action], Awaitable[object]]
"""Does an action; returns its answer, or raises why there is none."""


async def run(steps: Steps[R], perform: Perform) -> R:
    """Run *steps* to their end; return what they come to, or raise what they end with.

    Who is cancelled leaves the action that is under way with an unknown outcome."""
    machine = Procedure(steps)

    begin: ProcedureEvent = Started()

    async def execute(action: Action) -> ProcedureEvent:
        try:
            return Answered(await answer_to(action, perform))
        except LogError as error:
            return ActionFailed(error)

    await run_in_turn(machine, begin, execute, time_passed=TimePassed())
    return machine.result


async def answer_to(action: Action, perform: Perform) -> object:
    """Do *action*. Each one of every procedure passes here, for the simulator to stop at."""
    return await perform(action)


async def run_on_store(steps: Steps[R], store: MetadataStore) -> R:
    """`run` *steps* that need the metadata store only."""
    return await run(steps, on_store(store))


async def run_on_ledgers(steps: Steps[R], ledgers: Ledgers) -> R:
    """`run` *steps* that fence and delete ledgers too."""
    return await run(steps, on_ledgers(ledgers))


def on_store(store: MetadataStore) -> Perform:
    """Return what does the actions of the metadata store."""

    async def perform(action: Action) -> object:
        match action:
            case procedure.Sync(path):
                await store.sync(path)
            case procedure.Get(path):
                return await store.get(path)
            case procedure.Exists(path):
                return await store.exists(path)
            case procedure.Children(path):
                return await store.children(path)
            case procedure.Create(path):
                await store.create(path)
            case procedure.Delete(path):
                await store.delete(path)
            case procedure.Transact(ops):
                await store.multi(ops)
            case (
                procedure.Fence()
                | procedure.DeleteLedger()
                | procedure.RecoverSegment()
                | procedure.AwaitChange()
                | procedure.OpenSegment()
                | procedure.AppendUnit()
                | procedure.StageRun()
                | procedure.CloseSegments()
            ):
                raise AssertionError(f"these steps need more than a metadata store: {action}")
            case _:
                assert_never(action)
        return None

    return perform


def on_ledgers(ledgers: Ledgers) -> Perform:
    """Return what does the actions of the metadata store, and fences and deletes ledgers."""
    otherwise = on_store(ledgers.store)

    async def perform(action: Action) -> object:
        match action:
            case procedure.Fence(ledger_id):
                await ledgers.recover(ledger_id)
            case procedure.DeleteLedger(ledger_id):
                await ledgers.delete(ledger_id)
            case _:
                return await otherwise(action)
        return None

    return perform
