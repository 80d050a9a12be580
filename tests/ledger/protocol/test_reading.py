"""The reading machine, step by step: state in, event, exact effects."""

from dataclasses import replace

import pytest

from ledger.ids import BookieId, EntryId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.protocol.common import MetadataFailed, MetadataRead, ReadMetadata, TimePassed
from ledger.protocol.read import (
    WAIT_MS_MAX,
    Deliver,
    EntriesRead,
    FailRead,
    LedgerChanged,
    ReadFailure,
    Reading,
    ReadingConfig,
    ReadingEffect,
    ReadingEvent,
    ReadStarted,
    SendRead,
)
from ledger.quorum import Quorum
from ledger.requests import Status

A, B, C, D, E = (BookieId(name) for name in "abcde")
OPEN = LedgerMetadata(quorum=Quorum(3, 3, 2), fragments=(Fragment(EntryId(0), (A, B, C)),))
CONFIG = ReadingConfig(rounds_max=2, speculative_s=0.5, retry_s=0.05)


def reading(
    metadata: LedgerMetadata = OPEN,
    first: int = 0,
    last: int = 99,
    lac: int = -1,
    wait_s: float = 0,
) -> Reading:
    return Reading(
        metadata,
        first=first,
        last=last,
        last_add_confirmed=lac,
        give_up_at=wait_s,
        config=CONFIG,
    )


def step(machine: Reading, *events: ReadingEvent, now: float = 0.0) -> list[ReadingEffect]:
    effects: list[ReadingEffect] = []
    for event in events:
        effects = machine.step(event, now=now)
        deadline = machine.deadline()
        assert deadline is None or not machine.finished
        if isinstance(event, TimePassed):
            assert deadline is None or deadline > now, "its driver would not rest"
    return effects


def absent(index: int, attempt: int, status: Status = Status.OK) -> EntriesRead:
    return EntriesRead(index, attempt, status)


def test_a_confirmed_entry_is_asked_of_the_first_of_its_write_set() -> None:
    machine = reading(first=1, last=4, lac=9)
    assert step(machine, ReadStarted()) == [SendRead(1, 1, B, 1, 4, 0)]
    assert step(machine, EntriesRead(1, 1, Status.OK, (1, 2, 3, 4), 9)) == [Deliver(1, 4)]


def test_what_comes_after_a_gap_is_not_delivered() -> None:
    machine = reading(lac=9)
    step(machine, ReadStarted())
    assert step(machine, EntriesRead(0, 1, Status.OK, (0, 1, 3), 9)) == [Deliver(0, 1)]


def test_nothing_above_the_last_add_confirmed_is_delivered() -> None:
    """Rule 53."""
    machine = reading(lac=0)
    step(machine, ReadStarted())
    assert step(machine, EntriesRead(0, 1, Status.OK, (0, 1, 2), 1)) == [Deliver(0, 1)]


def test_a_replica_without_the_entry_is_passed_over() -> None:
    machine = reading(lac=9)
    step(machine, ReadStarted())
    assert step(machine, absent(0, 1)) == [SendRead(1, 2, B, 0, 99, 0)]
    assert step(machine, absent(1, 2, Status.IO_ERROR)) == [SendRead(2, 3, C, 0, 99, 0)]


def test_a_slow_replica_gets_company() -> None:
    machine = reading(lac=9)
    step(machine, ReadStarted())
    assert machine.deadline() == CONFIG.speculative_s
    assert step(machine, TimePassed(), now=0.5) == [SendRead(1, 2, B, 0, 99, 0)]
    assert step(machine, EntriesRead(1, 2, Status.OK, (0,), 9), now=0.6) == [Deliver(0, 0)]


def test_when_no_replica_has_it_the_metadata_is_read_again() -> None:
    """Rule 55: re-replication moved the entry."""
    machine = reading(lac=9)
    step(machine, ReadStarted(), absent(0, 1), absent(1, 2))
    assert step(machine, absent(2, 3)) == [ReadMetadata()]
    moved = OPEN.with_ensemble(EntryId(0), (D, B, C))
    assert step(machine, MetadataRead(moved, 1)) == [SendRead(0, 4, D, 0, 99, 0)]


