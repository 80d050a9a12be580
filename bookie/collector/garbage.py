"""Pure: which ledgers of a bookie are garbage (rule 68).

A ledger may be deleted here only if all of this is so:
    it was here before the listing of the metadata store began, so it cannot be one that is made
        meanwhile
    the listing came to its end without an error, and does not name it
    a read of its own, after that, says that it does not exist
Whatever else happens, nothing at all is deleted (#870, #865, BK-955, BK-956, #4731). The one who
asks has to bring answers that are no older than the question.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice

CANDIDATES_MAX = 10_000
"""Ledgers that one collection verifies and deletes, at most; the next one goes on."""


def candidates(snapshot: Iterable[int], listed: Iterable[int]) -> tuple[int, ...]:
    """Return the ledgers that are to be read, each by itself.

    Requires that *snapshot* was taken before the listing began, and *listed* is all of it."""
    named = dict.fromkeys(listed)
    return tuple(islice((one for one in snapshot if one not in named), CANDIDATES_MAX))


def verified(chosen: Sequence[int], absent: Collection[int]) -> tuple[int, ...]:
    """Return what to delete of *chosen*: what a read said does not exist."""
    gone = dict.fromkeys(absent)
    assert gone.keys() <= dict.fromkeys(chosen).keys(), "only candidates are asked for"
    return tuple(one for one in chosen if one in gone)
