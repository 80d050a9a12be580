"""What a writer does about bookies that are away, or were: step by step."""

import pytest

from ledger.ids import BookieId, EntryId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.protocol.acks import AckTracker
from ledger.protocol.common import (
    ChooseReplacements,
    MetadataFailed,
    MetadataWritten,
    ReadMetadata,
    ReplacementsChosen,
    TimePassed,
    WriteMetadata,
)
from ledger.protocol.ensemble_change import Absences
from ledger.protocol.writer import (
    DEGRADED_RETRY_S,
    LEAVE_GONE_S,
    METADATA_PATIENCE_S,
    WriterConfig,
    WriterPhase,
)
from ledger.protocol.writer_events import (
    AddsRefused,
    BookiesListed,
    CloseRequested,
    ConfirmAdds,
    FailWriter,
    FinishClose,
    LacksMarked,
    MarkingFailed,
    MarkLacks,
    PublishLac,
    SendAdds,
)
from ledger.quorum import Quorum
from ledger.requests import Status
from tests.ledger.protocol.event_writer import AddsStored, AppendRequested, EventWriter
from tests.ledger.protocol.test_writer import METADATA, A, B, C, D, changed, step, writer

AWAY_A = AddsRefused(0, 0, 0, 0, Status.UNREACHABLE)


def listed(text: str, life: str = "1") -> BookiesListed:
    names = {bookie: life for bookie in (A, B, C, D) if bookie in text}
    return BookiesListed(names)


def gone_on_without_a(config: WriterConfig | None = None) -> EventWriter:
    """Return a writer with entry 0 confirmed by B and C; A was not there, and D never is."""
    machine = writer(config=config)
    step(machine, listed("bc"), AppendRequested(1, 10), AWAY_A)
    assert step(machine, ReplacementsChosen(())) == [MarkLacks((A,), EntryId(0))]
    step(machine, LacksMarked(MarkLacks((A,), EntryId(0))))
    step(machine, AddsStored(1, 0, 0, 0))
    assert step(machine, AddsStored(2, 0, 0, 0))[0] == ConfirmAdds(EntryId(0))
    return machine


def settled(first: int) -> WriteMetadata:
    return WriteMetadata(changed(first, A, B, C), 0)


# Bookies that are gone from the registry.


def test_an_idle_writer_leaves_a_bookie_that_is_gone_for_long() -> None:
    machine = writer()
    assert step(machine, listed("abcd"), now=1.0) == []
    assert machine.deadline() is None
    assert step(machine, listed("bcd"), now=5.0) == []
    assert machine.deadline() == 5.0 + LEAVE_GONE_S
    assert step(machine, TimePassed(), now=5.0 + LEAVE_GONE_S) == [
        ChooseReplacements((0,), (A, B, C), (A, B, C))
    ]
    assert step(machine, ReplacementsChosen(((0, D),))) == [WriteMetadata(changed(0, D, B, C), 0)]
    assert step(machine, MetadataWritten(1)) == []
    assert (machine.phase, machine.deadline()) == (WriterPhase.OPEN, None)


def test_a_busy_writer_sends_what_is_pending_to_the_other_bookie() -> None:
    machine = writer()
    step(machine, listed("bcd"), AppendRequested(2, 10), AddsStored(0, 0, 0, 1))
    step(machine, AddsStored(1, 0, 0, 0))
    step(machine, TimePassed(), ReplacementsChosen(((0, D),)), now=LEAVE_GONE_S)
    assert step(machine, MetadataWritten(1)) == [SendAdds(0, D, 1, 1, 1)]
    assert machine.metadata.fragments == changed(1, D, B, C).fragments


def test_a_bookie_that_comes_back_in_time_is_kept() -> None:
    machine = writer()
    step(machine, listed("bcd"), now=0.0)
    step(machine, listed("abcd"), now=LEAVE_GONE_S - 1)
    assert machine.deadline() is None
    assert step(machine, TimePassed(), now=LEAVE_GONE_S) == []


def test_nobody_is_left_while_there_is_no_other() -> None:
    machine = writer()
    step(machine, listed("bc"), now=0.0)
    assert machine.deadline() is None
    assert step(machine, listed("bcd"), now=100.0) == []
    assert machine.deadline() == 100.0
    assert step(machine, TimePassed(), now=100.0)[0] == ChooseReplacements(
        (0,), (A, B, C), (A, B, C)
    )


