"""Old bugs about recovery, as stories: #2615, BK-150, BK-355, BK-799 with BK-759/#2612/
#2303/#2333/#1900, BK-742 with #3239/#4039/#2180, #1067, rules 4, 17 and 49.

The exhaustive table of quorum coverage, which BK-759 and its kin want too, is with the quorum
arithmetic; here are the errors that must not count as covered.
"""

import pytest

from ledger.entry import parse_header
from ledger.metadata import LedgerState
from ledger.protocol import recovery_events
from ledger.quorum import Quorum
from tests.simulation.scenarios.post import Kind
from tests.simulation.scenarios.world import World


def test_2615_recovery_never_begins_below_the_last_fragment() -> None:
    """No bookie knows a LAC, there are two fragments, and a bookie fails in recovery."""
    world = World(bookies=5)
    writing, recovering = world.writer(), world.recoverer()
    world.hold(Kind.LAC).lose()
    answers_2 = world.hold_answers(Kind.ADD, of="b2")
    broken = world.hold_answers(Kind.ADD, of="b3")
    writing.append("a", "b", "c")
    answers_2.release_one()
    world.hold_answers(Kind.ADD, of="b4")
    broken.time_out()
    assert writing.acknowledged == [0]
    assert world.fragments == {0: "b1 b2 b3", 1: "b1 b2 b4"}
    writing.die()

    world.retire("b3")
    slow, failing = world.hold(Kind.WRITE_BACK, at="b2"), world.hold(Kind.WRITE_BACK, at="b4")
    recovering.recover()
    failing.time_out()
    slow.release()

    assert recovering.closed_at == 2
    assert world.fragments == {0: "b1 b2 b3", 1: "b1 b2 b5"}
    read = {
        entry for m in world.post.delivered if m.kind is Kind.RECOVERY_READ for entry in m.entries
    }
    assert 0 not in read


def test_bk_150_recovery_without_enough_bookies_never_closes_short() -> None:
    world = World(bookies=3)
    writing, first, second = world.writer(), world.recoverer("r1"), world.recoverer("r2")
    cut = [world.hold(Kind.ADD, at=name) for name in ("b2", "b3")]
    writing.append("a")
    for adds in cut:
        adds.lose()
    writing.die()
    failing = [world.hold(Kind.WRITE_BACK, at=name) for name in ("b2", "b3")]

    first.recover()
    for write_backs in failing:
        write_backs.lose()

    assert first.failure is recovery_events.RecoveryFailure.NOT_ENOUGH_BOOKIES
    assert world.metadata.state is LedgerState.IN_RECOVERY
    for write_backs in failing:
        write_backs.release()
    second.recover()  # they are back
    assert second.closed_at == 0


def test_bk_355_the_no_of_a_bookie_that_recovery_brought_in_is_no_evidence() -> None:
    """Entry 1 is acknowledged by b2 and b3; b1 missed it. b2 is silent. b4 replaces b3, for
    writing only: whatever is still to be read at index 2 is b3's to answer."""
    world = World(bookies=4)
    writing, recovering = world.writer(), world.recoverer()
    recovering.read_bytes_max = 1  # an entry per answer
    world.hold(Kind.LAC).lose()
    answers = world.hold_answers(Kind.ADD)
    writing.append("a")
    world.hold(Kind.ADD, at="b1")
    writing.append("b")
    answers.release()
    assert writing.acknowledged == [0, 1]
    world.hold(Kind.RECOVERY_READ, at="b2")
    slow = world.hold_answers(Kind.RECOVERY_READ, of="b3")
    failing = world.hold(Kind.WRITE_BACK, at="b3")

    recovering.recover()
    failing.time_out()
    assert recovering.closed is None
    slow.release()  # entry 0; now index 2 is asked for entry 1

    assert recovering.closed_at == 1
    assert world.fragments == {0: "b1 b2 b3", 1: "b1 b2 b4"}
    asked = {m.place for m in world.post.delivered if m.kind is Kind.RECOVERY_READ}
    assert "b4" not in asked


