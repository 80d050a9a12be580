"""Bugs of what a client chooses: bookies for ensembles, ids for ledgers."""

from collections.abc import Collection
from typing import Any

from ledger.errors import DamagedMetadata, NodeExists, NoSuchNode
from ledger.ids import BookieId, LedgerId
from ledger.manager import LedgerStore
from ledger.manager import ids as ids_module
from ledger.manager.ids import BLOCK_SIZE, ID_BLOCK_PATH, BlockIds
from ledger.manager.layout import LEDGERS
from ledger.metadata import LedgerMetadata
from ledger.metastore.port import MetadataStore
from ledger.protocol import placement
from ledger.protocol.placement import Pool, RackAwarePlacement, RandomPlacement
from tests.simulation.mutations.mutation import Patch, mutation

Split = tuple[list[BookieId], list[BookieId]]


@mutation("decision 17")
def never_picks_a_quarantined_bookie(patch: Patch) -> None:
    """Also if there is no other: a burst of errors then stops a healthy cluster."""
    honest = placement._split

    def split(pool: Pool, exclude: Collection[BookieId]) -> Split:
        return honest(pool, exclude)[0], []

    patch.set(placement, "_split", split)


@mutation("decision 17")
def picks_a_quarantined_bookie_like_any_other(patch: Patch) -> None:
    honest = placement._split

    def split(pool: Pool, exclude: Collection[BookieId]) -> Split:
        preferred, others = honest(pool, exclude)
        return preferred + others, []

    patch.set(placement, "_split", split)


@mutation("rule 24")
def picks_a_bookie_that_failed_just_now(patch: Patch) -> None:
    honest = placement._split

    def split(pool: Pool, _exclude: Collection[BookieId]) -> Split:
        return honest(pool, ())

    patch.set(placement, "_split", split)


@mutation("rule 27")
def replaces_all_that_failed_or_none(patch: Patch) -> None:
    """With fewer spares than failures the ensemble stays as small as it is."""
    for policy in (RandomPlacement, RackAwarePlacement):
        _all_or_none(patch, policy)


def _all_or_none(patch: Patch, policy: type[Any]) -> None:
    honest = policy.replacements

    def replacements(
        self: object,
        quorum: object,
        ensemble: object,
        indexes: Collection[int],
        *rest: Any,
        **more: Any,
    ) -> tuple[tuple[int, BookieId], ...]:
        chosen: tuple[tuple[int, BookieId], ...] = honest(
            self, quorum, ensemble, indexes, *rest, **more
        )
        return chosen if len(chosen) == len(indexes) else ()

    patch.set(policy, "replacements", replacements)


def _takes_blocks_unasked(patch: Patch) -> None:
    async def take_block(self: BlockIds) -> int:
        try:
            start = ids_module._decode((await self._store.get(ID_BLOCK_PATH)).value)
        except NoSuchNode:
            await ids_module.make_counter(self._store)
            start = 0
        await self._store.set(ID_BLOCK_PATH, ids_module._encode(start + BLOCK_SIZE))
        return start

    patch.set(BlockIds, "_take_block", take_block)


@mutation("rule 6")
def takes_ids_without_compare_and_swap(patch: Patch) -> None:
    _takes_blocks_unasked(patch)


@mutation("rule 3")
def takes_any_ledger_under_its_id_for_its_own(patch: Patch) -> None:
    """Harmless as long as ids are unique, so it comes with ids that are not."""
    honest = LedgerStore.create

    async def create(self: LedgerStore, metadata: LedgerMetadata) -> LedgerId:
        taken: list[LedgerId] = []
        ids = self._ids

        class Noted:
            async def take(self) -> LedgerId:
                taken.append(await ids.take())
                return taken[-1]

        self._ids = Noted()  # type: ignore[assignment]
        try:
            return await honest(self, metadata)
        except NodeExists:
            return taken[-1]
        finally:
            self._ids = ids

    _takes_blocks_unasked(patch)
    patch.set(LedgerStore, "create", create)


@mutation("own bug, rule 6")
def takes_a_counter_made_just_now_for_a_lost_one(patch: Patch) -> None:
    """Two clients create the first ledgers of a namespace; one of them refuses."""

    async def make_counter(store: MetadataStore) -> None:
        if await store.children(LEDGERS):
            raise DamagedMetadata(ID_BLOCK_PATH, "it is missing, but there are ledgers")
        try:
            await store.create(ID_BLOCK_PATH, ids_module._encode(0))
        except NodeExists:
            return

    patch.set(ids_module, "make_counter", make_counter)
