"""Checks the invariants of repair, of all that happened in a step."""

from collections.abc import Callable

from tests.simulation.repair.invariants import (
    bounds_are_above_what_was_acknowledged,
    copies_are_what_was_sent,
    forgotten_bookies_are_named_by_nobody,
    marks_are_not_lost,
    moves_change_one_place,
    nothing_unsettled_is_copied,
    only_what_lacks_is_copied,
    only_who_was_away_is_marked_as_lost,
    recorded_members_hold_their_entries,
    retired_names_never_serve,
    writers_are_fenced_only_after_grace_and_with_a_spare,
)
from tests.simulation.repair.oracle import Happening, Repairs
from tests.simulation.stepping import InvariantError

INVARIANTS: dict[str, Callable[[Repairs, Happening], str | None]] = {
    module.__name__.rpartition(".")[2]: module.broken
    for module in (
        moves_change_one_place,
        recorded_members_hold_their_entries,
        nothing_unsettled_is_copied,
        copies_are_what_was_sent,
        writers_are_fenced_only_after_grace_and_with_a_spare,
        marks_are_not_lost,
        retired_names_never_serve,
        only_who_was_away_is_marked_as_lost,
        only_what_lacks_is_copied,
        forgotten_bookies_are_named_by_nobody,
        bounds_are_above_what_was_acknowledged,
    )
}


def check_repairs(repairs: Repairs) -> None:
    """Check what happened since the last time. Raises `InvariantError`."""
    if not repairs.happened:
        return
    happened, repairs.happened = repairs.happened, []
    for what in happened:
        for name, broken in INVARIANTS.items():
            story = broken(repairs, what)
            if story is not None:
                raise InvariantError(name, type(what).__name__.lower(), story)