def test_who_is_gone_and_finds_no_place_taken_serves_on() -> None:
    """It may be cut off from the metadata store alone. To take it for failed would end the writer,
    if another one has failed."""
    machine = writer()
    step(machine, listed("bcd"), AppendRequested(1, 10), TimePassed(), now=LEAVE_GONE_S)
    step(machine, TimePassed(), now=2 * LEAVE_GONE_S)
    assert step(machine, ReplacementsChosen(()), now=2 * LEAVE_GONE_S) == []
    assert (machine.phase, machine.is_degraded) == (WriterPhase.OPEN, False)
    assert machine.deadline() == 2 * LEAVE_GONE_S + DEGRADED_RETRY_S
    step(machine, AddsStored(0, 0, 0, 0))
    assert step(machine, AddsStored(1, 0, 0, 0))[0] == ConfirmAdds(EntryId(0))


def test_a_failure_during_the_choice_gets_a_choice_of_its_own() -> None:
    machine = writer()
    step(machine, listed("bcd"), AppendRequested(1, 10))
    step(machine, TimePassed(), AddsRefused(1, 0, 0, 0, Status.UNREACHABLE), now=LEAVE_GONE_S)
    assert step(machine, ReplacementsChosen(()), now=LEAVE_GONE_S) == [
        ChooseReplacements((1,), (A, B, C), (A, B, C))
    ]


def test_a_writer_that_closes_leaves_nobody() -> None:
    machine = writer()
    step(machine, listed("bcd"), AppendRequested(1, 10), CloseRequested())
    assert machine.deadline() is None
    assert step(machine, TimePassed(), now=LEAVE_GONE_S) == []


def test_nobody_is_left_once_the_ensemble_has_changed_too_often() -> None:
    machine = writer(config=WriterConfig(ensemble_changes_max=0))
    step(machine, listed("bcd"))
    assert machine.deadline() is None
    assert step(machine, TimePassed(), now=LEAVE_GONE_S) == []


# What lacks copies.


def test_a_bookie_that_registers_again_is_tried_at_once_and_what_it_lacks_is_settled() -> None:
    machine = gone_on_without_a()
    assert step(machine, listed("abc"), now=2.0) == [settled(1)]
    assert step(machine, MetadataWritten(1)) == [PublishLac(EntryId(0), 10, (A, B, C))]
    assert [f.first_entry for f in machine.metadata.fragments] == [0, 1]
    assert step(machine, listed("abc", "2")) == []  # nothing lacks any more


def test_a_bookie_that_stores_again_settles_what_it_lacks() -> None:
    """Also if the registry never missed it."""
    machine = writer()
    step(machine, listed("abc"), AppendRequested(1, 10), AWAY_A, ReplacementsChosen(()))
    step(machine, MarkingFailed(), AddsStored(1, 0, 0, 0), AddsStored(2, 0, 0, 0))
    step(machine, TimePassed(), now=DEGRADED_RETRY_S)
    step(machine, AppendRequested(1, 10))
    effects = step(machine, AddsStored(0, 1, 1, 1))
    assert effects == [MarkLacks((A,), EntryId(0)), settled(1)]


def test_a_bookie_that_was_back_and_is_gone_on_without_again_is_not_back() -> None:
    """Its newer entries lack a copy, too."""
    absences = Absences(AckTracker(METADATA.quorum, (A, B, C), confirmed=0), leave_gone_s=1.0)
    absences.went_on_without([0, 1])
    absences.stored(0)
    absences.went_on_without([0])
    absences.stored(1)
    assert not absences.are_over
    absences.stored(0)
    assert absences.are_over


def test_as_long_as_a_bookie_is_tried_in_vain_no_fragment_begins() -> None:
    """Each would be a write to the metadata store every ten seconds."""
    machine = gone_on_without_a()
    for turn in range(1, 4):
        now = turn * DEGRADED_RETRY_S
        step(machine, TimePassed(), AppendRequested(1, 10), now=now)
        refused = AddsRefused(0, turn, turn, turn, Status.UNREACHABLE)
        assert step(machine, refused, ReplacementsChosen(()), now=now) == []
    assert machine.metadata.fragments == METADATA.fragments


