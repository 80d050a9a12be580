"""Choosing bookies for ensembles: pure, with the random source as an argument."""

from collections.abc import Collection, Sequence
from random import Random

from ledger.ids import BookieId


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
    allowed = [bookie for bookie in available if bookie not in exclude]
    preferred = [bookie for bookie in allowed if bookie not in avoid]
    others = [bookie for bookie in allowed if bookie in avoid]
    if len(allowed) < size:
        return None
    chosen = random.sample(preferred, min(size, len(preferred)))
    chosen += random.sample(others, size - len(chosen))
    return tuple(chosen)
