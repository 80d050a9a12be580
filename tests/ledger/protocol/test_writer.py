"""The writer's machine, step by step: state in, event, exact effects."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ledger.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.protocol.common import (
    ChooseReplacements,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReadMetadata,
    ReplacementsChosen,
    TimePassed,
    WriteMetadata,
)
from ledger.protocol.writer import (
    BUSY_PATIENCE_S,
    BUSY_RETRY_S,
    DEGRADED_RETRY_S,
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
    MarkLacks,
    PublishLac,
    SendAdds,
    WriterEffect,
    WriterFailure,
)
from ledger.quorum import Quorum
from ledger.requests import Status
from tests.ledger.protocol.event_writer import AddsStored, AppendRequested, Event, EventWriter

A, B, C, D, E = (BookieId(name) for name in "abcde")
METADATA = LedgerMetadata(quorum=Quorum(3, 3, 2), fragments=(Fragment(EntryId(0), (A, B, C)),))


def writer(metadata: LedgerMetadata = METADATA, config: WriterConfig | None = None) -> EventWriter:
    return EventWriter(LedgerId(1), metadata, 0, config)


def step(machine: EventWriter, *events: Event, now: float = 0.0) -> list[WriterEffect]:
    """Apply all *events*; return the effects of the last."""
    effects: list[WriterEffect] = []
    for event in events:
        effects = machine.step(event, now=now)
        assert machine.deadline() is None or machine.phase not in {
            WriterPhase.CLOSED,
            WriterPhase.FAILED,
        }
    return effects


def changed(first: int, *bookies: BookieId) -> LedgerMetadata:
    return METADATA.with_ensemble(EntryId(first), bookies)


def test_an_append_is_sent_to_its_write_set() -> None:
    assert step(writer(), AppendRequested(2, 10)) == [
        SendAdds(0, A, 0, 0, 1),
        SendAdds(1, B, 0, 0, 1),
        SendAdds(2, C, 0, 0, 1),
    ]


def test_a_striped_append_is_sent_only_to_bookies_that_hold_it() -> None:
    striped = replace(METADATA, quorum=Quorum(3, 2, 2))
    assert step(writer(striped), AppendRequested(1, 10)) == [
        SendAdds(0, A, 0, 0, 0),
        SendAdds(1, B, 0, 0, 0),
    ]


def test_an_entry_is_confirmed_by_the_ack_quorum_and_the_idle_writer_tells_its_lac() -> None:
    machine = writer()
    assert step(machine, AppendRequested(1, 10), AddsStored(0, 0, 0, 0)) == []
    assert step(machine, AddsStored(2, 0, 0, 0)) == [
        ConfirmAdds(EntryId(0)),
        PublishLac(EntryId(0), 10, (A, B, C)),
    ]
    assert step(machine, AddsStored(1, 0, 0, 0)) == []


def test_entries_are_confirmed_in_order_only() -> None:
    """Rule 7."""
    machine = writer()
    step(machine, AppendRequested(2, 10), AddsStored(0, 0, 1, 1))
    assert step(machine, AddsStored(1, 0, 1, 1), AddsStored(0, 0, 0, 0)) == []
    assert step(machine, AddsStored(1, 0, 0, 0))[0] == ConfirmAdds(EntryId(1))


def test_a_failed_bookie_is_replaced_from_the_first_unconfirmed_entry_on() -> None:
    """Rules 19, 20."""
    machine = writer()
    step(machine, AppendRequested(2, 10), AddsStored(0, 0, 0, 0), AddsStored(1, 0, 0, 0))
    refused = AddsRefused(2, 0, 0, 1, Status.UNREACHABLE)
    assert step(machine, refused) == [ChooseReplacements((2,), (A, B, C), (A, B, C))]
    new = changed(1, A, B, D)
    assert step(machine, ReplacementsChosen(((2, D),))) == [WriteMetadata(new, 0)]
    assert step(machine, MetadataWritten(1)) == [
        MarkLacks((), EntryId(1), missed=(C,)),  # of entry 0, which C never gets from here
        SendAdds(2, D, 1, 1, 1),
    ]
    assert (machine.metadata, machine.version) == (new, 1)


def test_nothing_is_confirmed_while_the_ensemble_changes() -> None:
    """#1591, #1857: completions wait for the CAS, and count only the recorded ensemble."""
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsStored(2, 0, 0, 0))
    step(machine, AddsRefused(0, 0, 0, 0, Status.IO_ERROR))
    assert step(machine, AddsStored(1, 0, 0, 0)) == []
    assert step(machine, ReplacementsChosen(((0, D),)), AddsStored(0, 1, 0, 0)) == []
    assert machine.last_add_confirmed == -1
    assert step(machine, MetadataWritten(1)) == [
        SendAdds(0, D, 1, 0, 0),
        ConfirmAdds(EntryId(0)),
        PublishLac(EntryId(0), 10, (D, B, C)),
    ]