def test_an_entry_that_no_replica_gives_is_lost_after_some_rounds() -> None:
    machine = reading(lac=9)
    step(machine, ReadStarted(), absent(0, 1), absent(1, 2), absent(2, 3))
    assert step(machine, MetadataRead(OPEN, 1)) == []
    assert step(machine, TimePassed(), now=0.1) == [SendRead(0, 4, A, 0, 99, 0)]
    effects = step(machine, absent(0, 4), absent(1, 5), absent(2, 6), now=0.1)
    assert effects == [ReadMetadata()]
    assert step(machine, MetadataRead(OPEN, 1), now=0.1) == [FailRead(ReadFailure.LOST)]


def _all_deny_twice() -> Reading:
    machine = reading(lac=9)
    step(machine, ReadStarted(), absent(0, 1), absent(1, 2), absent(2, 3), MetadataRead(OPEN, 1))
    step(machine, TimePassed(), now=0.1)
    effects = step(machine, absent(0, 4), absent(1, 5), absent(2, 6), now=0.1)
    assert effects == [ReadMetadata()]
    return machine


def test_an_entry_is_not_lost_if_those_who_denied_it_have_left_since() -> None:
    """A reader that slept asks bookies that have evicted what was moved."""
    machine = _all_deny_twice()
    moved = OPEN.with_ensemble(EntryId(0), (D, B, C))
    assert step(machine, MetadataRead(moved, 1), now=0.1) == [SendRead(0, 7, D, 0, 99, 0)]
    assert step(machine, EntriesRead(0, 7, Status.OK, (0,), 9), now=0.1) == [Deliver(0, 0)]


def test_an_entry_that_moves_all_the_time_is_not_lost_and_the_read_ends() -> None:
    machine = _all_deny_twice()
    effects: list[ReadingEffect] = [ReadMetadata()]
    for round_, names in enumerate(((D, B, C), (A, D, C), (A, B, D))):
        if effects != [ReadMetadata()]:
            break
        step(machine, MetadataRead(OPEN.with_ensemble(EntryId(0), names), 2 + round_), now=0.1)
        denials = (absent(index, 7 + 3 * round_ + index) for index in range(3))
        effects = step(machine, *denials, now=0.1)
    assert effects == [FailRead(ReadFailure.UNAVAILABLE)]


def test_nothing_is_lost_while_the_metadata_cannot_be_read() -> None:
    assert step(_all_deny_twice(), MetadataFailed()) == [FailRead(ReadFailure.UNAVAILABLE)]


def test_what_a_watch_has_read_proves_no_loss() -> None:
    """It may have been read before the replicas denied the entry, and before the entry moved."""
    machine = _all_deny_twice()
    assert step(machine, LedgerChanged(OPEN), now=0.1) == []
    moved = OPEN.with_ensemble(EntryId(0), (D, B, C))
    assert step(machine, MetadataRead(moved, 2), now=0.1) == [SendRead(0, 7, D, 0, 99, 0)]


def test_metadata_that_were_asked_for_before_the_last_denial_prove_no_loss() -> None:
    machine = _all_deny_twice()
    moved = OPEN.with_ensemble(EntryId(0), (D, B, C))
    assert step(machine, LedgerChanged(moved), now=0.1) == [SendRead(0, 7, D, 0, 99, 0)]
    assert step(machine, absent(0, 7), absent(1, 8), absent(2, 9), now=0.1) == []
    assert step(machine, MetadataRead(moved, 2), now=0.1) == []
    assert machine.deadline() is not None
    again = _all_deny_twice()
    step(again, LedgerChanged(moved), now=0.1)
    step(again, MetadataRead(moved, 2), now=0.1)
    assert step(again, EntriesRead(0, 7, Status.OK, (0,), 9), now=0.1) == [Deliver(0, 0)]


def test_a_late_answer_of_one_that_has_left_the_ledger_changes_nothing() -> None:
    machine = reading(lac=9)
    step(machine, ReadStarted(), absent(0, 1))
    moved = OPEN.with_ensemble(EntryId(0), (D, E, C))
    assert step(machine, LedgerChanged(moved)) == [SendRead(0, 3, D, 0, 99, 0)]
    for late in (absent(0, 1), absent(1, 2), EntriesRead(1, 2, Status.OK, (0,), 9)):
        assert step(machine, late) == []
    assert step(machine, EntriesRead(0, 3, Status.OK, (0,), 9)) == [Deliver(0, 0)]


def test_a_change_that_moves_nothing_leaves_the_requests_under_way() -> None:
    machine = reading(lac=9)
    step(machine, ReadStarted())
    deadline = machine.deadline()
    assert step(machine, LedgerChanged(OPEN), TimePassed(), now=0.1) == []
    assert machine.deadline() == deadline
    assert step(machine, absent(0, 1), now=0.2) == [SendRead(1, 2, B, 0, 99, 0)]


