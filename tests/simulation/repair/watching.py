"""Shows what each repair is at, for the oracle and for coverage; changes nothing."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from bookie.autorecovery import marks
from bookie.autorecovery.protocol import replication_events as protocol
from bookie.autorecovery.replication import _Repair
from ledger.clock import now_ms
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.mark import Lack
from ledger.metastore.port import MetadataStore
from tests.simulation import writing
from tests.simulation.logs.transport import SimTransport
from tests.simulation.repair.oracle import Fenced, Repairs
from tests.simulation.repair.process import RepairProcess


@contextmanager
def watched_marks(repairs: Repairs) -> Iterator[None]:
    """Report which ledgers somebody was told to be marked, within the block."""
    honest = vars(marks)["mark_ledger"]  # with a mutation, if there is one

    async def mark_ledger(
        store: MetadataStore, ledger_id: LedgerId, lacks: Iterable[Lack], *, urgent: bool = False
    ) -> bool:
        began = repairs.moment()
        is_news: bool = await honest(store, ledger_id, lacks, urgent=urgent)
        repairs.confirmed[ledger_id] = max(began, repairs.confirmed.get(ledger_id, 0))
        return is_news

    for module in (marks, writing):
        vars(module)["mark_ledger"] = mark_ledger
    try:
        yield
    finally:
        for module in (marks, writing):
            vars(module)["mark_ledger"] = honest


@contextmanager
def watched_repairs() -> Iterator[None]:
    """Report what repairs do, within the block."""
    honest = _Repair._execute

    async def execute(
        self: _Repair, effect: protocol.ReplicationEffect
    ) -> protocol.ReplicationEvent | None:
        transport = self._environment.transport
        assert isinstance(transport, SimTransport)
        process = transport.process
        assert isinstance(process, RepairProcess)
        ledger_id, name = self._ledger_id, type(effect).__name__
        process.mark(f"repair_{name}")
        process.loop.step = name
        if isinstance(effect, protocol.Finish):
            process.targets.pop(ledger_id, None)
            process.mark(f"repair_{effect.outcome.name.lower()}")
            process.note(f"ends with {ledger_id}: {effect.outcome.value} {effect.why}")
        if isinstance(effect, protocol.Look):
            history = process.world.repairs.history(ledger_id)
            process.had[ledger_id, effect.bookie] = frozenset(
                entry for entry, held in history.copies.items() if effect.bookie in held
            )
        if isinstance(effect, protocol.SendFrames):
            assert self._metadata is not None, "it was read"
            members = self._metadata.fragment_of(EntryId(effect.entries[0])).bookies
            if effect.bookie not in members:  # as far as the worker knows: it may have slept
                process.had.pop((ledger_id, effect.bookie), None)
        if isinstance(effect, protocol.RecoverLedger):
            process.recovering[ledger_id] = None
            writable = tuple(map(BookieId, self._environment.bookies.writable()))
            assert self._metadata is not None, "it was read"
            members = self._metadata.last_fragment.bookies
            process.world.repairs.happened.append(
                Fenced(ledger_id, process.name, now_ms(), members, writable)
            )
        try:
            return await honest(self, effect)
        finally:
            process.loop.step = ""
            process.recovering.pop(ledger_id, None)

    _Repair._execute = execute  # type: ignore[method-assign]
    try:
        yield
    finally:
        _Repair._execute = honest  # type: ignore[method-assign]