def test_acks_of_a_replaced_bookie_are_unset_for_all_entries_before_any_is_delivered() -> None:
    """#3005, #3041: with Qa = 2 both pending entries had counted the bookie that is replaced."""
    machine = writer()
    step(machine, AppendRequested(2, 10), AddsStored(0, 0, 1, 1), AddsStored(1, 0, 1, 1))
    step(machine, AddsRefused(0, 0, 0, 0, Status.IO_ERROR), ReplacementsChosen(((0, D),)))
    assert step(machine, MetadataWritten(1)) == [SendAdds(0, D, 1, 0, 1)]
    assert step(machine, AddsStored(1, 0, 0, 0)) == []
    assert step(machine, AddsStored(0, 1, 0, 1))[0] == ConfirmAdds(EntryId(1))


def test_failures_during_a_change_are_met_by_the_next_change() -> None:
    """Rule 24."""
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.IO_ERROR))
    assert step(machine, AddsRefused(1, 0, 0, 0, Status.IO_ERROR)) == []
    step(machine, ReplacementsChosen(((0, D),)))
    assert step(machine, MetadataWritten(1)) == [
        SendAdds(0, D, 1, 0, 0),
        ChooseReplacements((1,), (D, B, C, A), (D, B, C)),
    ]
    assert step(machine, ReplacementsChosen(((1, E),))) == [WriteMetadata(changed(0, D, E, C), 1)]


def test_a_bookie_may_come_back_and_everything_is_sent_to_it_again() -> None:
    """#4459, #4261: A -> D -> A gives no difference to the first ensemble, yet must re-send."""
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.IO_ERROR))
    step(machine, ReplacementsChosen(((0, D),)), MetadataWritten(1))
    step(machine, AddsRefused(0, 1, 0, 0, Status.IO_ERROR))
    assert step(machine, ReplacementsChosen(((0, A),)), MetadataWritten(2)) == [
        SendAdds(0, A, 2, 0, 0)
    ]
    assert step(machine, AddsStored(0, 0, 0, 0), AddsStored(1, 0, 0, 0)) == []
    assert step(machine, AddsStored(0, 2, 0, 0))[0] == ConfirmAdds(EntryId(0))


def test_a_lost_reply_of_the_ensemble_cas_is_recognised_as_success() -> None:
    """Rule 3."""
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.IO_ERROR))
    step(machine, ReplacementsChosen(((0, D),)))
    assert step(machine, MetadataFailed(), now=1.0) == []
    assert machine.deadline() is not None
    assert step(machine, TimePassed(), now=1.5) == [ReadMetadata()]
    assert machine.deadline() is None
    new = changed(0, D, B, C)
    assert step(machine, MetadataRead(new, 1), now=1.5) == [SendAdds(0, D, 1, 0, 0)]
    assert machine.version == 1


def test_edits_of_older_fragments_are_kept_by_the_ensemble_change() -> None:
    """Rule 25, BK-584: re-replication replaced a bookie of an older fragment meanwhile."""
    two = METADATA.with_ensemble(EntryId(0), (A, B, C)).with_ensemble(EntryId(5), (D, B, C))
    machine = writer(two)
    step(machine, AppendRequested(6, 10), AddsStored(1, 0, 0, 5), AddsStored(2, 0, 0, 5))
    step(machine, AddsRefused(0, 0, 0, 0, Status.IO_ERROR), ReplacementsChosen(((0, A),)))
    edited = replace(two, fragments=(Fragment(EntryId(0), (E, B, C)), two.fragments[1]))
    (effect,) = step(machine, MetadataRead(edited, 7))
    assert effect == WriteMetadata(edited.with_ensemble(EntryId(6), (A, B, C)), 7)


@pytest.mark.parametrize("stored", [METADATA.in_recovery(), METADATA.closed(EntryId(0), 5)])
def test_a_change_that_meets_a_recovery_ends_the_writer(stored: LedgerMetadata) -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.IO_ERROR))
    step(machine, ReplacementsChosen(((0, D),)))
    assert step(machine, MetadataRead(stored, 1)) == [FailWriter(WriterFailure.FENCED)]