def test_the_metadata_are_read_again_in_the_round_after_the_store_failed() -> None:
    machine = reading(lac=9)
    step(machine, ReadStarted(), absent(0, 1), absent(1, 2), absent(2, 3))
    assert machine.deadline() is None
    assert step(machine, MetadataFailed()) == []
    assert machine.deadline() is not None
    step(machine, TimePassed(), now=0.1)
    deny = [absent(0, 4), absent(1, 5), absent(2, 6)]
    assert step(machine, *deny, now=0.1) == [ReadMetadata()]


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (Status.WRONG_KEY, ReadFailure.WRONG_KEY),
        (Status.ACCESS_DENIED, ReadFailure.ACCESS_DENIED),
        (Status.UNREACHABLE, ReadFailure.UNAVAILABLE),
    ],
)
def test_the_last_round_says_why_an_entry_cannot_be_read(
    status: Status, failure: ReadFailure
) -> None:
    for first, ends in ((Status.OK, failure), (status, ReadFailure.LOST)):
        machine = reading(lac=9)
        step(machine, ReadStarted(), absent(0, 1, first), absent(1, 2), absent(2, 3))
        step(machine, MetadataRead(OPEN, 1))
        step(machine, TimePassed(), now=0.1)
        last = status if ends is failure else Status.OK
        effects = step(machine, absent(0, 4, last), absent(1, 5), absent(2, 6), now=0.1)
        if ends is ReadFailure.LOST:
            assert effects == [ReadMetadata()]
            effects = step(machine, MetadataRead(OPEN, 1), now=0.1)
        assert effects == [FailRead(ends)]


def test_nothing_follows_the_end_of_a_read() -> None:
    machine = reading(lac=9)
    step(machine, ReadStarted(), EntriesRead(0, 1, Status.OK, (0,), 9))
    assert step(machine, absent(0, 1), MetadataRead(None, 1), TimePassed(), now=9.0) == []


@pytest.mark.parametrize("silence", [Status.UNREACHABLE, Status.TOO_MANY_REQUESTS])
def test_an_entry_is_not_lost_while_one_replica_has_not_said_so(silence: Status) -> None:
    machine = reading(lac=9)
    step(machine, ReadStarted(), absent(0, 1), absent(1, 2), absent(2, 3))
    step(machine, MetadataRead(OPEN, 1))
    step(machine, TimePassed(), now=0.1)
    effects = step(machine, absent(0, 4), absent(1, 5, silence), absent(2, 6), now=0.1)
    assert effects == [FailRead(ReadFailure.UNAVAILABLE)]


def test_a_replica_that_was_silent_before_and_denies_now_has_been_heard() -> None:
    machine = reading(lac=9)
    step(machine, ReadStarted(), absent(0, 1, Status.UNREACHABLE), absent(1, 2), absent(2, 3))
    step(machine, MetadataRead(OPEN, 1))
    step(machine, TimePassed(), now=0.1)
    denials = (Status.NO_SUCH_LEDGER, Status.DAMAGED, Status.IO_ERROR)
    effects = step(machine, *(absent(i, i + 4, s) for i, s in enumerate(denials)), now=0.1)
    assert effects == [ReadMetadata()]
    assert step(machine, MetadataRead(OPEN, 1), now=0.1) == [FailRead(ReadFailure.LOST)]


def test_the_end_of_a_closed_ledger_is_known_without_asking() -> None:
    closed = OPEN.closed(EntryId(4), 50)
    assert step(reading(closed, first=5), ReadStarted()) == [Deliver(5, 4)]


def test_without_time_to_wait_one_replica_is_asked_and_its_lac_is_learned() -> None:
    machine = reading(first=0)
    assert step(machine, ReadStarted()) == [SendRead(0, 1, A, 0, 99, 0)]
    assert step(machine, EntriesRead(0, 1, Status.OK, (0, 1), 0)) == [Deliver(0, 0)]
    machine = reading(first=5)
    step(machine, ReadStarted())
    assert step(machine, EntriesRead(2, 1, Status.OK, (), 3)) == [Deliver(5, 4)]
    assert machine.last_add_confirmed == 3


def test_without_time_to_wait_and_without_an_answer_there_is_nothing() -> None:
    machine = reading(first=0)
    step(machine, ReadStarted(), absent(0, 1, Status.UNREACHABLE))
    step(machine, absent(1, 2, Status.NO_SUCH_LEDGER))
    assert step(machine, absent(2, 3, Status.UNREACHABLE)) == [Deliver(0, -1)]