def test_an_old_answer_of_a_bookie_that_is_down_does_not_settle_anything() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AppendRequested(1, 10))
    step(machine, AddsRefused(0, 0, 1, 1, Status.UNREACHABLE), ReplacementsChosen(()))
    step(machine, AddsStored(1, 0, 0, 1))
    assert step(machine, AddsStored(2, 0, 0, 1))[0] == ConfirmAdds(EntryId(1))
    assert step(machine, AddsStored(0, 0, 0, 0)) == []
    step(machine, TimePassed(), now=DEGRADED_RETRY_S)
    assert (machine.is_degraded, machine.phase) == (False, WriterPhase.OPEN)


def test_while_another_bookie_is_down_nothing_is_settled() -> None:
    machine = gone_on_without_a()
    step(machine, TimePassed(), AppendRequested(1, 10), now=DEGRADED_RETRY_S)
    step(machine, AddsRefused(1, 0, 1, 1, Status.UNREACHABLE), ReplacementsChosen(()))
    assert step(machine, AddsStored(0, 1, 1, 1)) == []


def test_what_is_pending_when_a_fragment_is_settled_is_confirmed_in_the_next() -> None:
    machine = gone_on_without_a()
    step(machine, AppendRequested(1, 10))
    sends, settles = step(machine, listed("abc"), now=2.0)
    assert (sends, settles) == (SendAdds(0, A, 1, 1, 1), settled(1))
    assert step(machine, AddsStored(1, 0, 1, 1), AddsStored(2, 0, 1, 1)) == []
    again, confirms, _ = step(machine, MetadataWritten(1))
    assert (again, confirms) == (SendAdds(0, A, 2, 1, 1), ConfirmAdds(EntryId(1)))


def test_a_fragment_without_a_confirmed_entry_is_not_settled() -> None:
    """All of it is sent to the bookie that is back."""
    machine = writer()
    step(machine, listed("bc"), AppendRequested(1, 10), AWAY_A, ReplacementsChosen(()))
    assert step(machine, listed("abc")) == [SendAdds(0, A, 1, 0, 0)]
    step(machine, AddsStored(0, 1, 0, 0))
    assert machine.phase is WriterPhase.OPEN


def test_a_fragment_is_settled_when_all_are_back_that_it_was_written_without() -> None:
    """Of two that were away (Qw - Qa is 2) one alone would leave copies of the other to nobody."""
    metadata = LedgerMetadata(
        quorum=Quorum(4, 4, 2), fragments=(Fragment(EntryId(0), (A, B, C, D)),)
    )
    machine = writer(metadata)
    step(machine, listed("cd"), AppendRequested(1, 10), AWAY_A, ReplacementsChosen(()))
    step(machine, AddsRefused(1, 0, 0, 0, Status.UNREACHABLE), ReplacementsChosen(()))
    step(machine, AddsStored(2, 0, 0, 0), AddsStored(3, 0, 0, 0))
    assert machine.last_add_confirmed == 0
    (publishes,) = step(machine, listed("acd"))
    assert isinstance(publishes, PublishLac)
    settled = metadata.with_ensemble(EntryId(1), (A, B, C, D))
    assert step(machine, listed("abcd")) == [WriteMetadata(settled, 0)]


def test_who_was_replaced_lacks_nothing_of_the_last_fragment() -> None:
    machine = gone_on_without_a()
    step(machine, TimePassed(), AppendRequested(1, 10), now=DEGRADED_RETRY_S)
    refused = AddsRefused(0, 1, 1, 1, Status.UNREACHABLE)
    step(machine, refused, ReplacementsChosen(((0, D),)), MetadataWritten(1))
    assert step(machine, AddsStored(0, 2, 1, 1)) == []
    assert [f.first_entry for f in machine.metadata.fragments] == [0, 1]


@pytest.mark.parametrize("answer", [MarkingFailed(), None])
def test_a_mark_is_repeated_until_it_is_known_to_be_written(answer: MarkingFailed | None) -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AWAY_A)
    assert step(machine, ReplacementsChosen(())) == [MarkLacks((A,), EntryId(0))]
    if answer is not None:
        step(machine, answer)
    step(machine, TimePassed(), now=DEGRADED_RETRY_S)
    step(machine, AddsRefused(0, 1, 0, 0, Status.UNREACHABLE), now=DEGRADED_RETRY_S)
    effects = step(machine, ReplacementsChosen(()), now=DEGRADED_RETRY_S)
    one_at_a_time = answer is None
    assert effects == ([] if one_at_a_time else [MarkLacks((A,), EntryId(0))])