def test_a_last_fragment_that_is_of_another_writer_ends_this_one() -> None:
    """It is not overwritten: what that one confirmed is in it."""
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.IO_ERROR))
    step(machine, ReplacementsChosen(((0, D),)))
    other = MetadataRead(changed(0, E, B, C), 1)
    assert step(machine, other) == [FailWriter(WriterFailure.FENCED)]


def test_what_the_metadata_store_says_unasked_changes_nothing() -> None:
    for event in (MetadataWritten(7), MetadataRead(None, 0), MetadataRead(METADATA, 7)):
        machine = writer()
        assert step(machine, AppendRequested(1, 10), event) == []
        assert (machine.phase, machine.version) == (WriterPhase.OPEN, 0)
    changing = writer()
    step(changing, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.IO_ERROR))
    assert step(changing, MetadataWritten(7)) == []
    assert changing.version == 0


def test_a_bookie_in_the_place_of_a_busy_one_has_its_own_time() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(2, 0, 0, 0, Status.TOO_MANY_REQUESTS))
    step(machine, AddsRefused(2, 0, 0, 0, Status.UNREACHABLE), ReplacementsChosen(((2, D),)))
    step(machine, MetadataWritten(1))
    busy = AddsRefused(2, 1, 0, 0, Status.TOO_MANY_REQUESTS)
    assert step(machine, busy, now=BUSY_PATIENCE_S) == []


def test_who_was_replaced_before_the_writer_went_on_without_another_may_be_picked_again() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(2, 0, 0, 0, Status.UNREACHABLE))
    step(machine, ReplacementsChosen(((2, D),)), AddsRefused(0, 0, 0, 0, Status.UNREACHABLE))
    choose = ChooseReplacements((0,), (A, B, D), (A, B, D))
    assert step(machine, MetadataWritten(1))[-1] == replace(choose, exclude=(A, B, D, C))
    step(machine, ReplacementsChosen(()))
    step(machine, TimePassed(), now=DEGRADED_RETRY_S)
    refused = AddsRefused(0, 1, 0, 0, Status.UNREACHABLE)
    assert step(machine, refused, now=DEGRADED_RETRY_S) == [choose]


def test_a_writer_that_is_closed_has_the_metadata_that_say_so_and_no_deadline() -> None:
    machine = writer()
    step(machine, CloseRequested(), MetadataFailed(), now=1.0)
    closed = METADATA.closed(NO_ENTRY, 0)
    assert step(machine, MetadataWritten(1), now=1.1) == [FinishClose(closed, 1)]
    assert (machine.metadata, machine.version, machine.deadline()) == (closed, 1, None)


def test_fenced_is_terminal() -> None:
    """Rule 10, BK-795."""
    machine = writer()
    step(machine, AppendRequested(1, 10))
    assert step(machine, AddsRefused(1, 0, 0, 0, Status.FENCED)) == [
        FailWriter(WriterFailure.FENCED)
    ]
    assert step(machine, AddsStored(0, 0, 0, 0), AddsStored(2, 0, 0, 0)) == []
    assert step(machine, CloseRequested()) == []


@pytest.mark.parametrize(
    ("status", "failure"),
    [(Status.FENCED, WriterFailure.FENCED), (Status.CONFLICT, WriterFailure.CONFLICT)],
)
def test_a_writer_that_has_failed_does_nothing_more(status: Status, failure: WriterFailure) -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsStored(0, 0, 0, 0))
    step(machine, AddsRefused(1, 0, 0, 0, Status.TOO_MANY_REQUESTS))
    assert step(machine, AddsRefused(2, 0, 0, 0, status)) == [FailWriter(failure)]
    for event in (
        AddsStored(1, 0, 0, 0),
        AddsRefused(1, 0, 0, 0, Status.FENCED),
        ReplacementsChosen(((2, D),)),
        CloseRequested(),
        TimePassed(),
    ):
        assert step(machine, event, now=1000.0) == []
    assert (machine.phase, machine.last_add_confirmed) == (WriterPhase.FAILED, NO_ENTRY)


def replaced_c() -> EventWriter:
    """Return a writer whose third bookie is D, and entry 0 is not confirmed."""
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(2, 0, 0, 0, Status.UNREACHABLE))
    step(machine, ReplacementsChosen(((2, D),)))
    assert step(machine, MetadataWritten(1)) == [SendAdds(2, D, 1, 0, 0)]
    return machine