def test_a_tailing_read_waits_at_a_bookie() -> None:
    machine = reading(wait_s=30)
    assert step(machine, ReadStarted()) == [SendRead(0, 1, A, 0, 99, WAIT_MS_MAX)]
    assert step(machine, EntriesRead(0, 1, Status.OK, (0,), 0)) == [Deliver(0, 0)]


def test_an_idle_tail_goes_round_without_a_pause() -> None:
    machine = reading(wait_s=30)
    step(machine, ReadStarted(), absent(0, 1), absent(1, 2))
    assert step(machine, absent(2, 3)) == [ReadMetadata()]
    assert step(machine, MetadataRead(OPEN, 1)) == [SendRead(0, 4, A, 0, 99, WAIT_MS_MAX)]


def test_a_tail_that_is_refused_at_once_does_not_spin() -> None:
    machine = reading(wait_s=30)
    refused = [absent(i, i + 1, Status.NO_SUCH_LEDGER) for i in range(3)]
    step(machine, ReadStarted(), *refused)
    assert step(machine, MetadataRead(OPEN, 1)) == []
    assert machine.deadline() == CONFIG.retry_s


def test_a_tail_ends_when_time_is_up() -> None:
    machine = reading(wait_s=0.2)
    assert step(machine, ReadStarted()) == [SendRead(0, 1, A, 0, 99, 200)]
    assert step(machine, absent(0, 1), now=0.2) == [Deliver(0, -1)]
    machine = reading(wait_s=0.2)
    step(machine, ReadStarted(), absent(0, 1))
    assert machine.deadline() == 0.2
    assert step(machine, TimePassed(), now=0.2) == [Deliver(0, -1)]


def test_a_tail_wakes_when_the_ledger_is_closed() -> None:
    """Rule 37; the watch tells, nobody asked."""
    machine = reading(first=5, lac=4, wait_s=30)
    step(machine, ReadStarted())
    closed = OPEN.closed(EntryId(4), 50)
    assert step(machine, LedgerChanged(closed)) == [Deliver(5, 4)]


def test_a_late_reply_does_not_open_a_closed_ledger_again() -> None:
    closed = OPEN.closed(EntryId(4), 50)
    machine = reading(closed, first=4)
    step(machine, ReadStarted())
    step(machine, LedgerChanged(OPEN))
    assert machine.metadata == closed


def test_a_tail_reads_what_recovery_found_beyond_its_lac() -> None:
    machine = reading(first=5, lac=4, wait_s=30)
    step(machine, ReadStarted())
    closed = OPEN.closed(EntryId(6), 70)
    assert step(machine, LedgerChanged(closed)) == [SendRead(2, 2, C, 5, 6, 0)]


def test_a_fenced_answer_makes_a_tail_look_at_the_metadata() -> None:
    machine = reading(first=5, lac=4, wait_s=30)
    step(machine, ReadStarted())
    assert step(machine, TimePassed(), now=2.0) == [SendRead(0, 2, A, 5, 99, WAIT_MS_MAX)]
    answer = EntriesRead(2, 1, Status.OK, (), 4, fenced=True)
    assert step(machine, answer, now=2.0) == [ReadMetadata()]
    assert step(machine, replace(answer, index=0, attempt=2), now=2.0) == []
    assert step(machine, MetadataRead(OPEN, 1), now=2.0) == [], "it pauses until it is CLOSED"
    assert machine.deadline() == 2.0 + CONFIG.retry_s


def test_a_deleted_ledger_and_three_wrong_keys_fail() -> None:
    machine = reading(wait_s=30)
    step(machine, ReadStarted())
    assert step(machine, LedgerChanged(None)) == [FailRead(ReadFailure.DELETED)]
    machine = reading(wait_s=30)
    step(machine, ReadStarted())
    for index, bookie in ((0, B), (1, C)):
        (effect,) = step(machine, absent(index, index + 1, Status.WRONG_KEY))
        assert isinstance(effect, SendRead)
        assert effect.bookie == bookie
    assert step(machine, absent(2, 3, Status.WRONG_KEY)) == [FailRead(ReadFailure.WRONG_KEY)]


