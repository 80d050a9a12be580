"""Bugs of evictions."""

from bookie.collector import evictor
from bookie.collector.garbage import Surplus
from bookie.index.tombstones import Tombstones
from bookie.storage.ledger_directory import LedgerDirectory
from ledger.metadata import LedgerMetadata, LedgerState
from tests.simulation import evicting as simulated
from tests.simulation.mutations.mutation import Patch, mutation

_BUGS = "tests/bookie/autorecovery/test_ancestors_bugs.py::test_"
_CHOSEN = "tests/bookie/collector/test_eviction.py::test_"


def _surplus(patch: Patch, is_surplus: object) -> None:
    """For whoever asks by that name."""
    for module in (evictor, simulated):
        patch.set(module, "is_surplus", is_surplus)


@mutation("decision 66")
def evicts_what_only_its_last_fragment_does_not_name(patch: Patch) -> None:
    def is_surplus(metadata: LedgerMetadata | None, bookie: str) -> bool:
        if metadata is None or metadata.state is not LedgerState.CLOSED:
            return False
        return bookie not in metadata.last_fragment.bookies

    _surplus(patch, is_surplus)


@mutation("decision 66")
def evicts_copies_of_ledgers_that_are_not_closed(patch: Patch) -> None:
    def is_surplus(metadata: LedgerMetadata | None, bookie: str) -> bool:
        return metadata is not None and all(bookie not in f.bookies for f in metadata.fragments)

    _surplus(patch, is_surplus)


@mutation("decision 66")
def forgets_the_fence_of_what_it_evicts(patch: Patch) -> None:
    honest = Tombstones.__contains__

    def contains(self: Tombstones, ledger_id: int) -> bool:
        return "fences" not in self._path and honest(self, ledger_id)

    patch.set(Tombstones, "__contains__", contains)


@mutation("#4668", drawn=False, test=_BUGS + "4668_a_bookie_takes_back_what_it_has_evicted")
def evicts_with_a_tombstone(patch: Patch) -> None:
    honest = LedgerDirectory.evict

    def evict(self: LedgerDirectory, ledger_ids: list[int], forget: object) -> None:
        honest(self, ledger_ids, forget)  # type: ignore[arg-type]
        self.tombstones.add(ledger_ids)

    patch.set(LedgerDirectory, "evict", evict)


@mutation(
    "decision 66",
    drawn=False,
    test=_CHOSEN + "what_was_seen_once_is_chosen_an_hour_later_and_not_before",
)
def evicts_without_asking_twice(patch: Patch) -> None:
    honest = Surplus.looked

    def looked(self: Surplus, surplus: object, _now: float) -> None:
        honest(self, surplus, float("-inf"))  # type: ignore[arg-type]

    patch.set(Surplus, "looked", looked)