def test_what_a_replaced_bookie_says_is_not_of_the_one_in_its_place() -> None:
    """Rule 8."""
    machine = replaced_c()
    assert step(machine, AddsRefused(2, 0, 0, 0, Status.FENCED)) == []
    assert step(machine, AddsStored(0, 0, 0, 0), AddsStored(2, 0, 0, 0)) == []
    assert step(machine, AddsStored(2, 1, 0, 0))[0] == ConfirmAdds(EntryId(0))


def test_a_success_of_a_replaced_bookie_gives_a_busy_one_no_time() -> None:
    machine, busy = replaced_c(), AddsRefused(2, 1, 0, 0, Status.TOO_MANY_REQUESTS)
    assert step(machine, busy, AddsStored(2, 0, 0, 0)) == []
    choose = ChooseReplacements((2,), (A, B, D), (A, B, D))
    assert step(machine, busy, now=BUSY_PATIENCE_S) == [choose]


def test_a_bookie_that_is_down_is_not_met_again() -> None:
    machine, refused = writer(), AddsRefused(2, 0, 0, 0, Status.UNREACHABLE)
    step(machine, AppendRequested(1, 10), refused, ReplacementsChosen(()))
    assert step(machine, refused) == []
    assert machine.phase is WriterPhase.OPEN


def test_whom_nobody_asked_for_gets_no_place() -> None:
    machine = writer()
    assert step(machine, AppendRequested(1, 10), ReplacementsChosen(((2, D),))) == []
    assert machine.phase is WriterPhase.OPEN


def test_who_registers_while_the_ensemble_changes_is_tried_behind_it() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(2, 0, 0, 0, Status.UNREACHABLE))
    assert step(machine, BookiesListed(dict.fromkeys((A, B, C, D), "2"))) == []
    assert step(machine, ReplacementsChosen(((2, D),))) == [WriteMetadata(changed(0, A, B, D), 0)]


def test_a_new_change_or_a_bookie_that_registers_takes_the_place_of_the_next_try() -> None:
    for event in (
        AddsRefused(1, 0, 0, 0, Status.UNREACHABLE),
        BookiesListed(dict.fromkeys((A, B, C), "2")),
    ):
        machine = writer()
        step(machine, AppendRequested(1, 10), AddsRefused(2, 0, 0, 0, Status.UNREACHABLE))
        step(machine, ReplacementsChosen(()))
        assert machine.deadline() == DEGRADED_RETRY_S
        assert step(machine, event) != []
        assert machine.deadline() is None


def test_without_a_replacement_the_writer_goes_on_with_an_ack_quorum() -> None:
    """Rule 27; and the bookie that was down is tried again later."""
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.UNREACHABLE))
    assert step(machine, ReplacementsChosen(())) == [MarkLacks((A,), EntryId(0))]
    assert machine.is_degraded
    step(machine, AddsStored(1, 0, 0, 0))
    assert step(machine, AddsStored(2, 0, 0, 0))[0] == ConfirmAdds(EntryId(0))
    assert step(machine, AppendRequested(1, 10)) == [
        SendAdds(1, B, 0, 1, 1),
        SendAdds(2, C, 0, 1, 1),
    ]
    assert machine.deadline() == DEGRADED_RETRY_S
    assert step(machine, TimePassed(), now=DEGRADED_RETRY_S) == [SendAdds(0, A, 1, 1, 1)]
    assert not machine.is_degraded


def test_with_fewer_bookies_than_the_ack_quorum_the_writer_fails() -> None:
    """Rule 26."""
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.UNREACHABLE))
    step(machine, AddsRefused(1, 0, 0, 0, Status.UNREACHABLE))
    assert step(machine, ReplacementsChosen(())) == [FailWriter(WriterFailure.NOT_ENOUGH_BOOKIES)]
    assert machine.failed == (A, B)


def test_a_busy_bookie_is_asked_again_not_replaced() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10))
    assert step(machine, AddsRefused(0, 0, 0, 0, Status.TOO_MANY_REQUESTS), now=1.0) == []
    assert machine.deadline() == 1.0 + BUSY_RETRY_S
    assert step(machine, TimePassed(), now=2.0) == [SendAdds(0, A, 0, 0, 0)]


def test_a_bookie_that_stays_busy_is_replaced_although_the_others_are_not() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10))
    busy = AddsRefused(0, 0, 0, 0, Status.TOO_MANY_REQUESTS)
    assert step(machine, busy, now=1.0) == []
    step(machine, AddsStored(1, 0, 0, 0), now=2.0)
    assert step(machine, busy, now=0.9 + BUSY_PATIENCE_S) == []
    assert step(machine, busy, now=1.0 + BUSY_PATIENCE_S) == [
        ChooseReplacements((0,), (A, B, C), (A, B, C))
    ]


