from dlog.manifest import Sealed
from dlog.protocol.roll import (
    BACKOFF_S,
    AddsConfirmed,
    CloseLedger,
    CreateSegmentLedger,
    HoldAdds,
    LedgerClosed,
    LedgerCreated,
    ListSegment,
    Roll,
    Rolled,
    RollOrdered,
    RollTimePassed,
    SealSegment,
    SegmentListed,
    SegmentSealed,
    StepFailed,
    SwitchSegment,
)
from dlog.settings import LogSettings
from ledger.ids import EntryId, LedgerId

SEALED = Sealed(EntryId(0), 1, 1, 0, 0, 0, 0)
NEXT = LedgerId(9)


def roll(**settings: float) -> Roll:
    return Roll(LogSettings(**settings), 4, now=0.0)  # type: ignore[arg-type]


def at_holding() -> Roll:
    machine = roll()
    machine.grown(1, 10, 0)
    machine.step(RollOrdered(), now=0)
    machine.step(LedgerCreated(NEXT), now=0)
    machine.step(SegmentListed(), now=0)
    return machine


def test_the_order_is_create_list_hold_switch_close_seal() -> None:
    machine = roll(roll_bytes=100)
    assert machine.grown(1, 99, 0) == []
    assert machine.grown(2, 100, 1) == [CreateSegmentLedger(5)]
    assert machine.step(LedgerCreated(NEXT), now=2) == [ListSegment(5, NEXT)]
    assert machine.step(SegmentListed(), now=3) == [HoldAdds()]
    assert machine.step(AddsConfirmed(), now=4) == [SwitchSegment(5), CloseLedger(recover=False)]
    assert machine.segment == 5
    assert machine.step(LedgerClosed(SEALED), now=5) == [SealSegment(4, SEALED)]
    assert machine.step(SegmentSealed(), now=6) == [Rolled(5)]
    assert machine.grown(1, 100, 7) == [CreateSegmentLedger(6)]


def test_records_roll_too() -> None:
    machine = roll(roll_records=3)
    assert machine.grown(2, 10, 0) == []
    assert machine.grown(3, 10, 0) == [CreateSegmentLedger(5)]


def test_age_rolls_a_segment_that_is_not_empty_by_timer() -> None:
    machine = roll(roll_age_s=60.0)
    assert machine.deadline() is None
    machine.grown(1, 1, 10)
    assert machine.deadline() == 60.0
    assert machine.step(RollTimePassed(), now=59.9) == []
    assert machine.step(RollTimePassed(), now=60) == [CreateSegmentLedger(5)]


def test_the_age_of_the_new_segment_counts_from_the_switch() -> None:
    machine = at_holding()
    machine.step(AddsConfirmed(), now=100)
    machine.step(LedgerClosed(SEALED), now=101)
    machine.step(SegmentSealed(), now=102)
    machine.grown(1, 1, 103)
    assert machine.deadline() == 100 + LogSettings().roll_age_s


def test_no_limit_means_no_roll() -> None:
    machine = roll(roll_bytes=0, roll_age_s=0.0, roll_records=0)
    assert machine.grown(10**9, 10**15, 10**9) == []
    assert machine.deadline() is None


def test_a_roll_on_request_of_an_empty_segment_is_done_at_once() -> None:
    assert roll().step(RollOrdered(), now=0) == [Rolled(5)]


def test_a_second_roll_waits_for_the_seal_so_two_segments_are_open_at_most() -> None:
    machine = roll(roll_records=1)
    machine.grown(1, 1, 0)
    machine.step(LedgerCreated(NEXT), now=0)
    machine.step(SegmentListed(), now=0)
    machine.step(AddsConfirmed(), now=0)
    assert machine.grown(5, 5, 0) == []
    assert machine.step(LedgerClosed(SEALED), now=0) == [SealSegment(4, SEALED)]
    assert machine.step(SegmentSealed(), now=0) == [Rolled(5), CreateSegmentLedger(6)]


