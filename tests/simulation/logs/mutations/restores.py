"""Bugs of what follows when the metadata store was restored to an older moment."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bookie.loss.limbo import Limbo
from ledger import forced_close
from ledger.manager import LedgerStore
from tests.simulation.mutations.mutation import Patch, mutation

_CLOSE = "tests/ledger/test_forced_close.py::test_"


@mutation("an older store", logs=True)
def gives_out_ids_that_bookies_know(patch: Patch) -> None:
    """The store's counter stays where the backup has it."""

    async def leave_ids_below(self: LedgerStore, above: int) -> int:
        return above

    patch.set(LedgerStore, "leave_ids_below", leave_ids_below)


@mutation(
    "an older store",
    logs=True,
    drawn=False,
    test="tests/bookie/identity/test_restore.py"
    "::test_a_true_denial_is_no_evidence_of_the_end_and_a_list_is_complete",
)
def denies_with_the_ensemble_of_the_backup(patch: Patch) -> None:
    """As the bookies lost nothing, their true "no" ends a ledger that has an ensemble since then
    which the store does not name."""
    honest = Limbo.doubts
    patch.set(Limbo, "doubts", lambda self, ledger_id: self.lost and honest(self, ledger_id))


@mutation(
    "an older store",
    logs=True,
    drawn=False,
    test=f"{_CLOSE}what_the_forgotten_ensemble_alone_holds_is_counted_as_found_elsewhere",
)
def closes_with_what_the_named_ensemble_holds(patch: Patch) -> None:
    honest: Callable[..., Any] = forced_close.gather_evidence

    async def gather_evidence(*arguments: Any, **more: Any) -> forced_close.Evidence:
        evidence: forced_close.Evidence = await honest(*arguments, **more)
        members = tuple(holding for holding in evidence.holdings if holding.is_member)
        return replace(evidence, holdings=members)

    patch.set(forced_close, "gather_evidence", gather_evidence)