def test_a_success_of_the_busy_bookie_gives_it_its_time_again() -> None:
    machine = writer()
    step(machine, AppendRequested(2, 10))
    busy = AddsRefused(0, 0, 1, 1, Status.TOO_MANY_REQUESTS)
    step(machine, busy, AddsStored(0, 0, 0, 0), now=1.0)
    assert step(machine, busy, now=1.0 + BUSY_PATIENCE_S) == []


def test_a_busy_bookie_is_not_sent_what_it_does_not_hold() -> None:
    """Found by the simulator (seed 9186): what is left of the range is of other bookies."""
    machine = writer(replace(METADATA, quorum=Quorum(3, 2, 1)))
    step(machine, AppendRequested(2, 10))
    step(machine, AddsRefused(0, 0, 0, 1, Status.TOO_MANY_REQUESTS), now=1.0)
    step(machine, AddsStored(1, 0, 0, 0), now=1.0)
    assert machine.last_add_confirmed == 0
    assert step(machine, TimePassed(), now=2.0) == []


def recorded_a_change() -> EventWriter:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(2, 0, 0, 0, Status.UNREACHABLE))
    step(machine, ReplacementsChosen(((2, D),)), MetadataFailed())
    assert step(machine, TimePassed(), now=1.0) == [ReadMetadata()]
    step(machine, MetadataRead(changed(0, A, B, D), 1), now=1.0)
    return machine


def went_on_degraded() -> EventWriter:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(2, 0, 0, 0, Status.UNREACHABLE))
    step(machine, ReplacementsChosen(()))
    return machine


def stays_with_one_that_is_gone() -> EventWriter:
    machine = writer()
    step(machine, AppendRequested(1, 10), BookiesListed({A: "1", B: "1", D: "1"}))
    leave_at = machine.deadline()
    assert leave_at is not None
    assert step(machine, TimePassed(), now=leave_at)[-1] == (
        ChooseReplacements((2,), (A, B, C), (A, B, C))
    )
    step(machine, ReplacementsChosen(()), now=leave_at)
    return machine


@pytest.mark.parametrize(
    "prepared", [recorded_a_change, went_on_degraded, stays_with_one_that_is_gone]
)
def test_a_close_has_its_own_time_after_a_change(prepared: Callable[[], EventWriter]) -> None:
    machine = prepared()
    now = 2 * METADATA_PATIENCE_S
    step(machine, AddsStored(0, 0, 0, 0), AddsStored(1, 0, 0, 0), now=now)
    assert isinstance(step(machine, CloseRequested(), now=now)[-1], WriteMetadata)
    assert step(machine, MetadataFailed(), now=now) == []
    assert step(machine, TimePassed(), now=now + 1.0) == [ReadMetadata()]


def test_metadata_that_never_answers_ends_the_writer() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.IO_ERROR))
    step(machine, ReplacementsChosen(((0, D),)), now=0.0)
    effects = step(machine, MetadataFailed(), now=METADATA_PATIENCE_S + 1)
    assert effects == [FailWriter(WriterFailure.METADATA_UNAVAILABLE)]


def test_close_waits_for_pending_entries_then_writes_closed() -> None:
    machine = writer()
    step(machine, AppendRequested(2, 10))
    assert step(machine, CloseRequested(), AddsStored(0, 0, 0, 1)) == []
    closed = METADATA.closed(EntryId(1), 10)
    assert step(machine, AddsStored(1, 0, 0, 1)) == [
        ConfirmAdds(EntryId(1)),
        WriteMetadata(closed, 0),
    ]
    assert step(machine, MetadataWritten(1)) == [FinishClose(closed, 1)]
    assert machine.phase is WriterPhase.CLOSED


def test_an_empty_ledger_closes_at_minus_one() -> None:
    closed = METADATA.closed(EntryId(-1), 0)
    assert step(writer(), CloseRequested()) == [WriteMetadata(closed, 0)]


def test_closing_a_ledger_that_was_closed_at_the_same_end_succeeds() -> None:
    """Rule 51."""
    machine = writer()
    step(machine, CloseRequested())
    closed = changed(0, A, B, D).closed(NO_ENTRY, 0)  # a recovery may replace bookies, too
    assert step(machine, MetadataRead(closed, 3)) == [FinishClose(closed, 3)]