def test_a_read_that_no_replica_allows_fails_and_one_that_some_do_does_not() -> None:
    machine = reading(wait_s=30)
    step(machine, ReadStarted())
    for index in (0, 1):
        step(machine, absent(index, index + 1, Status.ACCESS_DENIED))
    assert step(machine, absent(2, 3, Status.ACCESS_DENIED)) == [
        FailRead(ReadFailure.ACCESS_DENIED)
    ]
    machine = reading(lac=9)
    step(machine, ReadStarted(), absent(0, 1, Status.ACCESS_DENIED))
    assert step(machine, EntriesRead(1, 2, Status.OK, (0,), 9)) == [Deliver(0, 0)]


def test_an_entry_is_read_from_another_replica_than_the_one_with_a_wrong_key() -> None:
    machine = reading(lac=9)
    step(machine, ReadStarted(), absent(0, 1, Status.WRONG_KEY))
    assert step(machine, EntriesRead(1, 2, Status.OK, (0,), 9)) == [Deliver(0, 0)]


def test_each_further_replica_is_asked_after_a_longer_silence() -> None:
    machine = reading(lac=9)
    step(machine, ReadStarted())
    step(machine, TimePassed(), now=0.5)
    assert machine.deadline() == 0.5 + 2 * CONFIG.speculative_s
    assert step(machine, TimePassed(), now=1.5) == [SendRead(2, 3, C, 0, 99, 0)]
    assert step(machine, TimePassed(), now=9.0) == []
    assert step(machine, EntriesRead(0, 1, Status.OK, (0,), 9), now=9.0) == [Deliver(0, 0)]


def test_replicas_to_avoid_are_asked_last() -> None:
    machine = Reading(
        OPEN, first=0, last=9, last_add_confirmed=9, give_up_at=0, avoid=(A, B), config=CONFIG
    )
    assert step(machine, ReadStarted()) == [SendRead(2, 1, C, 0, 9, 0)]
    assert step(machine, absent(2, 1)) == [SendRead(0, 2, A, 0, 9, 0)]


def test_a_new_fragment_proves_that_what_is_before_it_is_confirmed() -> None:
    """Rules 19, 46: the bookies of the old one may all be gone with the LAC they knew."""
    machine = reading(lac=3, first=4, wait_s=30)
    assert step(machine, ReadStarted()) == [SendRead(1, 1, B, 4, 99, WAIT_MS_MAX)]
    moved = OPEN.with_ensemble(EntryId(5), (A, B, D))
    assert step(machine, LedgerChanged(moved)) == [SendRead(1, 2, B, 4, 4, 0)]
    assert step(machine, EntriesRead(1, 2, Status.OK, (4,), 3)) == [Deliver(4, 4)]


STRIPED = LedgerMetadata(quorum=Quorum(5, 3, 2), fragments=(Fragment(EntryId(0), (A, B, C, D, E)),))


def test_a_fragment_of_a_recovery_proves_nothing_of_what_the_writer_confirmed() -> None:
    closed = OPEN.with_ensemble(EntryId(5), (A, B, D)).closed(EntryId(6), 60)
    assert reading(closed, first=1, lac=3).last_add_confirmed == 3


def test_enough_bookies_of_a_striped_ensemble_are_asked_for_a_whole_range() -> None:
    """C holds 0, 1, 2, 5, 6, 7 ...; A holds 0, 3, 4, 5, 8, 9 ..."""
    machine = reading(STRIPED, lac=9)
    assert step(machine, ReadStarted()) == [
        SendRead(2, 1, C, 0, 99, 0),
        SendRead(0, 2, A, 0, 99, 0),
    ]
    assert step(machine, EntriesRead(2, 1, Status.OK, (0, 1, 2, 5, 6, 7), 9)) == []
    answer = EntriesRead(0, 2, Status.OK, (0, 3, 4, 5, 8, 9), 9)
    assert step(machine, answer) == [Deliver(0, 9)]


def test_no_more_bookies_are_asked_than_a_short_range_needs() -> None:
    assert step(reading(STRIPED, last=2, lac=9), ReadStarted()) == [SendRead(2, 1, C, 0, 2, 0)]
    assert step(reading(STRIPED, lac=1), ReadStarted()) == [SendRead(2, 1, C, 0, 99, 0)]
    assert step(reading(STRIPED, lac=-1), ReadStarted()) == [SendRead(2, 1, C, 0, 99, 0)]


def test_a_silent_helper_holds_the_first_entries_back_only_so_long() -> None:
    machine = reading(STRIPED, lac=9)
    step(machine, ReadStarted(), EntriesRead(2, 1, Status.OK, (0, 1, 2, 5), 9))
    assert machine.deadline() == CONFIG.speculative_s
    assert step(machine, TimePassed(), now=0.5) == [Deliver(0, 2)]