def test_a_request_during_a_roll_rolls_again_if_there_is_something_new() -> None:
    machine = at_holding()
    machine.step(AddsConfirmed(), now=0)
    machine.step(RollOrdered(), now=0)
    machine.grown(1, 1, 0)
    machine.step(LedgerClosed(SEALED), now=0)
    assert machine.step(SegmentSealed(), now=0) == [Rolled(5), CreateSegmentLedger(6)]


def test_trouble_postpones_a_step_with_growing_waits() -> None:
    machine = roll(roll_records=1)
    machine.grown(1, 1, 0)
    assert machine.step(StepFailed(), now=10) == []
    assert machine.deadline() == 10 + BACKOFF_S
    assert machine.step(RollTimePassed(), now=10 + BACKOFF_S / 2) == [], "a timer may be early"
    assert machine.step(RollTimePassed(), now=10 + BACKOFF_S) == [CreateSegmentLedger(5)]
    assert machine.deadline() is None, "it is under way"
    machine.step(StepFailed(), now=20)
    assert machine.deadline() == 20 + 2 * BACKOFF_S


def test_trouble_of_one_step_is_none_of_the_next() -> None:
    machine = roll(roll_records=1)
    machine.grown(1, 1, 0)
    for now in (1, 2):
        machine.step(StepFailed(), now=now)
        machine.step(RollTimePassed(), now=now + 0.9)
    machine.step(LedgerCreated(NEXT), now=3)
    machine.step(SegmentListed(), now=3)
    assert machine.step(AddsConfirmed(), now=3) == [SwitchSegment(5), CloseLedger(recover=False)]
    machine.step(StepFailed(), now=4)
    assert machine.deadline() == 4 + BACKOFF_S


def test_listing_is_repeated_with_the_same_ledger_because_it_may_be_listed() -> None:
    machine = roll()
    machine.grown(1, 1, 0)
    machine.step(RollOrdered(), now=0)
    machine.step(LedgerCreated(NEXT), now=0)
    machine.step(StepFailed(), now=0)
    assert machine.step(RollTimePassed(), now=1) == [ListSegment(5, NEXT)]


def test_what_is_appended_meanwhile_does_not_disturb_a_postponed_roll() -> None:
    machine = roll(roll_records=1)
    machine.grown(1, 1, 0)
    machine.step(StepFailed(), now=0)
    assert machine.grown(2, 2, 0.1) == []


def test_a_close_that_failed_is_repeated_as_a_recovery() -> None:
    machine = at_holding()
    machine.step(AddsConfirmed(), now=0)
    machine.step(StepFailed(), now=0)
    assert machine.step(RollTimePassed(), now=1) == [CloseLedger(recover=True)]


def test_a_seal_that_failed_is_repeated() -> None:
    machine = at_holding()
    machine.step(AddsConfirmed(), now=0)
    machine.step(LedgerClosed(SEALED), now=0)
    machine.step(StepFailed(), now=0)
    assert machine.step(RollTimePassed(), now=1) == [SealSegment(4, SEALED)]


def test_idleness_rolls_a_segment_that_is_not_empty_by_timer() -> None:
    machine = roll(roll_idle_s=5.0, roll_age_s=0.0)
    assert machine.deadline() is None
    machine.grown(1, 1, 10)
    assert machine.deadline() == 15
    machine.grown(2, 2, 12)
    assert machine.deadline() == 17
    assert machine.step(RollTimePassed(), now=16) == []
    assert machine.step(RollTimePassed(), now=17) == [CreateSegmentLedger(5)]


def test_whichever_limit_comes_first_rolls() -> None:
    machine = roll(roll_idle_s=5.0, roll_age_s=12.0)
    machine.grown(1, 1, 2)
    assert machine.deadline() == 7
    machine.grown(2, 2, 9)
    assert machine.deadline() == 12
