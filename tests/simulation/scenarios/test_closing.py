"""Old bugs about the end of a writer, as stories: BK-795, #1712/#1889.

The second half of #1712, two calls of `close` on one handle, is with the handle's tests; here
is what the machine under it does.
"""

from itertools import permutations

import pytest

from ledger.metadata import LedgerState
from ledger.protocol.writer_events import WriterFailure
from tests.simulation.scenarios.post import Kind
from tests.simulation.scenarios.world import World

BOOKIES = ("b1", "b2", "b3")


@pytest.mark.parametrize("order", list(permutations(BOOKIES)))
@pytest.mark.parametrize("lost", [(), ("b1",), ("b2",), ("b3",), ("b1", "b3"), BOOKIES])
def test_bk_795_every_pending_add_ends_when_the_writer_is_fenced_whatever_else_fails(
    order: tuple[str, ...], lost: tuple[str, ...]
) -> None:
    """Each bookie answers "fenced" or not at all, in each order; no add is left waiting."""
    world = World(bookies=3)
    writing, recovering = world.writer(), world.recoverer()
    recovering.recover()
    answers = {name: world.hold_answers(Kind.ADD, of=name) for name in BOOKIES}

    writing.append("a", "b")
    for name in order:
        if name in lost:
            answers[name].lose()
        else:
            answers[name].release()

    assert writing.pending == []
    assert writing.acknowledged == []
    assert writing.failure in {
        WriterFailure.FENCED,
        WriterFailure.NOT_ENOUGH_BOOKIES,
    }
    assert (writing.failure is WriterFailure.FENCED) == (set(order) != set(lost)) or len(lost) > 1


def test_1712_a_second_close_waits_for_the_first_and_ends_with_it() -> None:
    world = World()
    writing = world.writer()
    writing.append("a")
    swap = world.hold(Kind.CAS)

    writing.close()
    writing.close()

    assert writing.closed is None
    assert len(swap) == 1
    swap.release()
    assert writing.closed == world.metadata
    writing.close()
    assert world.metadata.last_entry == 0


def test_1889_close_waits_for_the_adds_before_it() -> None:
    world = World()
    writing = world.writer()
    slow = world.hold(Kind.ADD)
    writing.append("a", "b")

    writing.close()

    assert world.metadata.state is LedgerState.OPEN
    slow.release()
    assert writing.acknowledged == [0, 1]
    assert world.metadata.last_entry == 1


def test_1889_a_close_whose_outcome_is_unknown_recognises_its_own_success() -> None:
    world = World()
    writing = world.writer()
    writing.append("a")
    outcome = world.hold_answers(Kind.CAS)

    writing.close()
    outcome.time_out()
    world.pass_time(1.0)

    assert writing.closed == world.metadata


def test_1712_a_close_that_loses_to_a_recovery_with_the_same_end_is_a_success() -> None:
    world = World()
    writing, recovering = world.writer(), world.recoverer()
    writing.append("a")
    swap = world.hold(Kind.CAS, by="writer")
    writing.close()

    recovering.recover()
    swap.release()

    assert recovering.closed_at == 0
    assert writing.closed == world.metadata


def test_1712_a_close_that_meets_a_recovery_under_way_fails_and_changes_nothing() -> None:
    world = World()
    writing, recovering = world.writer(), world.recoverer()
    writing.append("a")
    world.hold(Kind.FENCE)
    recovering.recover()

    writing.close()

    assert writing.failure is WriterFailure.FENCED
    assert world.metadata.state is LedgerState.IN_RECOVERY


def test_a_writer_whose_ledger_is_deleted_learns_so_from_its_close() -> None:
    """Deletion with a living writer is safe: it gets an error, and nothing is re-created."""
    world = World()
    writing = world.writer()
    writing.append("a")
    world.delete_ledger()

    writing.close()

    assert writing.failure is WriterFailure.DELETED
    assert world.tree.exists(world.path(world.ledger_id)) is None