def test_a_helper_that_fails_is_no_reason_to_ask_others_for_the_first_entry() -> None:
    machine = reading(STRIPED, lac=9)
    step(machine, ReadStarted())
    assert step(machine, absent(0, 2, Status.UNREACHABLE)) == []
    assert step(machine, EntriesRead(2, 1, Status.OK, (0, 1, 2, 5), 9)) == [Deliver(0, 2)]


def test_speculation_over_a_striped_ensemble_stays_in_the_write_set() -> None:
    machine = reading(STRIPED, lac=9)
    step(machine, ReadStarted(), EntriesRead(0, 2, Status.OK, (3, 4, 5), 9))
    assert step(machine, TimePassed(), now=0.5) == [SendRead(1, 3, B, 0, 99, 0)]
    assert step(machine, TimePassed(), now=1.5) == [SendRead(0, 4, A, 0, 99, 0)]
    assert step(machine, TimePassed(), now=9.0) == []
    answer = EntriesRead(1, 3, Status.OK, (0, 1, 4), 9)
    assert step(machine, answer, now=9.0) == [Deliver(0, 1)]


def test_helpers_that_have_left_the_ledger_are_not_waited_for() -> None:
    machine = reading(STRIPED, lac=9)
    step(machine, ReadStarted())
    bookies = STRIPED.last_fragment.bookies
    moved = STRIPED.with_ensemble(EntryId(0), (BookieId("f"), *bookies[1:]))
    (effect,) = step(machine, LedgerChanged(moved))
    assert isinstance(effect, SendRead)
    answer = EntriesRead(effect.index, effect.attempt, Status.OK, (0, 1), 9)
    assert step(machine, answer) == [Deliver(0, 1)]


def test_late_helpers_are_waited_for_no_longer_than_a_speculation() -> None:
    machine = reading(STRIPED, lac=9)
    step(machine, ReadStarted())
    step(machine, TimePassed(), now=0.5)
    step(machine, TimePassed(), now=1.5)
    step(machine, TimePassed(), now=4.0)
    assert step(machine, EntriesRead(1, 3, Status.OK, (0, 1), 9), now=5.0) == []
    deadline = machine.deadline()
    assert deadline is not None
    assert step(machine, TimePassed(), now=deadline) == [Deliver(0, 1)]


def unconfirmed(metadata: LedgerMetadata = OPEN, first: int = 0, lac: int = -1) -> Reading:
    return Reading(
        metadata,
        first=first,
        last=9,
        last_add_confirmed=lac,
        give_up_at=0,
        unconfirmed=True,
        config=CONFIG,
    )


def test_an_unconfirmed_read_delivers_what_is_there() -> None:
    machine = unconfirmed()
    assert step(machine, ReadStarted()) == [SendRead(0, 1, A, 0, 9, 0)]
    assert step(machine, EntriesRead(0, 1, Status.OK, (0, 1, 2), 0)) == [Deliver(0, 2)]


def test_an_unconfirmed_read_asks_every_replica_once_before_it_finds_nothing() -> None:
    machine = unconfirmed()
    step(machine, ReadStarted(), absent(0, 1), absent(1, 2, Status.NO_SUCH_LEDGER))
    assert step(machine, absent(2, 3, Status.UNREACHABLE)) == [Deliver(0, -1)]


def test_an_unconfirmed_read_that_nobody_answers_fails() -> None:
    machine = unconfirmed()
    lost = [absent(i, i + 1, Status.UNREACHABLE) for i in range(3)]
    assert step(machine, ReadStarted(), *lost) == [ReadMetadata()]
    step(machine, MetadataRead(OPEN, 1))
    step(machine, TimePassed(), now=0.1)
    lost = [absent(i, i + 4, Status.UNREACHABLE) for i in range(3)]
    assert step(machine, *lost, now=0.1) == [FailRead(ReadFailure.UNAVAILABLE)]


def test_an_unconfirmed_read_of_a_confirmed_entry_does_not_give_up_sooner() -> None:
    machine = unconfirmed(lac=3)
    assert step(machine, ReadStarted(), absent(0, 1), absent(1, 2), absent(2, 3)) == [
        ReadMetadata()
    ]


def test_a_closed_ledger_has_no_unconfirmed_entries() -> None:
    machine = unconfirmed(OPEN.closed(EntryId(1), 20), first=1)
    step(machine, ReadStarted())
    assert step(machine, EntriesRead(1, 1, Status.OK, (1, 2, 3), 1)) == [Deliver(1, 1)]
