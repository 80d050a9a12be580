"""Old bugs about ensemble changes, as stories: #1591/#1592, #1857/#4651, #4097/#4194,
#3005/#3041, #4459/#4261, BK-584, BK-112, BK-826, #1390.

BK-584 and BK-112 need somebody who re-replicates; that is a later part, so `world.move` does by
hand what it will do: copy, then compare-and-swap one bookie of a finished fragment.
"""

from ledger.protocol import writer, writer_events
from tests.simulation.scenarios.post import Kind
from tests.simulation.scenarios.world import MOVED, World


def test_1591_nothing_is_delivered_while_the_compare_and_swap_is_under_way() -> None:
    world = World(bookies=4)
    writing = world.writer()
    broken = world.hold_answers(Kind.ADD, of="b3")
    answers = world.hold_answers(Kind.ADD)
    writing.append("a", "b")  # all have stored both, the answers are on the way
    swap = world.hold(Kind.CAS)
    broken.time_out()

    answers.release()

    assert writing.acknowledged == []
    swap.release()
    assert writing.acknowledged == [0, 1]
    assert world.fragments == {0: "b1 b2 b4"}


def test_1591_nothing_is_delivered_while_the_outcome_of_the_swap_is_unknown() -> None:
    """The swap was done, its answer was lost: the writer must read before it goes on."""
    world = World(bookies=4)
    writing = world.writer()
    broken = world.hold_answers(Kind.ADD, of="b3")
    answers = world.hold_answers(Kind.ADD)
    writing.append("a")
    outcome = world.hold_answers(Kind.CAS)
    broken.time_out()
    outcome.time_out()

    answers.release()

    assert writing.acknowledged == []
    world.pass_time(1.0)  # it reads, and recognises its own success
    assert writing.acknowledged == [0]
    assert world.fragments == {0: "b1 b2 b4"}


def test_1857_an_answer_of_a_replaced_bookie_that_comes_after_the_swap_does_not_count() -> None:
    """b3 stored entry 0 and says so late; meanwhile it failed for entry 1, and b4 replaced it."""
    world = World(bookies=5)
    writing = world.writer()
    world.hold(Kind.ADD, at="b2")
    late = world.hold_answers(Kind.ADD, of="b3")
    writing.append("a")
    broken, new = world.hold(Kind.ADD, at="b3"), world.hold(Kind.ADD, at="b4")
    writing.append("b")
    broken.time_out()
    assert world.fragments == {0: "b1 b2 b4"}

    late.release()

    assert writing.acknowledged == []  # b1 has it; b3 too, but b3 is not of the ensemble
    new.release()
    assert writing.acknowledged == [0, 1]


def test_4097_the_new_fragment_begins_right_behind_what_was_delivered() -> None:
    """Three entries, each at another stage when b3 fails; the middle one is acknowledged."""
    world = World(bookies=4)
    writing = world.writer()
    writing.append("a", "b")
    slow = world.hold(Kind.ADD, at="b2")
    writing.append("c")  # b1 and b3 are enough
    broken = world.hold(Kind.ADD, at="b3")
    writing.append("d")  # b1 alone has it
    swap = world.hold(Kind.CAS)
    broken.time_out()

    writing.append("e")
    swap.release()
    slow.release()

    assert world.fragments == {0: "b1 b2 b3", 3: "b1 b2 b4"}
    assert writing.acknowledged == [0, 1, 2, 3, 4]


def test_3005_all_pending_entries_lose_the_replaced_bookie_before_any_is_delivered() -> None:
    """b3 had acknowledged both entries. The first must not lend its place to the second."""
    world = World(bookies=4)
    writing = world.writer()
    first = world.hold_answers(Kind.ADD, of="b1")
    world.hold(Kind.ADD, at="b2")
    writing.append("a", "b")  # b3's answers count, b1's are on the way
    new = world.hold(Kind.ADD, at="b4")
    swap = world.hold(Kind.CAS)
    world.crash("b3")
    writing.append("c")  # finds out that b3 is gone
    first.release()

    swap.release()

    assert world.fragments == {0: "b1 b2 b4"}
    assert writing.acknowledged == []  # each has b1 alone now
    new.release_one()
    assert writing.acknowledged == [0, 1, 2]


def test_4459_a_bookie_that_failed_came_back_and_is_picked_again_gets_its_entries() -> None:
    """b3 -> b4 -> b3: between old and new ensemble there is no difference to re-send by."""
    world = World(bookies=4)
    writing = world.writer()
    world.hold(Kind.ADD, at="b2")
    world.crash("b3")
    swaps = world.hold(Kind.CAS)
    writing.append("a")
    world.restart("b3")
    world.crash("b4")  # fails in the change that brings it in

    swaps.release()

    assert world.fragments == {0: "b1 b2 b3"}
    assert writing.acknowledged == [0]
    assert world.bookie("b3").entries(world.ledger_id) == [0]


