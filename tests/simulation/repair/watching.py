"""Shows what each repair is at, for the oracle and for coverage; changes nothing."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from bookie.autorecovery import marks, repair_io
from bookie.autorecovery.protocol import repair as protocol
from bookie.autorecovery.repair_io import _RepairIO
from ledger import client, writer
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.log_events import now_ms
from ledger.mark import MissingReplica
from ledger.metastore.port import MetadataStore
from ledger.procedures import Perform
from ledger.protocol.procedure import Action, Steps
from tests.simulation.repair.oracle import Fenced, Repairs
from tests.simulation.repair.process import RepairProcess
from tests.simulation.transport import SimTransport


@contextmanager
def watched_marks(repairs: Repairs) -> Iterator[None]:
    """Report which ledgers somebody was told to be marked, within the block."""
    honest = vars(marks)["mark_ledger"]  # with a mutation, if there is one

    async def mark_ledger(
        store: MetadataStore,
        ledger_id: LedgerId,
        missing: Iterable[MissingReplica],
        *,
        urgent: bool = False,
    ) -> bool:
        began = repairs.moment()
        is_news: bool = await honest(store, ledger_id, missing, urgent=urgent)
        repairs.confirmed[ledger_id] = max(began, repairs.confirmed.get(ledger_id, 0))
        return is_news

    for module in (marks, client, writer):
        vars(module)["mark_ledger"] = mark_ledger
    try:
        yield
    finally:
        for module in (marks, client, writer):
            vars(module)["mark_ledger"] = honest


@contextmanager
def watched_repairs() -> Iterator[None]:
    """Report what repairs do, within the block."""
    honest, honest_run = _RepairIO.perform, vars(repair_io)["run"]

    async def perform(self: _RepairIO, action: Action[Any]) -> object:
        process, ledger_id, name = _process(self), self._ledger_id, type(action).__name__
        process.mark(f"repair_{name}")
        process.loop.step = name
        if isinstance(action, protocol.Look):
            history = process.world.repairs.history(ledger_id)
            bookie = action.question.bookie
            process.had[ledger_id, bookie] = frozenset(
                entry for entry, held in history.copies.items() if bookie in held
            )
        if isinstance(action, protocol.SendFrames):
            assert self._metadata is not None, "it was read"
            members = self._metadata.fragment_of(EntryId(action.entries[0])).bookies
            if action.bookie not in members:  # as far as the worker knows: it may have slept
                process.had.pop((ledger_id, action.bookie), None)
        if isinstance(action, protocol.RecoverLedger):
            process.recovering[ledger_id] = None
            writable = tuple(map(BookieId, self._environment.bookies.writable()))
            assert self._metadata is not None, "it was read"
            members = self._metadata.last_fragment.bookies
            process.world.repairs.happened.append(
                Fenced(ledger_id, process.name, now_ms(), members, writable)
            )
        try:
            return await honest(self, action)
        finally:
            process.loop.step = ""
            process.recovering.pop(ledger_id, None)

    async def run(steps: Steps[protocol.RepairEnd], perform: Perform) -> protocol.RepairEnd:
        end: protocol.RepairEnd = await honest_run(steps, perform)
        method: object = perform
        assert isinstance(method, MethodType)
        repairing = method.__self__
        assert isinstance(repairing, _RepairIO)
        process, ledger_id = _process(repairing), repairing._ledger_id
        process.targets.pop(ledger_id, None)
        process.mark(f"repair_{end.outcome.name.lower()}")
        process.note(f"ends with {ledger_id}: {end.outcome.value} {end.why}")
        return end

    _RepairIO.perform = perform  # type: ignore[method-assign]
    vars(repair_io)["run"] = run
    try:
        yield
    finally:
        _RepairIO.perform = honest  # type: ignore[method-assign]
        vars(repair_io)["run"] = honest_run


def _process(repairing: _RepairIO) -> RepairProcess:
    transport = repairing._environment.transport
    assert isinstance(transport, SimTransport)
    process = transport.process
    assert isinstance(process, RepairProcess)
    return process
