"""The machine of a log's writer: each way through its table, as a sentence."""

import pytest

from dlog.errors import (
    AppendFailed,
    CloseTimedOut,
    DamagedLog,
    InvalidPosition,
    LogClosed,
    LogSealed,
    LostOwnership,
    RollPostponed,
    TxidOutOfOrder,
)
from dlog.position import NO_TXID
from dlog.protocol import roll
from dlog.protocol.log_writer import (
    EMPTY_CLOSES_MAX,
    REOPEN_BACKOFF_S,
    REOPEN_BACKOFF_S_MAX,
    ROLL_PATIENCE_S,
    TRANSITIONS,
    LogWriterPhase,
)
from dlog.protocol.log_writer_events import (
    AbandonRequested,
    AddFailed,
    Answer,
    Broke,
    Closed,
    CloseFailed,
    CloseRequested,
    CloseSegment,
    Confirm,
    FlushRequested,
    LeaveUnknown,
    LedgersLetGo,
    LetGo,
    Lost,
    Note,
    Refuse,
    ReopenFailed,
    RollFailed,
    RollRequested,
    RollStepped,
    SegmentClosed,
    SendRefused,
    SiblingNamed,
    StopWork,
    TakeOver,
    TakeRollStep,
    TimePassed,
    TroubleMet,
)
from dlog.protocol.packer import PARTIAL_MAX, Packer
from ledger.errors import (
    BadVersion,
    KeyDiffers,
    LedgerFenced,
    LogError,
    MetadataUnavailable,
    NotEnoughBookies,
    TooManyPending,
    WriterFailed,
)
from ledger.ids import LedgerId
from tests.dlog.protocol.writing_rig import (
    FIRST,
    NEXT,
    Effect,
    Entry,
    RecordsGathered,
    Rig,
    Sends,
    reopened,
    seal,
)

TROUBLE = NotEnoughBookies(2, ["b1"])
STRANGER = KeyDiffers(1, closed_empty=True)


