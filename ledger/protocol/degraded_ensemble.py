"""An ensemble that names bookies which are away, for when too few of them are there.

Pure. What is promised:
    every bookie that is there and not needed elsewhere is named: as few are away as possible
    of every write set so many bookies are there that its entries can be acknowledged (Qa), and
        recovered (Qw - Qa + 1), without the others; or there is no such ensemble
    a bookie that is away is known and may come back; nobody is named twice

Why naming one that is away is safe: the arithmetic of quorums never asks who is there, only who
has stored, fenced or denied what. One that has answered nothing counts for nothing, exactly as one
that dies before the first entry. Why those that are there must be enough for a recovery, too: who
is away may never come back, and a takeover must not depend on it (docs/decisions.md).
"""

from random import Random

from ledger.ids import BookieId
from ledger.protocol.placement import PlacementPolicy, Pool
from ledger.quorum import Quorum, all_covered, all_reach_ack_quorum

_NOBODY = BookieId("")


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