@pytest.mark.parametrize("fenced", [("b1", "b2"), ("b1", "b3"), ("b2", "b4"), ("b3", "b4")])
def test_bk_759_two_fences_of_four_leave_a_write_set_that_could_still_acknowledge(
    fenced: tuple[str, str],
) -> None:
    """E, Qw, Qa = 4, 3, 2: a count says Qw - Qa + 1 = 2, but it is 2 of every write set."""
    world = World(bookies=4, quorum=Quorum(4, 3, 2))
    world.writer()
    recovering = world.recoverer()
    for name in world.bookies:
        if name not in fenced:
            world.hold(Kind.FENCE, at=name).lose()
            world.hold(Kind.RECOVERY_READ, at=name).lose()

    recovering.recover()
    world.pass_time(60.0)

    assert recovering.failure is recovery_events.RecoveryFailure.NOT_COVERED
    assert world.metadata.state is LedgerState.IN_RECOVERY


def test_bk_799_errors_do_not_count_as_a_no() -> None:
    """Only b1 says that there is nothing. b2 crashed; b3 fenced, but cannot be read."""
    world = World(bookies=3)
    writing, recovering = world.writer(), world.recoverer()
    world.hold(Kind.LAC).lose()
    world.hold(Kind.ADD, at="b1")
    writing.append("a")
    assert writing.acknowledged == [0]
    world.crash("b2")
    world.hold(Kind.RECOVERY_READ, at="b3").lose()

    recovering.recover()
    world.pass_time(60.0)

    assert recovering.failure is recovery_events.RecoveryFailure.UNDECIDED
    assert world.metadata.state is LedgerState.IN_RECOVERY


def test_bk_742_an_empty_ledger_that_lost_a_bookie_is_closed_as_empty() -> None:
    world = World(bookies=3)
    world.writer()
    recovering = world.recoverer()
    world.crash("b2")

    recovering.recover()

    assert recovering.closed_at == -1
    assert world.metadata.length == 0


def test_bk_742_an_empty_last_fragment_is_no_missing_entry() -> None:
    """The last fragment begins right behind the end. It is readable, and recoverable, as it is."""
    world = World(bookies=4)
    writing, recovering, reading = world.writer(), world.recoverer(), world.reader()
    writing.append("a")
    late = world.hold(Kind.ADD, at="b3")
    writing.append("b")
    late.time_out()
    assert world.fragments == {0: "b1 b2 b3", 2: "b1 b2 b4"}
    world.crash("b4")

    recovering.recover()
    reading.read(0, 100)

    assert recovering.closed_at == 1
    assert world.fragments == {0: "b1 b2 b3", 2: "b1 b2 b4"}
    assert reading.payloads == ["a", "b"]
    reading.read(2, 100)
    assert reading.payloads == []


def test_1067_a_bookie_that_hangs_does_not_hold_up_recovery() -> None:
    """b2 takes every question and never answers; there is not even a time-out."""
    world = World(bookies=3)
    writing, recovering = world.writer(), world.recoverer()
    writing.append("a", "b")
    for kind in (Kind.FENCE, Kind.RECOVERY_READ, Kind.BASE_READ, Kind.WRITE_BACK):
        world.hold_answers(kind, of="b2")

    recovering.recover()

    assert recovering.closed_at == 1


def test_1067_with_qw_equal_to_qa_a_bookie_that_hangs_delays_the_end_by_the_grace_only() -> None:
    """Rule 44: one "no" ends the ledger, but not while another of the write set may say yes."""
    world = World(bookies=3, quorum=Quorum(3, 2, 2))
    writing, recovering = world.writer(), world.recoverer()
    writing.append("a")
    for kind in (Kind.FENCE, Kind.RECOVERY_READ, Kind.BASE_READ, Kind.WRITE_BACK):
        world.hold_answers(kind, of="b2")

    recovering.recover()
    assert recovering.closed is None
    world.pass_time(recovery_events.RecoveryConfig().grace_s + 0.1)

    assert recovering.closed_at == 0