def test_who_failed_while_a_mark_was_written_is_marked_behind_it() -> None:
    striped = LedgerMetadata(quorum=METADATA.quorum, fragments=METADATA.fragments)
    machine = writer(striped, WriterConfig(delay_ensemble_change=True))
    step(machine, AppendRequested(1, 10))
    first = MarkLacks((A,), EntryId(0))
    assert step(machine, AWAY_A) == [first]
    assert step(machine, LacksMarked(first)) == []
    step(machine, TimePassed(), now=DEGRADED_RETRY_S)
    assert step(machine, AddsRefused(1, 0, 0, 0, Status.UNREACHABLE)) == [
        MarkLacks((B,), EntryId(0))
    ]


def test_a_writer_settles_nothing_when_it_is_to_close() -> None:
    """The close settles it."""
    machine = gone_on_without_a()
    step(machine, AppendRequested(1, 10), CloseRequested())
    step(machine, listed("abc"))
    step(machine, AddsStored(0, 1, 1, 1))
    confirms, closes = step(machine, AddsStored(1, 0, 1, 1))
    assert confirms == ConfirmAdds(EntryId(1))
    assert closes == WriteMetadata(METADATA.closed(EntryId(1), 20), 0)
    assert isinstance(step(machine, MetadataWritten(1))[0], FinishClose)


def test_a_lost_reply_to_a_change_that_was_wished_for_is_found_out() -> None:
    machine = gone_on_without_a()
    step(machine, listed("abc"), MetadataFailed(), now=2.0)
    assert step(machine, TimePassed(), now=3.0) == [ReadMetadata()]


def test_a_settling_change_has_all_the_patience_of_a_change() -> None:
    machine = gone_on_without_a()
    step(machine, listed("abc"), now=1000.0)
    step(machine, MetadataFailed(), now=1000.0 + METADATA_PATIENCE_S - 1)
    assert machine.phase is WriterPhase.CHANGING
    (failed,) = step(machine, TimePassed(), MetadataFailed(), now=1001.0 + METADATA_PATIENCE_S)
    assert isinstance(failed, FailWriter)


# What was in flight to a bookie when it failed.


def in_flight_to_c(*, count: int = 1) -> EventWriter:
    """Return a writer whose entries A and B have confirmed; C has answered nothing."""
    machine = writer()
    step(machine, AppendRequested(count, 10))
    step(machine, AddsStored(0, 0, 0, count - 1), AddsStored(1, 0, 0, count - 1))
    return machine


def refused(first: int, last: int) -> AddsRefused:
    return AddsRefused(2, 0, first, last, Status.UNREACHABLE)


def test_what_a_replaced_bookie_missed_is_marked_once_it_is_settled() -> None:
    """Nobody else would find it before all ledgers are checked."""
    machine = in_flight_to_c()
    assert step(machine, refused(0, 0)) == [ChooseReplacements((2,), (A, B, C), (A, B, C))]
    step(machine, ReplacementsChosen(((2, D),)))
    marks = MarkLacks((), EntryId(1), missed=(C,))
    assert step(machine, MetadataWritten(1))[0] == marks
    assert step(machine, LacksMarked(marks)) == []


def test_what_a_replaced_bookie_was_not_needed_for_yet_is_not_marked() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsStored(0, 0, 0, 0))
    step(machine, refused(0, 0), ReplacementsChosen(((2, D),)))
    assert step(machine, MetadataWritten(1)) == [SendAdds(2, D, 1, 0, 0)]


def test_what_was_in_flight_while_the_ledger_was_closed_is_marked_behind_that() -> None:
    """A mark of what is not settled yet would be taken for done."""
    machine = in_flight_to_c()
    closed = METADATA.closed(EntryId(0), 10)
    assert step(machine, CloseRequested()) == [WriteMetadata(closed, 0)]
    assert step(machine, refused(0, 0)) == []
    assert step(machine, MetadataWritten(1)) == [
        MarkLacks((), EntryId(0), missed=(C,)),
        FinishClose(closed, 1),
    ]