@pytest.mark.parametrize("stored", [METADATA.in_recovery(), METADATA.closed(EntryId(4), 9)])
def test_closing_a_ledger_that_another_took_is_an_error(stored: LedgerMetadata) -> None:
    machine = writer()
    step(machine, CloseRequested())
    assert step(machine, MetadataRead(stored, 3)) == [FailWriter(WriterFailure.FENCED)]


def test_what_bookies_say_while_the_ledger_is_closed_decides_nothing() -> None:
    """All is confirmed by then: only the CAS tells whether the close or a recovery won."""
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsStored(0, 0, 0, 0), AddsStored(1, 0, 0, 0))
    closed = METADATA.closed(EntryId(0), 10)
    assert step(machine, CloseRequested()) == [WriteMetadata(closed, 0)]
    assert step(machine, AddsRefused(2, 0, 0, 0, Status.FENCED)) == []
    assert step(machine, MetadataWritten(1))[-1] == FinishClose(closed, 1)


def test_a_lost_reply_of_the_closing_cas_is_recognised_as_success() -> None:
    machine = writer()
    step(machine, CloseRequested(), MetadataFailed(), now=1.0)
    assert step(machine, TimePassed(), now=1.5) == [ReadMetadata()]
    closed = METADATA.closed(EntryId(-1), 0)
    assert step(machine, MetadataRead(closed, 1), now=1.5) == [FinishClose(closed, 1)]


def test_a_closing_cas_that_did_not_happen_is_written_again() -> None:
    machine = writer()
    step(machine, CloseRequested(), MetadataFailed(), now=1.0)
    step(machine, TimePassed(), now=1.5)
    effects = step(machine, MetadataRead(METADATA, 0), now=1.5)
    assert effects == [WriteMetadata(METADATA.closed(EntryId(-1), 0), 0)]


def test_a_close_that_meets_one_conflict_after_the_other_ends() -> None:
    machine = writer()
    step(machine, CloseRequested())
    assert step(machine, MetadataRead(METADATA, 1), now=0.0)
    effects = step(machine, MetadataRead(METADATA, 2), now=METADATA_PATIENCE_S)
    assert effects == [FailWriter(WriterFailure.METADATA_UNAVAILABLE)]


def test_a_close_of_a_deleted_ledger_fails() -> None:
    machine = writer()
    step(machine, CloseRequested())
    assert step(machine, MetadataRead(None, -1)) == [FailWriter(WriterFailure.DELETED)]


def test_a_close_waits_for_the_ensemble_change() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.IO_ERROR))
    step(machine, ReplacementsChosen(((0, D),)), CloseRequested())
    assert step(machine, AddsStored(1, 0, 0, 0), AddsStored(2, 0, 0, 0)) == []
    assert step(machine, MetadataWritten(1)) == [
        SendAdds(0, D, 1, 0, 0),
        ConfirmAdds(EntryId(0)),
        WriteMetadata(changed(0, D, B, C).closed(EntryId(0), 10), 1),
    ]


def test_a_bookie_that_fails_after_the_entry_was_confirmed_is_still_replaced() -> None:
    """Rule 28, #1390."""
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsStored(0, 0, 0, 0), AddsStored(1, 0, 0, 0))
    assert step(machine, AddsRefused(2, 0, 0, 0, Status.UNREACHABLE)) == [
        ChooseReplacements((2,), (A, B, C), (A, B, C))
    ]


def test_a_bookie_that_is_put_in_while_the_writer_is_idle_is_told_the_lac() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsStored(0, 0, 0, 0), AddsStored(1, 0, 0, 0))
    step(machine, AddsRefused(2, 0, 0, 0, Status.UNREACHABLE), ReplacementsChosen(((2, D),)))
    assert step(machine, MetadataWritten(1))[-1] == PublishLac(EntryId(0), 10, (A, B, D))


def test_a_bookie_that_was_down_is_told_the_lac_when_it_is_tried_again() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsStored(0, 0, 0, 0), AddsStored(1, 0, 0, 0))
    step(machine, AddsRefused(2, 0, 0, 0, Status.UNREACHABLE), ReplacementsChosen(()))
    assert step(machine, TimePassed(), now=DEGRADED_RETRY_S) == [
        PublishLac(EntryId(0), 10, (A, B, C))
    ]


def test_some_replacements_are_taken_and_the_writer_goes_on_without_the_others() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.IO_ERROR))
    step(machine, AddsRefused(1, 0, 0, 0, Status.IO_ERROR), ReplacementsChosen(((0, D),)))
    step(machine, MetadataWritten(1))
    assert step(machine, ReplacementsChosen(())) == [MarkLacks((B,), EntryId(0))]
    assert machine.is_degraded
    step(machine, AddsStored(0, 1, 0, 0))
    assert step(machine, AddsStored(2, 0, 0, 0))[0] == ConfirmAdds(EntryId(0))


