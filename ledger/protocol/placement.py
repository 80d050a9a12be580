"""Choosing bookies for ensembles: a policy port and two policies.

Pure, with the random source as an argument. Every policy promises:
    bookies chosen are different, available, and none that must not be chosen
    None, or fewer replacements, only if there are too few; bookies to *avoid* (quarantined)
    are chosen only as far as there are not enough others
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from ledger.ids import BookieId
from ledger.protocol.racks import rack_score, spread_over_racks
from ledger.quorum import Quorum


@dataclass(frozen=True, slots=True)
class Pool:
    """What there is to choose from."""

    available: tuple[BookieId, ...]
    """Writable bookies, sorted."""
    avoid: Collection[BookieId] = ()
    racks: Mapping[BookieId, str] = field(default_factory=dict)
    """Rack of each bookie that has one, also of those that are not available now. All
    others count as one rack without a name."""
    away: tuple[BookieId, ...] = ()
    """Known bookies that are not there and may come back, sorted; none of *available*."""


class PlacementPolicy(Protocol):
    def ensemble(self, quorum: Quorum, pool: Pool, random: Random) -> tuple[BookieId, ...] | None:
        """Return the ordered ensemble of a new ledger, or None if there are too few bookies."""

    def replacements(
        self,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        indexes: Sequence[int],
        pool: Pool,
        random: Random,
        *,
        exclude: Collection[BookieId],
    ) -> tuple[tuple[int, BookieId], ...]:
        """Return a bookie for each of *indexes*, for the first of them if there are too few.

        None of *exclude*, nor of *ensemble*."""

    def better(
        self,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        pool: Pool,
        random: Random,
        *,
        exclude: Collection[BookieId],
    ) -> tuple[tuple[int, BookieId], ...]:
        """Return which bookies to exchange so that *ensemble* is placed as it should be, by index;
        nothing if it is, or cannot be. None of *exclude*, and none to avoid: it is not urgent."""


class RandomPlacement:
    """Any bookie anywhere."""

    def ensemble(self, quorum: Quorum, pool: Pool, random: Random) -> tuple[BookieId, ...] | None:
        return choose_ensemble(quorum.ensemble, pool.available, random, avoid=pool.avoid)

    def replacements(
        self,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        indexes: Sequence[int],
        pool: Pool,
        random: Random,
        *,
        exclude: Collection[BookieId],
    ) -> tuple[tuple[int, BookieId], ...]:
        assert len(ensemble) == quorum.ensemble
        chosen = _sample(len(indexes), pool, random, exclude=(*ensemble, *exclude))
        return tuple(zip(indexes, chosen, strict=False))

    def better(
        self,
        quorum: Quorum,  # noqa: ARG002 - every ensemble is as good as any other
        ensemble: Sequence[BookieId],  # noqa: ARG002
        pool: Pool,  # noqa: ARG002
        random: Random,  # noqa: ARG002
        *,
        exclude: Collection[BookieId],  # noqa: ARG002
    ) -> tuple[tuple[int, BookieId], ...]:
        return ()


class RackAwarePlacement:
    """Spreads every write set over as many racks as it can; else like `RandomPlacement`.

    Where no bookie was given a rack, or all the same, this is the random policy."""

    def ensemble(self, quorum: Quorum, pool: Pool, random: Random) -> tuple[BookieId, ...] | None:
        if len(pool.available) < quorum.ensemble:
            return None
        indexes = range(quorum.ensemble)
        placed = self._place(quorum, {}, indexes, _usable(len(indexes), pool, random), pool, random)
        return tuple(bookie for _, bookie in placed)

    def replacements(
        self,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        indexes: Sequence[int],
        pool: Pool,
        random: Random,
        *,
        exclude: Collection[BookieId],
    ) -> tuple[tuple[int, BookieId], ...]:
        usable = _usable(len(indexes), pool, random, exclude=(*ensemble, *exclude))
        indexes = indexes[: len(usable)]
        staying = {
            index: pool.racks.get(bookie, "")
            for index, bookie in enumerate(ensemble)
            if index not in indexes
        }
        return self._place(quorum, staying, indexes, usable, pool, random)

    def better(
        self,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        pool: Pool,
        random: Random,
        *,
        exclude: Collection[BookieId],
    ) -> tuple[tuple[int, BookieId], ...]:
        """Of two ensembles the one is better whose write sets span more racks (`rack_score`).

        One exchange after the other, each the best that there is: few copies move."""
        preferred, _ = _split(pool, (*ensemble, *exclude))
        spare: dict[str, list[BookieId]] = {}
        for bookie in random.sample(preferred, len(preferred)):
            spare.setdefault(pool.racks.get(bookie, ""), []).append(bookie)
        racks = {index: pool.racks.get(bookie, "") for index, bookie in enumerate(ensemble)}
        exchanged: dict[int, BookieId] = {}
        for _ in ensemble:
            options = [
                (rack_score(quorum, racks | {index: rack}), index, rack)
                for index in racks
                if index not in exchanged
                for rack in spare
                if spare[rack]
            ]
            best = max(options, key=lambda option: option[0], default=None)
            if best is None or best[0] <= rack_score(quorum, racks):
                break
            _, index, rack = best
            exchanged[index], racks[index] = spare[rack].pop(), rack
        return tuple(sorted(exchanged.items()))

    def _place(
        self,
        quorum: Quorum,
        staying: Mapping[int, str],
        indexes: Sequence[int],
        usable: Sequence[BookieId],
        pool: Pool,
        random: Random,
    ) -> tuple[tuple[int, BookieId], ...]:
        by_rack: dict[str, list[BookieId]] = {}
        for bookie in random.sample(usable, len(usable)):
            by_rack.setdefault(pool.racks.get(bookie, ""), []).append(bookie)
        # Larger racks earlier, in proportion: their bookies should not carry less than others.
        weights = {rack: random.random() ** (1 / len(by_rack[rack])) for rack in sorted(by_rack)}
        order = sorted(by_rack, key=lambda rack: (-weights[rack], rack))
        stock = {rack: len(by_rack[rack]) for rack in order}
        racks = spread_over_racks(quorum, staying, indexes, stock)
        return tuple(
            (index, by_rack[rack].pop()) for index, rack in zip(indexes, racks, strict=True)
        )


def choose_ensemble(
    size: int,
    available: Sequence[BookieId],
    random: Random,
    *,
    exclude: Collection[BookieId] = (),
    avoid: Collection[BookieId] = (),
) -> tuple[BookieId, ...] | None:
    """Return *size* different bookies of *available*, or None if there are too few.

    Never one of *exclude*; one of *avoid* (bookies that failed a short while ago) only if
    there are not enough others."""
    chosen = _sample(size, Pool(tuple(available), avoid), random, exclude=exclude)
    return chosen if len(chosen) == size else None


def _sample(
    size: int, pool: Pool, random: Random, *, exclude: Collection[BookieId] = ()
) -> tuple[BookieId, ...]:
    """Return up to *size* bookies in random order."""
    preferred, others = _split(pool, exclude)
    chosen = random.sample(preferred, min(size, len(preferred)))
    chosen += random.sample(others, min(size - len(chosen), len(others)))
    return tuple(chosen)


def _usable(
    size: int, pool: Pool, random: Random, *, exclude: Collection[BookieId] = ()
) -> list[BookieId]:
    """Return the bookies to choose *size* from: those to avoid only as far as needed."""
    preferred, others = _split(pool, exclude)
    missing = min(max(0, size - len(preferred)), len(others))
    return preferred + random.sample(others, missing)


def _split(pool: Pool, exclude: Collection[BookieId]) -> tuple[list[BookieId], list[BookieId]]:
    allowed = [bookie for bookie in pool.available if bookie not in exclude]
    preferred = [bookie for bookie in allowed if bookie not in pool.avoid]
    return preferred, [bookie for bookie in allowed if bookie in pool.avoid]
