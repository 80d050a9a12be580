"""Repairs that a command does itself, with the machine of the workers: on marks of its own.

Such a mark is in memory, so nothing is left of it when the command is interrupted, and no worker
does what was meant for this command. Locks are everybody's.
"""

from dataclasses import dataclass, replace

from bookie.autorecovery.marks import Ended, Marks
from bookie.autorecovery.protocol.repair import RepairConfig, RepairEnd
from bookie.autorecovery.repair_io import Pace, RepairCache, RepairContext, repair_ledger
from ledger.client import LedgerClient
from ledger.ids import BookieId, LedgerId
from ledger.mark import Lack, Mark


class OwnMarks:
    """Marks in memory, and the locks of *marks*."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._own: dict[LedgerId, tuple[Mark, int]] = {}

    def put(self, ledger_id: LedgerId, lacks: tuple[Lack, ...]) -> None:
        assert ledger_id not in self._own, "one thing at a time is done to a ledger"
        self._own[ledger_id] = Mark(()).merged(lacks), 0

    def pop(self, ledger_id: LedgerId) -> Mark | None:
        """Forget the mark; return what it said last, None if the repair deleted it."""
        found = self._own.pop(ledger_id, None)
        return None if found is None else found[0]

    async def lock(self, ledger_id: LedgerId) -> bool:
        return await self._marks.lock(ledger_id)

    async def unlock(self, ledger_id: LedgerId) -> None:
        await self._marks.unlock(ledger_id)

    async def name_target(self, ledger_id: LedgerId, bookie: BookieId) -> bool:
        return await self._marks.name_target(ledger_id, bookie)

    async def read(self, ledger_id: LedgerId) -> tuple[Mark, int] | None:
        return self._own.get(ledger_id)

    async def write(self, ledger_id: LedgerId, mark: Mark, version: int) -> bool:
        self._own[ledger_id] = mark, version + 1
        return True

    async def end(self, ledger_id: LedgerId, version: int) -> Ended:  # noqa: ARG002
        self._own.pop(ledger_id, None)
        await self._marks.unlock(ledger_id)
        return Ended.GONE


@dataclass(frozen=True, slots=True)
class Errand:
    """How one repair ended, and what its mark says of what is left; None: nothing."""

    finish: RepairEnd
    mark: Mark | None


class Errands:
    def __init__(self, client: LedgerClient, pace: Pace, config: RepairConfig) -> None:
        marks = Marks(client.store, client.identities)
        self._marks = OwnMarks(marks)
        self._context = RepairContext(
            client.environment, self._marks, pace, config, RepairCache(marks)
        )

    async def do(
        self, ledger_id: LedgerId, lacks: tuple[Lack, ...], into: frozenset[BookieId] | None
    ) -> Errand:
        """Repair the ledger as if it were marked with *lacks*; what moves goes *into* these.

        Raises nothing that the metadata store or bookies refuse: see `repair_ledger`."""
        config = replace(self._context.config, into=into)
        self._marks.put(ledger_id, lacks)
        try:
            finish = await repair_ledger(replace(self._context, config=config), ledger_id)
        finally:
            mark = self._marks.pop(ledger_id)
        return Errand(finish, mark)