def test_the_ensemble_changes_only_so_often() -> None:
    """Rule 28."""
    machine = writer(config=WriterConfig(ensemble_changes_max=1))
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.IO_ERROR))
    step(machine, ReplacementsChosen(((0, D),)), MetadataWritten(1))
    effects = step(machine, AddsRefused(0, 1, 0, 0, Status.IO_ERROR))
    assert effects == [FailWriter(WriterFailure.NOT_ENOUGH_BOOKIES)]


DELAYED = WriterConfig(delay_ensemble_change=True)


def test_a_delayed_change_waits_while_an_ack_quorum_is_left() -> None:
    """Rule 27."""
    machine = writer(config=DELAYED)
    step(machine, AppendRequested(1, 10))
    effects = step(machine, AddsRefused(0, 0, 0, 0, Status.UNREACHABLE))
    assert effects == [MarkLacks((A,), EntryId(0))]
    assert machine.is_degraded
    step(machine, AddsStored(1, 0, 0, 0))
    assert step(machine, AddsStored(2, 0, 0, 0)) == [
        ConfirmAdds(EntryId(0)),
        PublishLac(EntryId(0), 10, (B, C)),
    ]
    assert step(machine, TimePassed(), now=DEGRADED_RETRY_S) == [
        PublishLac(EntryId(0), 10, (A, B, C))
    ]
    assert not machine.is_degraded


def test_a_delayed_change_replaces_all_that_failed_once_a_quorum_is_short() -> None:
    machine = writer(config=DELAYED)
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.UNREACHABLE))
    assert step(machine, AddsRefused(2, 0, 0, 0, Status.UNREACHABLE)) == [
        ChooseReplacements((0, 2), (A, B, C), (A, B, C))
    ]
    effects = step(machine, ReplacementsChosen(((0, D), (2, E))))
    assert effects == [WriteMetadata(changed(0, D, B, E), 0)]


def test_a_delayed_change_counts_the_write_sets_of_a_striped_ensemble_one_by_one() -> None:
    """With E = 4, Qw = 2, Qa = 1 two bookies side by side are a whole write set."""
    striped = LedgerMetadata(
        quorum=Quorum(4, 2, 1), fragments=(Fragment(EntryId(0), (A, B, C, D)),)
    )
    machine = writer(striped, DELAYED)
    step(machine, AppendRequested(4, 10))
    (marks,) = step(machine, AddsRefused(0, 0, 0, 3, Status.UNREACHABLE))
    assert marks == MarkLacks((A,), EntryId(0))
    assert step(machine, AddsRefused(2, 0, 0, 3, Status.UNREACHABLE)) == []
    (effect,) = step(machine, AddsRefused(1, 0, 0, 3, Status.UNREACHABLE))
    assert effect == ChooseReplacements((0, 1, 2), (A, B, C, D), (A, B, C, D))


@pytest.mark.parametrize("config", [WriterConfig(), DELAYED])
def test_a_bookie_that_knows_of_no_such_ledger_makes_the_writer_ask(config: WriterConfig) -> None:
    """It was deleted, or that bookie lost it; with no CAS to tell, the metadata is read."""
    machine = writer(config=config)
    step(machine, AppendRequested(1, 10))
    assert step(machine, AddsRefused(0, 0, 0, 0, Status.NO_SUCH_LEDGER)) == [
        ChooseReplacements((0,), (A, B, C), (A, B, C))
    ]
    assert step(machine, ReplacementsChosen(())) == [ReadMetadata()]
    assert step(machine, MetadataRead(None, -1)) == [FailWriter(WriterFailure.DELETED)]


def test_a_ledger_that_one_bookie_forgot_is_written_on() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.NO_SUCH_LEDGER))
    step(machine, ReplacementsChosen(()), AddsStored(1, 0, 0, 0), AddsStored(2, 0, 0, 0))
    marks, confirms, _ = step(machine, MetadataRead(METADATA, 0))
    assert (marks, confirms) == (MarkLacks((A,), EntryId(0)), ConfirmAdds(EntryId(0)))


def test_an_ensemble_change_of_a_deleted_ledger_ends_the_writer() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.UNREACHABLE))
    step(machine, ReplacementsChosen(((0, D),)))
    assert step(machine, MetadataRead(None, -1)) == [FailWriter(WriterFailure.DELETED)]