def of(kind: type, effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def without_notes(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if not isinstance(effect, Note)]


# Appending.


def test_records_that_gathered_are_sent_as_one_entry() -> None:
    rig = Rig()
    batch = rig.append(b"a", b"b")
    rig.append(b"c")
    assert rig.woken == 1
    assert rig.step(RecordsGathered()) == [Sends(FIRST, (Entry(batch, 0, NO_TXID),))]
    assert batch.count == 3
    assert rig.step(RecordsGathered()) == []


def test_what_waits_for_the_window_is_sent_when_an_entry_is_confirmed() -> None:
    rig = Rig()
    first, *_ = rig.sent(*[b"a"] * PARTIAL_MAX)
    late = rig.append(b"b", b"c")
    assert rig.step(RecordsGathered()) == []
    rig.woken = 0
    assert rig.confirm() == [Confirm(first, 0, 1, 0)]
    assert rig.woken == 1
    assert rig.append(b"of who heard of it") is late
    assert rig.step(RecordsGathered()) == [Sends(FIRST, (Entry(late, PARTIAL_MAX, NO_TXID),))]


def test_a_full_group_that_waits_for_the_window_is_sent_in_the_step_that_makes_room() -> None:
    rig = Rig()
    rig.accumulator.packer = rig.machine._packer = Packer(
        entry_bytes_full=1, partial_max=1, sent_max=1
    )
    (first,) = rig.sent(b"a")
    late = rig.append(b"b")
    assert rig.step(RecordsGathered()) == []
    assert rig.confirm() == [Confirm(first, 0, 1, 0), Sends(FIRST, (Entry(late, 1, NO_TXID),))]


def test_the_last_txid_is_that_of_the_last_confirmed_record_that_has_one() -> None:
    rig = Rig()
    rig.sent(b"a", txid=5)
    rig.sent(b"b")
    assert rig.machine.confirmed_txid == NO_TXID
    rig.confirm(0)
    rig.confirm(1)
    assert rig.machine.confirmed_txid == 5
    later = rig.append(b"c", txid=7)
    (send,) = rig.step(RecordsGathered())
    assert send == Sends(FIRST, (Entry(later, 2, 5),))


def test_entries_that_the_ledger_did_not_take_are_certainly_not_sent() -> None:
    rig = Rig(reopen_timeout_s=0)
    sent = rig.sent(b"a", b"b")
    effects = without_notes(rig.step(SendRefused(FIRST, 1, TROUBLE)))
    assert effects[1:3] == [
        LeaveUnknown(sent[0], 0, str(TROUBLE)),
        Refuse(sent[1], _error(rig)),
    ]


def test_an_answer_about_another_ledger_says_nothing() -> None:
    rig = Rig()
    rig.sent(b"a")
    assert rig.confirm(ledger_id=NEXT) == []
    assert rig.step(AddFailed(NEXT, LedgerFenced(2))) == []
    assert rig.machine.phase is LogWriterPhase.APPENDING
    assert rig.machine.confirmed_offset == 0


def test_what_is_not_confirmed_cannot_be_truncated() -> None:
    rig = Rig()
    rig.sent(b"a", b"b")
    rig.confirm()
    rig.machine.check_truncation(1)
    with pytest.raises(InvalidPosition):
        rig.machine.check_truncation(2)
    rig.step(TroubleMet(LostOwnership("log")))
    with pytest.raises(LostOwnership):
        rig.machine.check_truncation(0)


def test_an_event_that_must_not_come_is_an_assertion() -> None:
    rig = Rig()
    with pytest.raises(AssertionError, match="SegmentClosed while appending"):
        rig.step(SegmentClosed())


def test_the_table_has_a_row_for_each_event_and_says_what_may_not_come() -> None:
    assert TRANSITIONS["confirmed", LogWriterPhase.HOLDING] == {
        LogWriterPhase.APPENDING,
        LogWriterPhase.HOLDING,
        LogWriterPhase.SEALING,
    }
    assert ("Reopened", LogWriterPhase.APPENDING) not in TRANSITIONS


# Flushing.


def test_a_flush_of_nothing_is_answered_at_once() -> None:
    assert Rig().step(FlushRequested(1)) == [Answer(1)]


def test_a_flush_is_answered_when_all_that_was_appended_before_is_confirmed() -> None:
    rig = Rig()
    rig.sent(b"a", b"b")
    assert rig.step(FlushRequested(1)) == []
    rig.sent(b"c")
    assert of(Answer, rig.confirm(0)) == []
    assert of(Answer, rig.confirm(1)) == [Answer(1)]


def test_flushes_that_wait_fail_with_what_ends_the_writer_and_so_do_later_ones() -> None:
    rig = Rig()
    rig.sent(b"a")
    rig.step(FlushRequested(1))
    effects = rig.step(AddFailed(FIRST, LedgerFenced(1)))
    assert of(Answer, effects) == [Answer(1, _error(rig))]
    assert isinstance(rig.machine.error, LostOwnership)
    assert rig.step(FlushRequested(2)) == [Answer(2, _error(rig))]


def test_flushes_wait_for_what_reopening_sends_again() -> None:
    rig = Rig()
    rig.sent(b"a")
    rig.step(FlushRequested(1))
    _reopens(rig, AddFailed(FIRST, TROUBLE))
    assert of(Answer, rig.step(reopened(0))) == []
    assert of(Answer, rig.confirm(0, NEXT)) == [Answer(1)]


# Rolling.


def test_a_roll_of_an_empty_segment_is_answered_at_once() -> None:
    assert Rig().step(RollRequested(1)) == [Answer(1)]


def test_a_roll_waits_for_what_was_appended_before_and_is_answered_when_that_is_sealed() -> None:
    rig = Rig()
    rig.sent(b"a", txid=3)
    assert rig.step(RollRequested(1)) == []
    _, create = rig.confirm()
    assert create == TakeRollStep(1, roll.CreateSegmentLedger(2), None, NO_TXID)
    assert rig.rolled(roll.LedgerCreated(NEXT)) == [
        TakeRollStep(1, roll.ListSegment(2, NEXT), None, NO_TXID)
    ]
    assert rig.machine.own_ledgers == {FIRST, NEXT}
    assert rig.rolled(roll.SegmentListed()) == [
        TakeRollStep(1, roll.CloseLedger(recover=False), FIRST, 3)
    ]
    assert rig.machine.segment == 2
    assert rig.rolled(roll.LedgerClosed(seal(1))) == [
        TakeRollStep(1, roll.SealSegment(1, seal(1)), FIRST, 3)
    ]
    assert rig.rolled(roll.SegmentSealed()) == [Answer(1)]
    assert rig.machine.own_ledgers == {NEXT}


def test_a_segment_that_is_full_rolls_by_itself_by_what_is_confirmed() -> None:
    rig = Rig(roll_bytes=200)
    rig.sent(b"a", b"b")
    assert of(TakeRollStep, rig.confirm(0)) == []
    assert of(TakeRollStep, rig.confirm(1)) == [
        TakeRollStep(1, roll.CreateSegmentLedger(2), None, NO_TXID)
    ]


def test_appends_go_on_while_a_roll_creates_and_lists_its_ledger() -> None:
    rig = Rig()
    rig.sent(b"a")
    rig.confirm()
    rig.step(RollRequested(1))
    assert len(rig.sent(b"b")) == 1
    rig.rolled(roll.LedgerCreated(NEXT))
    assert len(rig.sent(b"c")) == 1


def test_nothing_is_sent_while_a_roll_holds() -> None:
    rig = Rig()
    rig.holding()
    rig.append(b"d")
    assert rig.step(RecordsGathered()) == []
    assert rig.machine.phase is LogWriterPhase.HOLDING


def test_a_roll_switches_when_the_last_entry_in_flight_is_confirmed_and_sends_what_waited() -> None:
    rig = Rig()
    batches = rig.holding()
    late = rig.append(b"d")
    rig.step(RecordsGathered())
    assert rig.confirm(1) == [Confirm(batches[0], 1, 1, 1)]
    assert rig.confirm(2) == [
        Confirm(batches[1], 2, 1, 2),
        Sends(NEXT, (Entry(late, 0, NO_TXID),)),
        TakeRollStep(1, roll.CloseLedger(recover=False), FIRST, NO_TXID),
    ]
    assert rig.confirm(0, NEXT) == [Confirm(late, 3, 2, 0)]


def test_a_roll_asked_for_while_one_is_under_way_is_one_more() -> None:
    rig = Rig()
    rig.holding()
    assert rig.step(RollRequested(2)) == []
    rig.confirm(1)
    rig.confirm(2)
    rig.rolled(roll.LedgerClosed(seal(3)))
    assert of(Answer, rig.rolled(roll.SegmentSealed())) == [Answer(1), Answer(2)]


@pytest.mark.parametrize(
    "error", [MetadataUnavailable("x", "set", 1), LedgerFenced(1), BadVersion("p", 1)]
)
def test_a_step_of_a_roll_that_failed_is_taken_again_after_a_while(error: LogError) -> None:
    rig = Rig()
    rig.sent(b"a")
    rig.confirm()
    rig.step(RollRequested(1))
    assert without_notes(rig.step(RollFailed(1, error))) == []
    assert rig.machine.phase is LogWriterPhase.APPENDING
    rig.now = rig.machine.deadline() or 0.0
    assert 0 < rig.now <= roll.BACKOFF_S
    assert rig.step(TimePassed()) == [TakeRollStep(1, roll.CreateSegmentLedger(2), None, NO_TXID)]


def test_a_step_of_a_roll_that_fails_for_good_ends_the_writer() -> None:
    rig = Rig()
    rig.sent(b"a")
    rig.confirm()
    rig.step(RollRequested(1))
    effects = rig.step(RollFailed(1, LostOwnership("log")))
    assert rig.machine.phase is LogWriterPhase.LEAVING
    assert of(Answer, effects) == [Answer(1, _error(rig))]
    assert isinstance(rig.machine.error, LostOwnership)


def test_who_waits_too_long_for_a_roll_hears_why() -> None:
    rig = Rig()
    rig.sent(b"a")
    rig.confirm()
    rig.step(RollRequested(1))
    rig.step(RollFailed(1, TROUBLE))
    rig.now = ROLL_PATIENCE_S
    (answer, _) = rig.step(TimePassed())
    assert isinstance(answer, Answer)
    assert isinstance(answer.error, RollPostponed)
    assert "2 bookies are needed" in str(answer.error)


# Reopening.


def _reopens(rig: Rig, event: AddFailed | SendRefused | TroubleMet) -> None:
    """Let it come to the takeover."""
    rig.step(event)
    assert rig.machine.phase is LogWriterPhase.REOPENING
    assert rig.step(LedgersLetGo()) == [TakeOver()]


def _error(rig: Rig) -> LogError:
    assert rig.machine.error is not None
    return rig.machine.error


def test_trouble_stops_the_work_and_lets_go_before_the_log_is_taken_over() -> None:
    rig = Rig()
    rig.holding()
    effects = without_notes(rig.step(AddFailed(FIRST, TROUBLE)))
    assert effects == [StopWork(), LetGo((FIRST, NEXT))]
    assert rig.machine.phase is LogWriterPhase.REOPENING
    assert rig.step(LedgersLetGo()) == [TakeOver()]


def test_nothing_is_sent_or_confirmed_while_it_reopens() -> None:
    rig = Rig()
    rig.sent(b"a")
    _reopens(rig, AddFailed(FIRST, TROUBLE))
    rig.append(b"b")
    assert rig.step(RecordsGathered()) == []
    assert rig.confirm() == []
    assert rig.step(AddFailed(FIRST, LedgerFenced(1))) == []
    assert rig.step(TroubleMet(TROUBLE)) == []


def test_reopening_confirms_what_the_log_holds_and_sends_the_rest_again() -> None:
    rig = Rig()
    kept, lost = rig.sent(b"a", b"b", txid=5)
    waits = rig.append(b"c")
    _reopens(rig, AddFailed(FIRST, TROUBLE))
    assert without_notes(rig.step(reopened(1, last_txid=5))) == [
        Confirm(kept, 0, 1, 0),
        Sends(NEXT, (Entry(lost, 0, 5), Entry(waits, 1, 5))),
    ]
    assert rig.machine.phase is LogWriterPhase.APPENDING
    assert rig.machine.confirmed_txid == 5
    assert rig.confirm(0, NEXT) == [Confirm(lost, 1, 9, 0)]


def test_what_is_sent_again_is_behind_the_txid_that_was_kept() -> None:
    """Not behind that of the records that were in flight: if the writer dies before they are
    confirmed, the log must not name a txid that it has not."""
    rig = Rig()
    rig.sent(b"a", txid=5)
    (bare,) = rig.sent(b"b")
    (later,) = rig.sent(b"c", txid=9)
    _reopens(rig, AddFailed(FIRST, TROUBLE))
    (sent,) = of(Sends, rig.step(reopened(1, last_txid=5)))
    assert sent == Sends(NEXT, (Entry(bare, 0, 5), Entry(later, 1, 5)))


def test_what_the_ledger_refused_is_sent_again_with_its_offset() -> None:
    rig = Rig()
    (batch,) = rig.sent(b"a")
    _reopens(rig, SendRefused(FIRST, 1, TROUBLE))
    assert without_notes(rig.step(reopened(0))) == [Sends(NEXT, (Entry(batch, 0, NO_TXID),))]


def test_a_roll_that_was_under_way_is_done_by_reopening() -> None:
    rig = Rig()
    rig.holding()
    _reopens(rig, AddFailed(FIRST, TROUBLE))
    assert rig.step(RollStepped(1, roll.SegmentListed())) == []
    assert rig.step(RollFailed(1, LostOwnership("log"))) == []
    assert rig.step(RollRequested(2)) == []
    assert of(Answer, rig.step(reopened(3))) == [Answer(1), Answer(2)]
    assert rig.step(RollStepped(1, roll.SegmentListed())) == []


def test_a_roll_asked_for_while_it_reopens_is_done_by_that() -> None:
    rig = Rig()
    _reopens(rig, TroubleMet(TROUBLE))
    assert rig.step(RollRequested(1)) == []
    assert of(Answer, rig.step(reopened(0))) == [Answer(1)]


def test_a_ledger_that_a_roll_created_too_late_is_let_go() -> None:
    rig = Rig()
    rig.sent(b"a")
    rig.confirm()
    rig.step(RollRequested(1))
    rig.step(TroubleMet(TROUBLE))
    assert rig.rolled(roll.LedgerCreated(NEXT)) == [LetGo((NEXT,))]
    assert rig.step(LedgersLetGo()) == []
    assert rig.step(LedgersLetGo()) == [TakeOver()]


def test_a_takeover_that_meets_trouble_is_tried_again_after_a_while() -> None:
    rig = Rig()
    _reopens(rig, TroubleMet(TROUBLE))
    assert without_notes(rig.step(ReopenFailed(MetadataUnavailable("x", "get", 1)))) == []
    assert rig.machine.deadline() == REOPEN_BACKOFF_S
    rig.now = REOPEN_BACKOFF_S
    assert rig.step(TimePassed()) == [TakeOver()]
    rig.step(ReopenFailed(TROUBLE))
    assert rig.machine.deadline() == pytest.approx(3 * REOPEN_BACKOFF_S)


def test_reopening_that_takes_too_long_ends_the_writer_with_the_last_trouble() -> None:
    rig = Rig(reopen_timeout_s=7)
    (batch,) = rig.sent(b"a")
    _reopens(rig, AddFailed(FIRST, TROUBLE))
    rig.step(ReopenFailed(MetadataUnavailable("x", "get", 1)))
    rig.now = REOPEN_BACKOFF_S
    rig.step(TimePassed())
    assert rig.machine.deadline() == 7
    rig.now = 7.0
    effects = without_notes(rig.step(TimePassed()))
    assert effects[0] == StopWork()
    (unknown,) = of(LeaveUnknown, effects)
    assert isinstance(unknown, LeaveUnknown)
    assert unknown.batch is batch
    assert "did not answer" in unknown.reason
    assert isinstance(rig.machine.error, AppendFailed)
    assert effects[-2:] == [LetGo(()), Lost()]


def test_who_was_taken_over_does_not_reopen() -> None:
    rig = Rig()
    _reopens(rig, TroubleMet(TROUBLE))
    rig.step(ReopenFailed(LostOwnership("log")))
    assert isinstance(rig.machine.error, LostOwnership)
    assert rig.machine.phase is LogWriterPhase.LEAVING


def test_a_leader_whose_term_ends_while_it_reopens_stops_that() -> None:
    rig = Rig()
    _reopens(rig, TroubleMet(TROUBLE))
    assert StopWork() in rig.step(TroubleMet(LostOwnership("log")))
    assert rig.machine.phase is LogWriterPhase.LEAVING


def _reopens_in_vain(rig: Rig, own: LedgerId) -> tuple[LedgerId, bool]:
    """Its ledger *own* fails; return the next one, and whether the log was taken over at once."""
    rig.step(AddFailed(own, TROUBLE))
    effects = rig.step(LedgersLetGo())
    at_once = effects == [TakeOver()]
    if not at_once and rig.machine.phase is LogWriterPhase.REOPENING:
        rig.now = rig.machine.deadline() or 0.0
        effects = rig.step(TimePassed())
    own = LedgerId(own + 1)
    if TakeOver() in effects:
        rig.step(reopened(0, own))
    return own, at_once


def test_reopening_that_does_not_help_is_repeated_later_each_time_until_its_time_is_over() -> None:
    rig = Rig(reopen_timeout_s=30)
    rig.sent(b"a")
    own, begun = FIRST, list[float]()
    while rig.machine.error is None:
        assert rig.now < 30
        before = rig.now
        own, at_once = _reopens_in_vain(rig, own)
        if rig.machine.error is None:
            begun.append(rig.now)
            assert at_once == (len(begun) == 1)
            assert at_once or rig.now - before >= REOPEN_BACKOFF_S
    assert begun[:4] == pytest.approx([0, 0.1, 0.3, 0.7])
    assert rig.now == 30, "not before its time is over"
    assert 30 - REOPEN_BACKOFF_S_MAX <= begun[-1] < 30
    assert len(begun) <= 6 + 30 / REOPEN_BACKOFF_S_MAX
    assert isinstance(rig.machine.error, AppendFailed)


def test_an_error_that_comes_when_the_time_to_reopen_is_over_ends_the_writer_at_once() -> None:
    rig = Rig(reopen_timeout_s=7)
    (batch,) = rig.sent(b"a")
    _reopens(rig, AddFailed(FIRST, TROUBLE))
    rig.step(reopened(0))
    rig.now = 7.0
    assert rig.machine.deadline() is None, "the new ledger may still confirm it"
    effects = rig.step(AddFailed(NEXT, TROUBLE))
    assert of(LeaveUnknown, effects) == [LeaveUnknown(batch, 0, str(TROUBLE))]
    assert rig.machine.phase is LogWriterPhase.LEAVING


def test_who_reopens_again_waits_and_lets_go_before_the_log_is_taken_over() -> None:
    rig = Rig(reopen_timeout_s=7)
    rig.sent(b"a")
    _reopens(rig, AddFailed(FIRST, TROUBLE))
    rig.step(reopened(0))
    rig.step(AddFailed(NEXT, TROUBLE))
    rig.now = 1.0  # its time, but the ledger is not let go of
    assert rig.step(TimePassed()) == []
    assert rig.machine.deadline() == 7, "it does not ask in vain again and again"
    assert rig.step(LedgersLetGo()) == [TakeOver()]


def test_a_log_that_is_abandoned_while_it_waits_to_reopen_again_does_not_reopen() -> None:
    rig = Rig()
    rig.sent(b"a")
    _reopens(rig, AddFailed(FIRST, TROUBLE))
    rig.step(reopened(0))
    rig.step(AddFailed(NEXT, TROUBLE))
    rig.step(AbandonRequested())
    assert rig.machine.deadline() is None
    assert rig.step(LedgersLetGo()) == []
    assert rig.step(LedgersLetGo()) == [Closed()]


def test_who_got_on_since_it_reopened_reopens_at_once_and_has_all_the_time_again() -> None:
    rig = Rig(reopen_timeout_s=7)
    rig.sent(b"a")
    _reopens(rig, AddFailed(FIRST, TROUBLE))
    rig.step(reopened(0))
    rig.confirm(0, NEXT)
    rig.now = 100.0
    _reopens(rig, TroubleMet(TROUBLE))
    assert rig.machine.deadline() == 107


def test_trouble_of_a_log_that_had_nothing_to_send_since_it_reopened_is_new() -> None:
    rig = Rig(reopen_timeout_s=7)
    _reopens(rig, TroubleMet(TROUBLE))
    rig.step(reopened(0))
    rig.now = 100.0
    rig.sent(b"a")
    rig.step(AddFailed(NEXT, TROUBLE))
    assert rig.machine.phase is LogWriterPhase.REOPENING
    rig.step(LedgersLetGo())
    assert rig.machine.deadline() == pytest.approx(100 + REOPEN_BACKOFF_S), (
        "as one that did not help"
    )
    rig.now += REOPEN_BACKOFF_S
    assert rig.step(TimePassed()) == [TakeOver()]
    assert rig.machine.deadline() == 107


def test_ledgers_that_strangers_had_are_replaced_at_once_a_bounded_number_of_times() -> None:
    rig = Rig()
    (batch,) = rig.sent(b"a")
    own = FIRST
    for number in range(EMPTY_CLOSES_MAX):
        _reopens(rig, AddFailed(own, STRANGER))
        own = LedgerId(10 + number)
        rig.step(reopened(0, own))
    effects = rig.step(AddFailed(own, STRANGER))
    assert of(Refuse, effects) == [Refuse(batch, _error(rig))]
    assert rig.machine.phase is LogWriterPhase.LEAVING


def test_a_log_that_ends_within_a_group_is_damaged_and_nothing_of_it_is_acknowledged() -> None:
    rig = Rig()
    batch = rig.append(b"a", b"b")
    rig.step(RecordsGathered())
    _reopens(rig, AddFailed(FIRST, TROUBLE))
    effects = rig.step(reopened(1))
    (unknown,) = of(LeaveUnknown, effects)
    reason = str(DamagedLog("log", "it ends at 1 where its writer has 0"))
    assert unknown == LeaveUnknown(batch, 0, reason)
    assert of(Confirm, effects) == []
    assert LetGo((NEXT,)) in effects


def test_a_takeover_that_ends_too_late_is_let_go() -> None:
    rig = Rig()
    _reopens(rig, TroubleMet(TROUBLE))
    rig.step(AbandonRequested())
    assert rig.step(reopened(0)) == [LetGo((NEXT,))]
    assert rig.step(LedgersLetGo()) == []
    assert rig.step(LedgersLetGo()) == [Closed()]


def test_one_that_fails_too_late_says_nothing() -> None:
    rig = Rig()
    _reopens(rig, TroubleMet(TROUBLE))
    rig.step(AbandonRequested())
    assert rig.step(ReopenFailed(TROUBLE)) == []


# Ending.


def test_what_was_in_flight_is_unknown_by_its_offset_and_the_rest_certainly_not_appended() -> None:
    rig = Rig()
    sent = rig.sent(*[b"a"] * PARTIAL_MAX)
    rest = rig.append(b"b")
    effects = without_notes(rig.step(AddFailed(FIRST, LedgerFenced(1))))
    reason = str(LedgerFenced(1))
    assert effects == [
        StopWork(),
        *[LeaveUnknown(batch, offset, reason) for offset, batch in enumerate(sent)],
        Refuse(rest, _error(rig)),
        LetGo((FIRST,)),
        Lost(),
    ]
    assert isinstance(rig.machine.error, LostOwnership)
    assert rig.step(LedgersLetGo()) == [Closed()]


def test_trouble_that_may_pass_ends_a_writer_that_never_reopens() -> None:
    rig = Rig(reopen_timeout_s=0)
    rig.step(TroubleMet(TROUBLE))
    assert isinstance(rig.machine.error, AppendFailed)


def test_a_fault_of_the_caller_is_not_reopened() -> None:
    rig = Rig()
    rig.sent(b"a")
    rig.step(SendRefused(FIRST, 1, TooManyPending(1, 1)))
    assert rig.machine.phase is LogWriterPhase.LEAVING


def test_a_log_that_was_sealed_says_so() -> None:
    rig = Rig()
    rig.step(TroubleMet(LogSealed("log")))
    assert isinstance(rig.machine.error, LogSealed)


def test_after_the_end_appends_are_refused_with_it_and_nothing_else_counts() -> None:
    rig = Rig()
    rig.sent(b"a")
    rig.step(AddFailed(FIRST, LedgerFenced(1)))
    outcome, slot = rig.submit(b"b")
    assert outcome.error(slot) is rig.machine.error
    assert rig.confirm() == []
    assert rig.step(TroubleMet(TROUBLE)) == []
    rig.step(LedgersLetGo())
    assert rig.machine.deadline() is None
    assert rig.step(TroubleMet(TROUBLE)) == []
    assert rig.machine.phase is LogWriterPhase.CLOSED


def test_a_writer_that_lost_its_log_tells_later_appends_who_has_it() -> None:
    rig = Rig()
    rig.sent(b"a")
    rig.step(AddFailed(FIRST, LedgerFenced(1)))
    assert rig.step(SiblingNamed("process 7 opened it")) == []
    outcome, slot = rig.submit(b"b")
    error = outcome.error(slot)
    assert isinstance(error, LostOwnership)
    assert error.reason == "process 7 opened it"
    assert error is rig.machine.error


def test_a_writer_that_ended_otherwise_names_nobody() -> None:
    rig = Rig(reopen_timeout_s=0)
    rig.sent(b"a")
    rig.step(AddFailed(FIRST, TROUBLE))
    error = rig.machine.error
    rig.step(SiblingNamed("process 7 opened it"))
    assert rig.machine.error is error


@pytest.mark.parametrize(
    "phase", [LogWriterPhase.APPENDING, LogWriterPhase.HOLDING, LogWriterPhase.REOPENING]
)
def test_what_nobody_foresaw_ends_the_writer_whatever_it_does(phase: LogWriterPhase) -> None:
    rig = Rig()
    if phase is LogWriterPhase.APPENDING:
        rig.sent(b"a")
    else:
        rig.holding()
    if phase is LogWriterPhase.REOPENING:
        _reopens(rig, TroubleMet(TROUBLE))
    assert rig.machine.phase is phase
    effects = rig.step(Broke(WriterFailed(1, "a bug")))
    assert of(LeaveUnknown, effects)
    assert rig.machine.phase is LogWriterPhase.LEAVING
    assert rig.step(Broke(WriterFailed(1, "another"))) == []


def test_what_nobody_foresaw_in_sealing_leaves_that_to_the_next_open() -> None:
    rig = Rig()
    rig.step(CloseRequested(None))
    effects = without_notes(rig.step(Broke(WriterFailed(1, "a bug"))))
    assert effects == [StopWork(), LetGo((FIRST,))]
    assert rig.machine.close_error is None


# Closing.


def test_a_log_with_nothing_pending_is_sealed_at_once() -> None:
    rig = Rig()
    assert rig.step(CloseRequested(9)) == [StopWork(), CloseSegment(1, FIRST, NO_TXID, True)]
    assert isinstance(rig.machine.error, LogClosed)
    assert rig.step(SegmentClosed()) == [LetGo((FIRST,))]
    assert rig.step(LedgersLetGo()) == [Closed()]
    assert rig.machine.close_error is None


def test_closing_confirms_what_is_pending_first_and_takes_nothing_more() -> None:
    rig = Rig()
    rig.sent(b"a", txid=4)
    waits = rig.append(b"b")
    assert rig.step(CloseRequested(None)) == []
    outcome, slot = rig.submit(b"c")
    assert isinstance(outcome.error(slot), LogClosed)
    assert rig.step(RecordsGathered()) == [Sends(FIRST, (Entry(waits, 1, 4),))]
    assert of(CloseSegment, rig.confirm(0)) == []
    assert rig.confirm(1)[1:] == [StopWork(), CloseSegment(1, FIRST, 4, True)]


def test_a_second_call_to_close_changes_nothing() -> None:
    rig = Rig()
    rig.sent(b"a")
    rig.step(CloseRequested(9))
    assert rig.step(CloseRequested(1)) == []
    assert rig.machine.deadline() == 9


def test_a_log_closed_in_the_middle_of_a_roll_is_sealed_segment_by_segment() -> None:
    rig = Rig()
    rig.holding()
    assert rig.step(CloseRequested(None)) == []
    rig.confirm(1)
    effects = rig.confirm(2)
    closed = LogClosed("log")
    assert of(CloseSegment, effects) == [CloseSegment(1, FIRST, NO_TXID, False)]
    assert [type(a.error) for a in effects if isinstance(a, Answer)] == [type(closed)]
    assert rig.step(RollStepped(1, roll.LedgerClosed(seal(3)))) == []
    assert rig.step(RollFailed(1, TROUBLE)) == []
    assert rig.step(SegmentClosed()) == [CloseSegment(2, NEXT, NO_TXID, True)]
    assert rig.step(SegmentClosed()) == [LetGo((FIRST, NEXT))]


def test_the_segment_that_a_roll_has_listed_already_is_sealed_too() -> None:
    rig = Rig()
    rig.sent(b"a")
    rig.confirm()
    rig.step(RollRequested(1))
    rig.rolled(roll.LedgerCreated(NEXT))
    effects = rig.step(CloseRequested(None))
    assert of(CloseSegment, effects) == [CloseSegment(1, FIRST, NO_TXID, True)]
    assert rig.step(SegmentClosed()) == [CloseSegment(2, NEXT, NO_TXID, True)]


def test_a_ledger_that_a_roll_created_while_its_log_is_sealed_is_let_go() -> None:
    rig = Rig()
    rig.sent(b"a")
    rig.confirm()
    rig.step(RollRequested(1))
    rig.step(CloseRequested(None))
    assert rig.rolled(roll.LedgerCreated(NEXT)) == [LetGo((NEXT,))]
    assert rig.step(LedgersLetGo()) == []
    rig.step(SegmentClosed())
    assert rig.step(LedgersLetGo()) == [Closed()]


def test_a_log_that_is_closed_while_it_reopens_is_sealed_when_that_is_done() -> None:
    rig = Rig()
    rig.sent(b"a")
    _reopens(rig, AddFailed(FIRST, TROUBLE))
    assert rig.step(CloseRequested(None)) == []
    assert of(CloseSegment, rig.step(reopened(1))) == [CloseSegment(9, NEXT, NO_TXID, True)]


def test_what_is_not_confirmed_in_time_makes_closing_fail() -> None:
    rig = Rig()
    (sent,) = rig.sent(b"a")
    rig.append(b"b")
    rig.step(CloseRequested(5))
    assert rig.machine.deadline() == 5
    rig.now = 5.0
    effects = rig.step(TimePassed())
    assert isinstance(rig.machine.close_error, CloseTimedOut)
    assert "2 records were not confirmed" in str(rig.machine.close_error)
    assert of(LeaveUnknown, effects) == [LeaveUnknown(sent, 0, str(rig.machine.close_error))]
    assert isinstance(rig.machine.error, AppendFailed)


def test_closing_while_it_reopens_from_trouble_of_a_roll_ends_in_time_and_is_no_failure() -> None:
    rig = Rig()
    _reopens(rig, TroubleMet(TROUBLE))
    rig.step(CloseRequested(5))
    rig.now = 5.0
    rig.step(TimePassed())
    assert rig.machine.close_error is None
    assert isinstance(rig.machine.error, LogClosed)


def test_what_ends_the_writer_while_it_closes_makes_that_fail_if_something_was_pending() -> None:
    rig = Rig()
    rig.sent(b"a")
    rig.step(CloseRequested(None))
    rig.step(AddFailed(FIRST, LedgerFenced(1)))
    assert isinstance(rig.machine.close_error, LostOwnership)


def test_who_closes_a_lost_log_hears_what_ended_it() -> None:
    rig = Rig()
    rig.step(TroubleMet(LostOwnership("log")))
    assert rig.step(CloseRequested(None)) == []
    assert rig.machine.close_error is rig.machine.error


@pytest.mark.parametrize("how", ["failure", "time"])
def test_what_cannot_be_sealed_is_left_to_the_next_open_and_is_no_failure(how: str) -> None:
    rig = Rig()
    rig.step(CloseRequested(5))
    rig.now = 5.0
    event = CloseFailed(MetadataUnavailable("x", "set", 1)) if how == "failure" else TimePassed()
    note, *effects = rig.step(event)
    assert isinstance(note, Note)
    assert note.event == "close_incomplete"
    assert effects == [StopWork(), LetGo((FIRST,))]
    assert rig.machine.close_error is None
    assert rig.step(SegmentClosed()) == []
    assert rig.step(CloseFailed(TROUBLE)) == []


@pytest.mark.parametrize(
    "phase",
    [
        LogWriterPhase.APPENDING,
        LogWriterPhase.HOLDING,
        LogWriterPhase.REOPENING,
        LogWriterPhase.SEALING,
        LogWriterPhase.LEAVING,
    ],
)
def test_a_log_can_be_abandoned_whatever_its_writer_does(phase: LogWriterPhase) -> None:
    rig = Rig()
    if phase is LogWriterPhase.HOLDING:
        rig.holding()
    elif phase is LogWriterPhase.REOPENING:
        _reopens(rig, TroubleMet(TROUBLE))
    elif phase is LogWriterPhase.SEALING:
        rig.step(CloseRequested(None))
    elif phase is LogWriterPhase.LEAVING:
        rig.step(TroubleMet(LostOwnership("log")))
    assert rig.machine.phase is phase
    rig.step(AbandonRequested())
    assert rig.machine.phase is LogWriterPhase.LEAVING
    assert rig.step(LedgersLetGo()) == [Closed()]
    outcome, slot = rig.submit(b"a")
    assert isinstance(outcome.error(slot), LogClosed)
    assert rig.step(AbandonRequested()) == []
    assert rig.step(CloseRequested(None)) == []


def test_a_closed_writer_answers_and_does_nothing_more() -> None:
    rig = Rig()
    rig.step(CloseRequested(None))
    assert of(Answer, rig.step(FlushRequested(1))) == [Answer(1, _error(rig))]
    assert rig.step(TroubleMet(TROUBLE)) == []
    rig.step(SegmentClosed())
    rig.step(LedgersLetGo())
    assert rig.step(RollRequested(2)) == [Answer(2, _error(rig))]
    assert rig.step(RecordsGathered()) == []
    assert rig.confirm() == []


# Records coming in.


def test_one_wake_up_is_asked_for_per_turn_however_many_records_come() -> None:
    rig = Rig()
    for _ in range(10):
        rig.submit(b"a")
    assert rig.woken == 1
    rig.step(RecordsGathered())
    rig.submit(b"a")
    assert rig.woken == 2


def test_a_txid_that_was_refused_does_not_count() -> None:
    rig = Rig()
    rig.append(b"a", txid=5)
    outcome, slot = rig.submit(b"b", txid=4)
    assert isinstance(outcome.error(slot), TxidOutOfOrder)
    outcome, _ = rig.submit(b"b", txid=5)
    assert not outcome.done