def test_4261_without_any_replacement_the_writer_goes_on_and_tries_again() -> None:
    """Two of three are enough for Qa; the third comes back and is used again (rule 27)."""
    world = World(bookies=3)
    writing = world.writer()
    world.crash("b3")
    writing.append("a")
    assert writing.acknowledged == [0]

    world.restart("b3")
    world.pass_time(writer.DEGRADED_RETRY_S + 1)
    writing.append("b")

    assert writing.acknowledged == [0, 1]
    assert world.bookie("b3").entries(world.ledger_id) == [1]
    # Behind what b3 lacks another fragment begins, so that repair can give it that.
    assert world.fragments == {0: "b1 b2 b3", 2: "b1 b2 b3"}


def test_bk_826_acks_beyond_the_quorum_are_kept_for_the_change_that_takes_one_away() -> None:
    """Qw = 3, Qa = 2: all three acknowledge entry 1, which waits for entry 0. Then b1 goes."""
    world = World(bookies=4)
    writing = world.writer()
    firsts = [world.hold_answers(Kind.ADD, of=name) for name in ("b1", "b2", "b3")]
    writing.append("a")
    writing.append("b")
    for answers in firsts:
        answers.messages.append(answers.messages.pop(0))  # the answers to "b" overtake
        answers.release_one()
    assert writing.acknowledged == []
    new = world.hold(Kind.ADD, at="b4")

    firsts[0].time_out()  # b1 failed for entry 0
    firsts[1].release()
    firsts[2].release()

    assert world.fragments == {0: "b4 b2 b3"}
    assert writing.acknowledged == [0, 1]  # b4 need not be waited for
    assert len(new) == 1


def test_1390_a_write_error_that_comes_after_the_acknowledgement_still_changes_the_ensemble() -> (
    None
):
    world = World(bookies=4)
    writing = world.writer()
    slow = world.hold(Kind.ADD, at="b3")
    writing.append("a")
    assert writing.acknowledged == [0]

    slow.time_out()

    assert world.fragments == {0: "b1 b2 b3", 1: "b1 b2 b4"}
    writing.append("b")
    assert writing.acknowledged == [0, 1]


def test_1390_errors_of_two_bookies_in_one_change_are_both_met() -> None:
    world = World(bookies=5)
    writing = world.writer()
    swap = world.hold(Kind.CAS)
    world.crash("b3")
    writing.append("a")
    world.crash("b2")
    writing.append("b")

    swap.release()

    assert world.fragments == {0: "b1 b5 b4"}
    assert writing.acknowledged == [0, 1]


def test_bk_584_an_ensemble_change_keeps_what_re_replication_did_meanwhile() -> None:
    """Both edit the ledger's fragments. The writer's swap conflicts, and keeps both edits."""
    world = World(bookies=6, forgive=MOVED)
    writing = world.writer()
    writing.append("a")
    world.crash("b3")
    writing.append("b")
    assert world.fragments == {0: "b1 b2 b3", 1: "b1 b2 b4"}
    writing.append("c")

    swap = world.hold(Kind.CAS)
    world.crash("b4")
    world.retire("b6")
    writing.append("d")
    world.move(range(1), out="b3", into="b6")
    swap.release()

    assert world.fragments == {0: "b1 b2 b6", 1: "b1 b2 b4", 3: "b1 b2 b5"}
    assert writing.acknowledged == [0, 1, 2, 3]


def test_bk_112_re_replication_of_an_open_ledger_does_not_make_its_close_fail() -> None:
    world = World(bookies=5, forgive=MOVED)
    writing = world.writer()
    writing.append("a")
    world.crash("b3")
    writing.append("b")
    world.move(range(1), out="b3", into="b5")

    writing.close()

    assert writing.closed is not None
    assert writing.closed == world.metadata
    assert world.metadata.last_entry == 1
    assert world.fragments == {0: "b1 b2 b5", 1: "b1 b2 b4"}


def test_bk_584_a_writer_whose_ledger_is_in_recovery_changes_nothing() -> None:
    """Its swap loses to IN_RECOVERY, and that is the end of it, even if no bookie is fenced."""
    world = World(bookies=4)
    writing, recovering = world.writer(), world.recoverer()
    writing.append("a")
    world.hold(Kind.FENCE)
    recovering.recover()
    world.crash("b3")

    writing.append("b")

    assert writing.failure is writer_events.WriterFailure.FENCED
    assert world.fragments == {0: "b1 b2 b3"}