@pytest.mark.parametrize("config", [WriterConfig(), DELAYED])
def test_a_bookie_with_another_key_is_replaced_at_once(config: WriterConfig) -> None:
    machine = writer(config=config)
    step(machine, AppendRequested(1, 10))
    assert step(machine, AddsRefused(0, 0, 0, 0, Status.WRONG_KEY)) == [
        ChooseReplacements((0,), (A, B, C), (A, B, C))
    ]
    step(machine, ReplacementsChosen(((0, D),)), MetadataWritten(1))
    assert machine.metadata == changed(0, D, B, C)
    effects = step(machine, AddsStored(0, 1, 0, 0), AddsStored(1, 0, 0, 0))
    assert effects[0] == ConfirmAdds(EntryId(0))


def test_a_bookie_that_does_not_know_yet_what_was_granted_is_replaced() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10))
    assert step(machine, AddsRefused(0, 0, 0, 0, Status.ACCESS_DENIED)) == [
        ChooseReplacements((0,), (A, B, C), (A, B, C))
    ]


def test_a_writer_that_too_many_bookies_do_not_allow_is_over() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.ACCESS_DENIED))
    assert step(machine, AddsRefused(1, 0, 0, 0, Status.ACCESS_DENIED)) == [
        FailWriter(WriterFailure.ACCESS_DENIED)
    ]


def test_without_another_bookie_one_that_does_not_allow_it_is_said_to_be_the_reason() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.ACCESS_DENIED))
    step(machine, AddsRefused(1, 0, 0, 0, Status.UNREACHABLE))
    assert step(machine, ReplacementsChosen(())) == [FailWriter(WriterFailure.ACCESS_DENIED)]


def test_one_bookie_with_another_key_and_none_in_its_place_is_no_obstacle() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 0, 0, Status.WRONG_KEY))
    step(machine, ReplacementsChosen(()), AddsStored(1, 0, 0, 0))
    assert step(machine, AddsStored(2, 0, 0, 0))[0] == ConfirmAdds(EntryId(0))


def strangers_have_it() -> tuple[EventWriter, list[WriterEffect]]:
    machine = writer()
    step(machine, AppendRequested(2, 10), AddsStored(2, 0, 0, 1))
    step(machine, AddsRefused(0, 0, 0, 1, Status.WRONG_KEY))
    step(machine, AddsRefused(1, 0, 0, 1, Status.WRONG_KEY))
    return machine, step(machine, ReplacementsChosen(()))


EMPTY = METADATA.closed(NO_ENTRY, 0)


def test_a_ledger_that_strangers_have_is_closed_as_empty_so_that_outcomes_are_known() -> None:
    machine, effects = strangers_have_it()
    assert effects == [WriteMetadata(EMPTY, 0)]
    assert step(machine, AppendRequested(1, 10), AddsStored(1, 0, 0, 2)) == [], "too late"
    assert step(machine, MetadataWritten(1)) == [FailWriter(WriterFailure.CLOSED_EMPTY)]


def test_the_lost_reply_of_closing_as_empty_is_recognised() -> None:
    machine, _ = strangers_have_it()
    assert step(machine, MetadataFailed()) == []
    assert step(machine, TimePassed(), now=1.0) == [ReadMetadata()]
    assert step(machine, MetadataRead(METADATA, 0)) == [WriteMetadata(EMPTY, 0)]
    assert step(machine, MetadataRead(EMPTY, 1)) == [FailWriter(WriterFailure.CLOSED_EMPTY)]


@pytest.mark.parametrize("stored", [METADATA.in_recovery(), METADATA.closed(EntryId(0), 5)])
def test_a_ledger_that_is_recovered_is_not_closed_as_empty(stored: LedgerMetadata) -> None:
    machine, _ = strangers_have_it()
    assert step(machine, MetadataRead(stored, 1)) == [FailWriter(WriterFailure.FENCED)]


def test_what_was_confirmed_is_not_closed_as_empty() -> None:
    machine = writer()
    step(machine, AppendRequested(1, 10), AddsStored(0, 0, 0, 0), AddsStored(1, 0, 0, 0))
    step(machine, AppendRequested(1, 10), AddsRefused(0, 0, 1, 1, Status.WRONG_KEY))
    step(machine, AddsRefused(1, 0, 1, 1, Status.WRONG_KEY))
    assert step(machine, ReplacementsChosen(())) == [FailWriter(WriterFailure.WRONG_KEY)]