def test_rule_17_recovery_does_not_let_a_reader_see_what_a_later_recovery_drops() -> None:
    """Entries 0 and 1 are on b1 alone. r1 copies them to a b4 that nobody else knows of, and
    dies. If its copy of 1 carried a higher LAC, a reader would now be given 0, which r2 drops."""
    world = World(bookies=4)
    writing, reading = world.writer(), world.reader()
    first, second = world.recoverer("r1"), world.recoverer("r2")
    adds = [world.hold(Kind.ADD, at=name) for name in ("b2", "b3")]
    writing.append("a", "b")
    writing.die()
    failing, slow = world.hold(Kind.WRITE_BACK, at="b3"), world.hold(Kind.WRITE_BACK, at="b2")
    closing = world.hold(Kind.CAS, by="r1")
    first.recover()
    closing.release_one()  # IN_RECOVERY
    failing.time_out()  # b4 comes in
    assert world.bookie("b4").entries(world.ledger_id) == [0, 1]
    first.die()

    for name in ("b1", "b4"):
        frame = world.bookie(name).frame(world.ledger_id, 1)
        assert parse_header(frame).last_add_confirmed == -1
    reading.read(0, 1)
    world.pass_time(5.0)
    assert reading.payloads == []

    world.crash("b1")
    second.recover()
    assert second.closed_at == -1
    assert [len(adds[0]), len(slow)] == [2, 1]


def test_rule_17_what_recovery_writes_back_is_the_writers_entry_byte_for_byte() -> None:
    world = World(bookies=3)
    writing, recovering = world.writer(), world.recoverer()
    writing.append("a")
    world.hold(Kind.ADD, at="b2")
    world.hold(Kind.ADD, at="b3")
    writing.append("b")

    recovering.recover()

    assert recovering.closed_at == 1
    frames = {world.bookie(name).frame(world.ledger_id, 1) for name in ("b1", "b2", "b3")}
    assert len(frames) == 1


def test_rule_49_the_length_is_that_of_the_last_recovered_entry() -> None:
    """b3's LAC comes from the header of entry 1, which is not recovered: b3 hangs from then on."""
    world = World(bookies=3)
    writing, recovering = world.writer(), world.recoverer()
    world.hold(Kind.LAC).lose()
    writing.append("four")
    world.hold(Kind.ADD, at="b1")
    world.hold(Kind.ADD, at="b2")
    writing.append("never acknowledged")
    world.hold(Kind.RECOVERY_READ, at="b3")
    world.hold(Kind.BASE_READ, at="b3")
    late = world.hold_answers(Kind.FENCE, of="b2")

    recovering.recover()
    late.release()

    assert recovering.closed_at == 0
    assert world.metadata.length == len("four")


def test_rule_4_a_recoverer_that_is_late_adopts_what_is_closed() -> None:
    """r1 has decided, and sleeps before its swap. r2 recovers meanwhile; CLOSED is for ever."""
    world = World(bookies=3)
    writing = world.writer()
    first, second = world.recoverer("r1"), world.recoverer("r2")
    cut = [world.hold(Kind.ADD, at=name) for name in ("b2", "b3")]
    writing.append("only b1 has it")
    writing.die()
    for adds in cut:
        adds.lose()
    unread = [world.hold(Kind.RECOVERY_READ, at="b1"), world.hold(Kind.FENCE, at="b1")]
    swaps = world.hold(Kind.CAS, by="r1")
    first.recover()
    swaps.release_one()  # IN_RECOVERY; b2 and b3 know of nothing, so r1 wants to close at -1
    assert len(swaps) == 1
    for questions in unread:
        questions.release()
    world.hold_answers(Kind.RECOVERY_READ, of="b2")

    second.recover()  # hears b1 before b2, and keeps the entry
    swaps.release()

    assert second.closed_at == 0
    assert first.closed_at == 0
    assert world.metadata.last_entry == 0


def test_rule_4_recovery_of_a_closed_ledger_asks_no_bookie() -> None:
    world = World(bookies=3)
    writing, recovering = world.writer(), world.recoverer()
    writing.append("a")
    writing.close()
    before = len(world.post.delivered)

    recovering.recover()

    assert recovering.closed == writing.closed
    assert {m.kind for m in world.post.delivered[before:]} == {Kind.GET}
    assert not world.bookie("b1").is_fenced(world.ledger_id)
