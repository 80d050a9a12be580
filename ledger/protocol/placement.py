"""Choosing bookies for ensembles: a policy port, two policies, the ensemble for when too few
bookies are there, and the quarantine of bookies that failed of late.

Pure, with the random source as an argument. Every policy promises:
    bookies chosen are different, available, and none that must not be chosen
    None, or fewer replacements, only if there are too few; bookies to *avoid* (quarantined)
    are chosen only as far as there are not enough others

With racks, what counts is how many racks the write sets span: first that of the worst write set,
since the loss of a rack takes the most from it, then the sum over all. A greedy descent finds the
best for nearly every cluster; the search goes on only while something better is possible.

A degraded ensemble names bookies which are away. What is promised of it:
    every bookie that is there and not needed elsewhere is named: as few are away as possible
    of every write set so many bookies are there that its entries can be acknowledged (Qa), and
        recovered (Qw - Qa + 1), without the others; or there is no such ensemble
    a bookie that is away is known and may come back; nobody is named twice

Why naming one that is away is safe: the arithmetic of quorums never asks who is there, only who
has stored, fenced or denied what. One that has answered nothing counts for nothing, exactly as one
that dies before the first entry. Why those that are there must be enough for a recovery, too: who
is away may never come back, and a takeover must not depend on it (docs/decisions.md).

In quarantine each bookie has a count of errors that halves every `half_life_s`. From `errors_min`
on it is quarantined, the longer the higher its count: a bookie that restarts is avoided for half a
minute, one that keeps failing for half an hour. Errors in one burst count once, because all that
was under way to a bookie fails together. At most `bookies_max` bookies are remembered, none is
quarantined for longer than `quarantine_s_max` after its last error.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from ledger.ids import BookieId
from ledger.quorum import Quorum, all_covered, all_reach_ack_quorum, write_set
from ledger.requests import Status

ERRORS: Final = frozenset({Status.UNREACHABLE, Status.IO_ERROR, Status.DAMAGED, Status.READ_ONLY})
"""What speaks against a bookie. Refusals that are the protocol's own do not, nor does being
busy, which passes by itself."""
_FORGOTTEN: Final = 0.01
STEPS_MAX: Final = 2000
"""Assignments that are tried at most; beyond, the best found so far is taken."""
Score = tuple[int, int]
"""Racks of the worst write set, racks of all write sets together."""
_NOBODY = BookieId("")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineConfig:
    errors_min: float = 1.0
    """Decayed errors from which on a bookie is quarantined."""
    half_life_s: float = 60.0
    """After how long an error counts half."""
    quarantine_s: float = 30.0
    """How long at *errors_min*; doubles with each error more."""
    quarantine_s_max: float = 1800.0
    burst_s: float = 0.5
    """Errors of one bookie within this count once."""
    bookies_max: int = 1024

    def __post_init__(self) -> None:
        assert self.errors_min > 0
        assert self.half_life_s > 0
        assert 0 <= self.quarantine_s <= self.quarantine_s_max
        assert self.bookies_max > 0


@dataclass(slots=True)
class _Record:
    count: float
    counted_at: float
    until: float


class Quarantine:
    def __init__(self, config: QuarantineConfig | None = None) -> None:
        self._config = config or QuarantineConfig()
        self._records: dict[BookieId, _Record] = {}

    def reported(self, bookie: BookieId, status: Status, *, now: float) -> None:
        """Take note that *bookie* answered *status*."""
        if status not in ERRORS:
            return
        record = self._records.get(bookie)
        if record is None:
            self._make_room(now)
            record = self._records[bookie] = _Record(0.0, now, now)
        elif now - record.counted_at < self._config.burst_s:
            return
        record.count = self._decayed(record, now) + 1
        record.counted_at = now
        config = self._config
        if record.count >= config.errors_min:
            doublings = min(record.count - config.errors_min, 64.0)
            length_s = min(config.quarantine_s * 2.0**doublings, config.quarantine_s_max)
            record.until = max(record.until, now + length_s)

    def quarantined(self, *, now: float) -> tuple[BookieId, ...]:
        """Return the bookies that should be picked only if there are no others, sorted."""
        return tuple(sorted(b for b, record in self._records.items() if record.until > now))

    def _decayed(self, record: _Record, now: float) -> float:
        halvings = max(0.0, now - record.counted_at) / self._config.half_life_s
        return float(record.count * 0.5**halvings)

    def _make_room(self, now: float) -> None:
        """Forget who is as good as new; if all are remembered for a reason, the least."""
        if len(self._records) < self._config.bookies_max:
            return
        self._records = {
            bookie: record
            for bookie, record in self._records.items()
            if record.until > now or self._decayed(record, now) > _FORGOTTEN
        }
        if len(self._records) >= self._config.bookies_max:
            least = min(self._records, key=lambda bookie: (self._records[bookie].until, bookie))
            del self._records[least]


def spread_over_racks(
    quorum: Quorum, staying: Mapping[int, str], indexes: Sequence[int], stock: Mapping[str, int]
) -> tuple[str, ...]:
    """Return a rack for each of *indexes*, where *staying* are the racks of other indexes.

    *stock* says how many bookies each rack has to give, at least len(indexes) in all; where
    racks are equally good the earlier one is taken. An index that is neither staying nor to
    be given a rack counts for none."""
    search = _Search(quorum, staying, indexes, stock)
    search.descend(0)
    assert search.best is not None, "the stock is too small"
    return search.best


def rack_score(quorum: Quorum, racks: Mapping[int, str]) -> Score:
    """Return how well *racks*, by index, spreads the write sets."""
    spans = [
        len({racks[index] for index in write_set(residue, quorum) if index in racks})
        for residue in range(quorum.ensemble)
    ]
    return min(spans), sum(spans)


class _Search:
    def __init__(
        self,
        quorum: Quorum,
        staying: Mapping[int, str],
        indexes: Sequence[int],
        stock: Mapping[str, int],
    ) -> None:
        self._quorum = quorum
        self._racks = dict(staying)
        self._indexes = indexes
        self._stock = dict(stock)
        self._limit = self._possible()
        self._steps = 0
        self._score: Score = (-1, -1)
        self.best: tuple[str, ...] | None = None

    def descend(self, depth: int) -> None:
        """Try racks for the index at *depth* and those after it, the best first."""
        if depth == len(self._indexes):
            score = rack_score(self._quorum, self._racks)
            if self.best is None or score > self._score:
                self._score = score
                self.best = tuple(self._racks[index] for index in self._indexes)
            return
        index = self._indexes[depth]
        for rack in self._options(index):
            if self._score == self._limit or (self.best and self._steps >= STEPS_MAX):
                return
            self._steps += 1
            self._stock[rack] -= 1
            self._racks[index] = rack
            self.descend(depth + 1)
            del self._racks[index]
            self._stock[rack] += 1

    def _options(self, index: int) -> list[str]:
        """Return racks with bookies left, those with the fewest near *index* first."""
        crowding = dict.fromkeys((rack for rack, left in self._stock.items() if left), 0)
        for other, rack in self._racks.items():
            if rack in crowding:
                crowding[rack] += self._write_sets_shared(index, other)
        return sorted(crowding, key=lambda rack: crowding[rack])

    def _write_sets_shared(self, one: int, other: int) -> int:
        size = self._quorum.ensemble
        apart = (one - other) % size
        write = self._quorum.write
        return max(0, write - apart) + max(0, write - (size - apart))

    def _possible(self) -> Score:
        """Return a score that no assignment exceeds."""
        spans = []
        for residue in range(self._quorum.ensemble):
            indexes = write_set(residue, self._quorum)
            there = {self._racks[index] for index in indexes if index in self._racks}
            free = sum(1 for index in indexes if index in self._indexes)
            new = sum(1 for rack in self._stock if rack not in there)
            spans.append(len(there) + min(free, new))
        return min(spans), sum(spans)


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


def degraded_ensemble(
    policy: PlacementPolicy, quorum: Quorum, pool: Pool, random: Random
) -> tuple[BookieId, ...] | None:
    """Return an ensemble with as few of `Pool.away` as can be, None if it cannot be had.

    For when `PlacementPolicy.ensemble` has none. *policy* places both kinds, so that racks are kept
    apart as far as those allow that are there."""
    missing = quorum.ensemble - len(pool.available)
    if missing <= 0 or missing > len(pool.away):
        return None
    away = away_indexes(quorum, missing, random)
    there = tuple(index for index in range(quorum.ensemble) if index not in away)
    if not (all_reach_ack_quorum(there, quorum) and all_covered(there, quorum)):
        return None
    ensemble = [_NOBODY] * quorum.ensemble
    absent = Pool(pool.away, racks=pool.racks)
    for indexes, source in ((there, pool), (away, absent)):
        placed = policy.replacements(quorum, ensemble, indexes, source, random, exclude=())
        for index, bookie in placed:
            ensemble[index] = bookie
    return None if _NOBODY in ensemble else tuple(ensemble)


def away_indexes(quorum: Quorum, count: int, random: Random) -> tuple[int, ...]:
    """Return *count* indexes of an ensemble, as far apart as can be, beginning anywhere.

    So no write set, which is a run of neighbours, has more of them than another one by more than
    one: if these leave a write set too few, any others do."""
    begin = random.randrange(quorum.ensemble)
    apart = (begin + number * quorum.ensemble // count for number in range(count))
    return tuple(sorted(index % quorum.ensemble for index in apart))
