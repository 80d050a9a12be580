"""What follows from what the members of a ledger say that they have."""

from random import Random

import pytest

from bookie.autorecovery.protocol.checks import (
    SCRUB_ENTRIES_MIN,
    Judgement,
    bounded_share,
    is_urgent,
    judge,
    members_with_entries,
    questions,
    settled_ensembles,
    to_read,
)
from bookie.autorecovery.protocol.repair_plan import Question, Share
from ledger.ids import BookieId
from ledger.mark import Reason
from ledger.metadata import LedgerState
from ledger.quorum import Quorum
from tests.bookie.autorecovery.repair_world import ledger, names

A, B, C, D, E = names("abcde")
THREE = Quorum(3, 3, 2)
CLOSED = ledger((0, "abc"), (10, "dbc"), last=19)
ALL = {question: Share() for question in questions(CLOSED)}
WHOLE = Judgement((), unsure=False, urgent=False)


def of(bookie: BookieId, first: int = 0) -> Question:
    [found] = [each for each in ALL if each.bookie == bookie and each.first == first]
    return found


def judged(
    said: dict[Question, Share] | None = None, read: dict[Question, Share] | None = None
) -> Judgement:
    return judge(THREE, questions(CLOSED), ALL | (said or {}), read or {})


def test_only_what_is_settled_and_has_entries_is_asked_for() -> None:
    spans = {(each.first, each.last) for each in questions(CLOSED)}
    assert spans == {(0, 9), (10, 19)}
    ended = ledger((0, "abc"), (5, "dbc"), (8, "abd"), last=6)
    assert {(each.first, each.last) for each in questions(ended)} == {(0, 4), (5, 6)}
    still_open = ledger((0, "abc"), (5, "dbc"), last=None, state=LedgerState.OPEN)
    assert {(each.first, each.last) for each in questions(still_open)} == {(0, 4)}


def test_a_ledger_whose_members_have_everything_lacks_nothing() -> None:
    assert judged() == WHOLE


def test_who_lacks_entries_is_named_once_with_the_graver_reason() -> None:
    missing = Share(missing=((3, 4),))
    assert judged({of(B): missing, of(A): missing}).lacking == (
        (A, Reason.MISSING),
        (B, Reason.MISSING),
    )
    both = judged({of(B): missing}, {of(B, 10): Share(missing=((12, 12),))})
    assert both.lacking == ((B, Reason.DAMAGED),)


def test_who_is_away_or_does_not_say_lacks_nothing() -> None:
    quiet = judge(THREE, questions(CLOSED), {}, {})
    assert (quiet.lacking, quiet.unsure) == ((), True)
    assert judged({of(A): Share(unsure=((5, 9),))}) == Judgement((), unsure=True, urgent=False)


def test_it_is_urgent_where_fewer_than_qa_copies_of_one_entry_are_left() -> None:
    apart = {of(A): Share(missing=((3, 3),)), of(B): Share(missing=((4, 4),))}
    assert not judged(apart).urgent
    same = {of(A): Share(missing=((3, 3),)), of(B): Share(missing=((2, 3),))}
    assert judged(same).urgent


def test_what_was_read_and_who_is_away_count_for_what_is_urgent() -> None:
    said = {each: share for each, share in ALL.items() if each.bookie != D}
    rotten = {of(B, 10): Share(missing=((15, 15),))}
    assert judge(THREE, questions(CLOSED), said, rotten).urgent
    assert not judge(THREE, questions(CLOSED), said, {}).urgent
    assert not judged(read=rotten).urgent


def test_silence_makes_nothing_urgent() -> None:
    unsure = {each: Share(unsure=((each.first, each.last),)) for each in ALL}
    assert not judged(unsure).urgent


@pytest.mark.parametrize(
    ("away", "urgent"), [("a", False), ("ad", False), ("ab", True), ("bd", True), ("ef", False)]
)
def test_by_the_metadata_it_is_urgent_where_fewer_than_qa_members_are_left(
    away: str, urgent: bool
) -> None:
    assert is_urgent(CLOSED, names(away)) is urgent


def test_of_a_striped_fragment_the_worst_write_set_counts() -> None:
    striped = ledger((0, "abcde"), last=19, quorum=Quorum(5, 2, 2))
    assert is_urgent(striped, names("a"))
    wide = ledger((0, "abcde"), last=19, quorum=Quorum(5, 3, 2))
    assert not is_urgent(wide, names("a"))
    assert is_urgent(wide, names("ac"))
    short = ledger((0, "abcde"), last=0, quorum=Quorum(5, 3, 2))  # entry 0 is on abc
    assert not is_urgent(short, names("de"))


def test_a_fragment_without_entries_is_not_urgent_and_an_open_one_may_be() -> None:
    empty = ledger((0, "abc"), (5, "abd"), last=4)
    assert not is_urgent(empty, names("cd"))
    still_open = ledger((0, "abc"), (5, "abd"), last=None, state=LedgerState.OPEN)
    assert is_urgent(still_open, names("bd"))
    assert members_with_entries(empty) == {A, B, C}
    assert members_with_entries(still_open) == {A, B, C, D}
    assert settled_ensembles(empty) == settled_ensembles(still_open) == (names("abc"),)


@pytest.mark.parametrize("count", [1, 10, SCRUB_ENTRIES_MIN, 100, 5000])
@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_each_entry_is_read_by_about_the_share_of_checks(count: int, share: float) -> None:
    question = Question(A, 0, 100, 99 + count)
    random = Random(1)
    times = dict.fromkeys((100, 99 + count, 99 + (count + 1) // 2), 0)
    rounds = 2000
    for _ in range(rounds):
        some = to_read(question, share, random)
        if some is None:
            continue
        assert question.first <= some.first <= some.last <= question.last
        for entry_id in times:
            times[entry_id] += some.first <= entry_id <= some.last
    for read in times.values():
        assert abs(read / rounds - share) < 0.04


def test_of_more_than_can_be_read_in_time_a_smaller_share_is_read() -> None:
    assert bounded_share(0.05, copies_bytes=1000, bytes_max=50) == 0.05
    assert bounded_share(0.05, copies_bytes=2000, bytes_max=50) == 0.025
    assert bounded_share(0.05, copies_bytes=0, bytes_max=50) == 0.05


def test_a_share_of_nothing_reads_nothing() -> None:
    assert to_read(Question(A, 0, 0, 9), 0.0, Random(1)) is None