def test_what_could_not_be_marked_is_marked_with_the_next_change() -> None:
    machine = in_flight_to_c(count=2)
    step(machine, refused(0, 1), ReplacementsChosen(((2, D),)), MetadataWritten(1), MarkingFailed())
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 2, 2, Status.UNREACHABLE))
    step(machine, ReplacementsChosen(((0, C),)), AddsStored(2, 1, 2, 2))
    assert step(machine, MetadataWritten(2))[-1] == SendAdds(0, C, 1, 2, 2)  # C is back: a member
    step(machine, AddsStored(0, 1, 2, 2), AddsStored(1, 0, 2, 2), CloseRequested())
    assert step(machine, MetadataWritten(3))[0] == MarkLacks((), EntryId(2), missed=(C,))


def test_what_a_busy_bookie_refused_and_others_confirmed_meanwhile_is_marked_too() -> None:
    """It is asked again for what is not confirmed, and for nothing else."""
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(2, 0, 0, 0, Status.TOO_MANY_REQUESTS))
    step(machine, AddsStored(0, 0, 0, 0), AddsStored(1, 0, 0, 0))
    deadline = machine.deadline()
    assert deadline is not None
    assert step(machine, TimePassed(), now=deadline) == []
    step(machine, CloseRequested())
    assert step(machine, MetadataWritten(1))[0] == MarkLacks((), EntryId(0), missed=(C,))


def test_behind_the_close_nothing_waits_for_a_mark_that_is_being_written() -> None:
    machine = in_flight_to_c()
    step(machine, refused(0, 0), ReplacementsChosen(((2, D),)))
    under_way = step(machine, MetadataWritten(1))[0]
    assert under_way == MarkLacks((), EntryId(1), missed=(C,))
    step(machine, AppendRequested(1, 10), AddsStored(0, 0, 1, 1), AddsStored(1, 0, 1, 1))
    step(machine, CloseRequested(), AddsRefused(2, 1, 1, 1, Status.UNREACHABLE))
    assert step(machine, MetadataWritten(2))[0] == MarkLacks((), EntryId(1), missed=(D,))


def test_a_bookie_that_was_listed_all_the_time_is_back_when_it_is_listed_again() -> None:
    """It may have been cut off from the registry too: its process is the same."""
    machine = writer()
    step(machine, listed("abc"), AppendRequested(1, 10), AWAY_A)
    step(machine, ReplacementsChosen(()), LacksMarked(MarkLacks((A,), EntryId(0))))
    step(machine, AddsStored(1, 0, 0, 0), AddsStored(2, 0, 0, 0))
    assert step(machine, listed("abc")) == []
    assert step(machine, listed("bc")) == []
    assert step(machine, listed("abc")) == [settled(1)]


def test_nobody_is_left_while_there_is_no_other_bookie() -> None:
    machine = writer()
    step(machine, listed("abc"), listed("bc"))
    assert step(machine, TimePassed(), now=10 * LEAVE_GONE_S) == []


def test_who_takes_the_place_of_a_bookie_that_was_gone_is_not_left_with_it() -> None:
    machine = writer()
    step(machine, listed("abcd"), listed("bcd"))
    step(machine, TimePassed(), now=LEAVE_GONE_S)
    step(machine, ReplacementsChosen(((0, D),)), MetadataWritten(1), now=LEAVE_GONE_S)
    assert machine.deadline() is None


def test_a_bookie_that_went_later_is_left_later() -> None:
    machine, e = writer(), BookieId("e")
    step(machine, listed("abcd"))
    step(machine, BookiesListed(dict.fromkeys((B, C, D, e), "1")), now=5.0)
    step(machine, BookiesListed(dict.fromkeys((C, D, e), "1")), now=6.0)
    assert step(machine, TimePassed(), now=5.0 + LEAVE_GONE_S) == [
        ChooseReplacements((0,), (A, B, C), (A, B, C))
    ]
    step(machine, ReplacementsChosen(((0, D),)), MetadataWritten(1), now=5.0 + LEAVE_GONE_S)
    assert machine.deadline() == 6.0 + LEAVE_GONE_S
