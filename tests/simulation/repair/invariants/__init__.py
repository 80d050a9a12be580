"""Invariants of repair, one per file.

| file | says |
|---|---|
| recorded_members_hold_their_entries | who is swapped in has every entry of its place, durably |
| rest_is_fully_replicated | without faults: Qw right copies of every entry, no mark, no lock |
| moves_change_one_place | a swap changes members of one settled fragment, and nothing else |
| copies_are_what_was_sent | what a worker sends is what the writer sent, byte for byte |
| nothing_unsettled_is_copied | only what is in the ledger for ever, and only what a place holds |
| writers_are_fenced_only_after_grace_and_with_a_spare | else a fence costs a writer, for nothing |
| marks_are_not_lost | nobody deletes a mark that says more than was looked at |
| retired_names_never_serve | no start is counted for a name whose data were given up |
| only_who_was_away_is_marked_as_lost | liveness is read after the ledgers |
| only_what_lacks_is_copied | nothing goes to a bookie that was seen to have it |
| forgotten_bookies_are_named_by_nobody | a name is forgotten last |

Each but `rest_is_fully_replicated` has `broken(repairs, what) -> str | None`: None, or a sentence
that says what is wrong with *what* just happened. `check` calls them after every step. The
invariants of the ledger scenario hold beside them.
"""

from typing import Final

from tests.simulation.kernel import invariants
from tests.simulation.repair.oracle import Repairs

AT_THE_END: Final = "rest_is_fully_replicated"
MODULES: Final = invariants.modules_of(__name__, __path__)
INVARIANTS: Final = {name: each.broken for name, each in MODULES.items() if name != AT_THE_END}


def check(repairs: Repairs) -> None:
    """Check what happened since the last time. Raises `InvariantError`."""
    if not repairs.happened:
        return
    happened, repairs.happened = repairs.happened, []
    for what in happened:
        invariants.check(INVARIANTS, type(what).__name__.lower(), repairs, what)
