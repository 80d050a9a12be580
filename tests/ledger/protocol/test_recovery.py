"""The recovery machine, step by step: state in, event, exact effects."""

from dataclasses import replace

from ledger.errors import ConfirmedEntryMissing
from ledger.ids import BookieId, EntryId, LedgerId
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
from ledger.protocol.recovery import Recovery, RecoveryPhase
from ledger.protocol.recovery_events import (
    BaseRead,
    FailRecovery,
    FinishRecovery,
    ForgetEntries,
    LacRead,
    ReadBase,
    RecoveryConfig,
    RecoveryEffect,
    RecoveryEntriesRead,
    RecoveryEvent,
    RecoveryFailure,
    RecoveryStarted,
    SendFence,
    SendRecoveryRead,
    WriteBack,
    WriteBackRefused,
    WriteBackStored,
)
from ledger.protocol.recovery_phases import READ_AHEAD_ENTRIES
from ledger.quorum import Quorum
from ledger.requests import Status

A, B, C, D = (BookieId(name) for name in "abcd")
OPEN = LedgerMetadata(quorum=Quorum(3, 3, 2), fragments=(Fragment(EntryId(0), (A, B, C)),))
MARKED = OPEN.in_recovery()
CONFIG = RecoveryConfig(attempts_max=2, retry_s=0.1, grace_s=1.0)


def recovery(metadata: LedgerMetadata = MARKED, version: int = 1) -> Recovery:
    return Recovery(LedgerId(1), metadata, version, CONFIG)


def step(machine: Recovery, *events: RecoveryEvent, now: float = 0.0) -> list[RecoveryEffect]:
    """Apply all *events*; return the effects of the last."""
    effects: list[RecoveryEffect] = []
    for event in events:
        effects = machine.step(event, now=now)
    return effects


def fenced(index: int, lac: int = -1) -> LacRead:
    return LacRead(index, fenced=True, last_add_confirmed=lac, status=Status.OK)


def silent(index: int) -> LacRead:
    return LacRead(index, fenced=False, last_add_confirmed=-1, status=Status.UNREACHABLE)


def has(
    index: int, first: int, *lengths: int, considered: int | None = None
) -> RecoveryEntriesRead:
    found = {first + i: length for i, length in enumerate(lengths)}
    end = first + READ_AHEAD_ENTRIES - 1 if considered is None else considered
    return RecoveryEntriesRead(index, first, answered=True, found=found, considered=end)


def failed(index: int, first: int) -> RecoveryEntriesRead:
    return RecoveryEntriesRead(index, first, answered=False)


def reads(first: int, *indexes: int) -> list[RecoveryEffect]:
    last = first + READ_AHEAD_ENTRIES - 1
    return [SendRecoveryRead(i, (A, B, C)[i], first, last, fence=True) for i in indexes]


def test_an_open_ledger_is_marked_before_anything_is_fenced() -> None:
    """Rule 38."""
    machine = recovery(OPEN, 0)
    assert step(machine, RecoveryStarted()) == [WriteMetadata(MARKED, 0)]
    assert step(machine, MetadataWritten(1)) == [SendFence(0, A), SendFence(1, B), SendFence(2, C)]


def test_a_closed_ledger_is_done_without_a_fence() -> None:
    """Rule 56."""
    closed = OPEN.closed(EntryId(4), 50)
    assert step(recovery(closed, 3), RecoveryStarted()) == [FinishRecovery(closed, 3)]


def test_a_ledger_closed_while_it_is_marked_is_adopted() -> None:
    closed = OPEN.closed(EntryId(4), 50)
    machine = recovery(OPEN, 0)
    step(machine, RecoveryStarted())
    assert step(machine, MetadataRead(closed, 3)) == [FinishRecovery(closed, 3)]


def test_reading_begins_once_every_write_set_is_covered() -> None:
    """Rule 39: with 3/3/2 two of three."""
    machine = recovery()
    assert step(machine, RecoveryStarted(), fenced(0)) == []
    assert step(machine, fenced(2)) == reads(0, 0, 1, 2)


def test_an_answer_without_a_durable_fence_does_not_cover() -> None:
    """Rule 40."""
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0))
    assert step(machine, silent(1)) == []
    assert step(machine, TimePassed(), now=0.2) == [SendFence(1, B)]


def test_too_few_fences_fail_and_close_nothing() -> None:
    machine = recovery()
    step(machine, RecoveryStarted(), silent(0), silent(1))
    step(machine, TimePassed(), now=0.2)
    step(machine, silent(0), now=0.3)
    assert step(machine, silent(1), now=0.3) == [FailRecovery(RecoveryFailure.NOT_COVERED)]


def test_reading_begins_above_the_highest_lac_and_reads_that_entry_for_its_length() -> None:
    machine = recovery()
    assert step(machine, RecoveryStarted(), fenced(0, 4), fenced(1, 2)) == [
        *reads(5, 0, 1, 2),
        ReadBase(1, B, 4),
        ReadBase(2, C, 4),
        ReadBase(0, A, 4),
    ]


def test_reading_never_begins_below_the_last_fragment() -> None:
    """#2615."""
    two = MARKED.with_ensemble(EntryId(10), (A, B, D))
    effects = step(recovery(two), RecoveryStarted(), fenced(0), fenced(1))
    assert [e.first for e in effects if isinstance(e, SendRecoveryRead)] == [10, 10, 10]
    assert ReadBase(2, C, 9) in effects  # its length comes from the fragment that holds it


def test_an_entry_found_once_is_written_back_to_all_of_its_write_set() -> None:
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1))
    assert step(machine, has(0, 0, 10)) == [
        WriteBack(0, A, 0, 0, 0),
        WriteBack(1, B, 0, 0, 0),
        WriteBack(2, C, 0, 0, 0),
    ]


def test_the_end_needs_as_many_explicit_negatives_as_the_fence() -> None:
    """Rule 43; and the ledger is closed only when all found was written back (rule 45)."""
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1))
    step(machine, has(0, 0, 10), has(1, 0, 10))
    assert step(machine, WriteBackStored(0, 0, 0, 0)) == []
    assert step(machine, WriteBackStored(1, 0, 0, 0)) == [
        ForgetEntries(0),
        WriteMetadata(MARKED.closed(EntryId(0), 10), 1),
    ]
    assert step(machine, MetadataWritten(2)) == [
        FinishRecovery(MARKED.closed(EntryId(0), 10), 2, in_doubt=(A, B, C))
    ]


def test_an_error_is_never_a_negative() -> None:
    """#2908, rule 43."""
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1))
    assert step(machine, has(0, 0), failed(1, 0)) == []
    assert step(machine, failed(2, 0)) == []
    step(machine, TimePassed(), now=0.2)
    step(machine, failed(1, 0), now=0.2)
    assert step(machine, failed(2, 0), now=0.2) == [FailRecovery(RecoveryFailure.UNDECIDED)]


def test_a_late_positive_beats_the_first_negative() -> None:
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1))
    step(machine, has(0, 0))
    effects = step(machine, has(1, 0, 10))
    assert WriteBack(0, A, 0, 0, 0) in effects
    assert machine.last_found == 0


def test_with_equal_quorums_one_negative_waits_for_the_others() -> None:
    """Rule 44: one bookie that forgot must not truncate what two others hold."""
    machine = recovery(replace(MARKED, quorum=Quorum(3, 3, 3)))
    step(machine, RecoveryStarted(), fenced(0))
    assert step(machine, has(0, 0)) == []
    assert machine.deadline() == CONFIG.grace_s
    assert WriteBack(2, C, 0, 0, 0) in step(machine, has(1, 0, 10))


def test_with_equal_quorums_a_hung_bookie_blocks_only_for_the_grace_time() -> None:
    """#1067."""
    machine = recovery(replace(MARKED, quorum=Quorum(3, 3, 3)))
    step(machine, RecoveryStarted(), fenced(0), has(0, 0))
    (effect,) = step(machine, TimePassed(), now=CONFIG.grace_s)
    assert isinstance(effect, WriteMetadata)
    assert effect.metadata.last_entry == -1


def test_the_base_of_an_empty_tail_gives_the_length() -> None:
    """Rule 49."""
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0, 4), fenced(1, 4))
    assert step(machine, has(0, 5), has(1, 5)) == []
    assert step(machine, BaseRead(0, 77)) == [WriteMetadata(MARKED.closed(EntryId(4), 77), 1)]


def test_an_unreadable_base_fails_instead_of_guessing_and_says_who_claims_it() -> None:
    """It may be lost, or a last add confirmed that nobody can have written."""
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0, 4), fenced(1, 4), has(0, 5), has(1, 5))
    for _ in range(CONFIG.attempts_max - 1):
        step(machine, *(BaseRead(i, None) for i in range(3)))
    effects = step(machine, *(BaseRead(i, None) for i in range(3)))
    claimants = MARKED.last_fragment.bookies[:2]
    assert effects == [FailRecovery(RecoveryFailure.BASE_UNREADABLE, 4, claimants)]
    told = str(ConfirmedEntryMissing(7, 4, claimants))
    assert all(each in told for each in (*claimants, "entry 4", "dlog ledger close-at"))


def test_an_ensemble_change_stays_local_until_the_close() -> None:
    """Rules 42 and 46: reads still go to the first ensemble."""
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1), has(0, 0, 10, 20, considered=1))
    refused = WriteBackRefused(2, 0, 0, 0, Status.UNREACHABLE)
    assert step(machine, refused) == [ChooseReplacements((2,), (A, B, C), (A, B, C))]
    assert step(machine, ReplacementsChosen(((2, D),))) == [WriteBack(2, D, 1, 0, 1)]
    step(machine, has(0, 2), has(1, 0))
    step(machine, WriteBackStored(0, 0, 0, 1))
    effects = step(machine, WriteBackStored(2, 1, 0, 1))
    closed = MARKED.with_ensemble(EntryId(0), (A, B, D)).closed(EntryId(1), 20)
    assert effects == [ForgetEntries(1), WriteMetadata(closed, 1)]


def test_two_local_changes_are_both_recorded() -> None:
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1), has(0, 0, 10, considered=0))
    step(machine, WriteBackRefused(2, 0, 0, 0, Status.IO_ERROR), ReplacementsChosen(((2, D),)))
    step(machine, WriteBackStored(0, 0, 0, 0), WriteBackStored(2, 1, 0, 0))
    step(machine, has(0, 1, 20))
    step(machine, WriteBackRefused(1, 0, 0, 0, Status.IO_ERROR))
    step(machine, ReplacementsChosen(((1, BookieId("e")),)))
    step(machine, WriteBackStored(0, 0, 1, 1), WriteBackStored(2, 1, 1, 1))
    effects = step(machine, has(2, 0))
    (effect,) = [e for e in effects if isinstance(e, WriteMetadata)]
    assert [(f.first_entry, f.bookies) for f in effect.metadata.fragments] == [
        (0, (A, B, D)),
        (1, (A, BookieId("e"), D)),
    ]


def test_too_few_bookies_for_the_write_back_never_close_the_ledger_short() -> None:
    """BK-150."""
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1), has(0, 0, 10))
    step(machine, WriteBackRefused(1, 0, 0, 0, Status.UNREACHABLE), ReplacementsChosen(()))
    step(machine, WriteBackRefused(2, 0, 0, 0, Status.UNREACHABLE))
    assert step(machine, ReplacementsChosen(())) == [
        FailRecovery(RecoveryFailure.NOT_ENOUGH_BOOKIES)
    ]


def test_one_spare_bookie_for_two_that_failed_is_enough_to_close() -> None:
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1), has(0, 0, 10, considered=0))
    step(machine, WriteBackRefused(1, 0, 0, 0, Status.UNREACHABLE))
    step(machine, WriteBackRefused(2, 0, 0, 0, Status.UNREACHABLE))
    assert step(machine, ReplacementsChosen(((1, D),))) == [
        WriteBack(1, D, 1, 0, 0),
        ChooseReplacements((2,), (A, D, C, B), (A, D, C)),
    ]
    assert step(machine, ReplacementsChosen(())) == []
    step(machine, WriteBackStored(0, 0, 0, 0), WriteBackStored(1, 1, 0, 0))
    step(machine, has(0, 1))
    effects = step(machine, has(1, 0))
    closed = MARKED.with_ensemble(EntryId(0), (A, D, C)).closed(EntryId(0), 10)
    assert effects == [WriteMetadata(closed, 1)]


def test_the_base_is_asked_for_again_although_the_end_is_found_meanwhile() -> None:
    """Found by the simulator (seed 1641): the retry was dropped and recovery hung."""
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0, 4), fenced(1, 4))
    step(machine, *(BaseRead(i, None) for i in range(3)))
    step(machine, has(0, 5), has(1, 5))
    assert ReadBase(1, B, 4) in step(machine, TimePassed(), now=0.2)
    assert step(machine, BaseRead(1, 77)) == [WriteMetadata(MARKED.closed(EntryId(4), 77), 1)]


def test_a_busy_bookie_is_asked_again_not_replaced() -> None:
    """Found by the simulator: recovery wore through all bookies of a loaded cluster."""
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1), has(0, 0, 10, 20))
    busy = WriteBackRefused(1, 0, 0, 1, Status.TOO_MANY_REQUESTS)
    assert step(machine, busy) == []
    assert step(machine, TimePassed(), now=0.2) == [WriteBack(1, B, 0, 0, 1)]
    step(machine, busy, now=0.2)
    step(machine, WriteBackStored(0, 0, 0, 1), WriteBackStored(2, 0, 0, 1), now=0.2)
    assert step(machine, TimePassed(), now=0.4) == []


def test_a_failed_recovery_has_no_deadline() -> None:
    machine = recovery(replace(MARKED, quorum=Quorum(3, 3, 3)))
    step(machine, RecoveryStarted(), fenced(0), has(0, 0))
    assert machine.deadline() is not None
    step(machine, MetadataRead(None, -1))
    assert machine.deadline() is None


def test_a_lost_closing_cas_adopts_what_another_recoverer_wrote() -> None:
    """Rule 47, NoDivergenceBetweenClientAndMetaData."""
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1), has(0, 0), has(1, 0))
    other = MARKED.closed(EntryId(3), 40)
    assert step(machine, MetadataRead(other, 5)) == [FinishRecovery(other, 5, in_doubt=(A, B, C))]


def test_a_closing_cas_that_meets_edits_of_older_fragments_keeps_them() -> None:
    two = MARKED.with_ensemble(EntryId(5), (A, B, D))
    machine = recovery(two)
    step(machine, RecoveryStarted(), fenced(0), fenced(1))
    step(machine, BaseRead(0, 50), has(0, 5), has(1, 5))
    edited = replace(two, fragments=(Fragment(EntryId(0), (A, D, C)), two.fragments[1]))
    assert step(machine, MetadataRead(edited, 7)) == [
        WriteMetadata(edited.closed(EntryId(4), 50), 7)
    ]


def test_metadata_that_never_answers_fails_the_recovery() -> None:
    machine = recovery(OPEN, 0)
    step(machine, RecoveryStarted(), MetadataFailed())
    assert step(machine, MetadataFailed()) == [FailRecovery(RecoveryFailure.METADATA_UNAVAILABLE)]


def test_a_deleted_ledger_fails() -> None:
    machine = recovery()
    step(machine, RecoveryStarted())
    assert step(machine, MetadataRead(None, -1)) == [FailRecovery(RecoveryFailure.DELETED)]


def strange(index: int) -> LacRead:
    return LacRead(index, fenced=False, last_add_confirmed=-1, status=Status.WRONG_KEY)


def test_bookies_that_have_the_ledger_under_another_key_say_nothing_about_it() -> None:
    """One of three is no obstacle; with two of three, nothing is decided, and it is said why."""
    machine = recovery()
    step(machine, RecoveryStarted(), strange(0), fenced(1))
    effects = step(machine, fenced(2))
    assert [effect.index for effect in effects if isinstance(effect, SendRecoveryRead)] == [1, 2]
    machine = recovery()
    step(machine, RecoveryStarted())
    assert step(machine, strange(0)) == []
    assert step(machine, strange(1)) == [FailRecovery(RecoveryFailure.WRONG_KEY)]


def test_a_recovery_that_bookies_do_not_allow_decides_nothing_and_says_why() -> None:
    def denied(index: int) -> LacRead:
        return LacRead(index, fenced=False, last_add_confirmed=-1, status=Status.ACCESS_DENIED)

    machine = recovery()
    step(machine, RecoveryStarted())
    assert step(machine, denied(0)) == [], "it may be one that knows too little"
    assert step(machine, denied(1)) == [FailRecovery(RecoveryFailure.ACCESS_DENIED)]


def test_a_recovery_that_may_not_write_back_says_so() -> None:
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1), has(0, 0, 10))
    step(machine, WriteBackRefused(1, 0, 0, 0, Status.ACCESS_DENIED), ReplacementsChosen(()))
    step(machine, WriteBackRefused(2, 0, 0, 0, Status.UNREACHABLE))
    assert step(machine, ReplacementsChosen(())) == [FailRecovery(RecoveryFailure.ACCESS_DENIED)]


def test_an_end_that_is_found_while_a_replacement_is_chosen_is_closed_after_it() -> None:
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1), has(0, 0, 10))
    step(machine, WriteBackStored(0, 0, 0, 0), WriteBackStored(1, 0, 0, 0))
    step(machine, WriteBackRefused(2, 0, 0, 0, Status.UNREACHABLE))
    assert step(machine, has(1, 0)) == []
    closed = MARKED.closed(EntryId(0), 10)
    assert step(machine, ReplacementsChosen(())) == [WriteMetadata(closed, 1)]


def test_write_backs_that_are_refused_while_it_closes_change_nothing() -> None:
    """Everything is with Qa bookies by then; there may be no others to take the places."""
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1), has(0, 0, 10), has(1, 0, 10))
    step(machine, WriteBackStored(0, 0, 0, 0), WriteBackStored(1, 0, 0, 0))
    for index in (1, 2):
        assert step(machine, WriteBackRefused(index, 0, 0, 0, Status.UNREACHABLE)) == []
    closed = MARKED.closed(EntryId(0), 10)
    assert step(machine, MetadataWritten(2)) == [FinishRecovery(closed, 2, in_doubt=(A, B, C))]


def unknown(index: int, first: int, *lengths: int) -> RecoveryEntriesRead:
    """From a bookie in limbo: what it has, behind what it may have lost."""
    found = {first + 1 + i: length for i, length in enumerate(lengths)}
    return RecoveryEntriesRead(
        index, first, answered=False, found=found, considered=-1, unknown=True
    )


def test_a_bookie_in_limbo_is_no_negative_and_costs_no_time() -> None:
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1))
    assert step(machine, unknown(0, 0), has(1, 0)) == []
    assert step(machine, has(2, 0)) == [WriteMetadata(MARKED.closed(EntryId(-1), 0), 1)]


def test_with_a_bookie_in_limbo_one_negative_of_two_decides_nothing() -> None:
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1))
    step(machine, unknown(0, 0), has(1, 0))
    step(machine, failed(2, 0))
    step(machine, TimePassed(), now=0.2)
    assert step(machine, failed(2, 0), now=0.3) == [FailRecovery(RecoveryFailure.UNDECIDED)]


def test_a_bookie_in_limbo_is_asked_again_for_later_entries_and_gives_what_it_has() -> None:
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1))
    assert step(machine, unknown(0, 0, 20)) == []
    effects = step(machine, has(1, 0, 10))
    assert machine.last_found == 1
    assert [effect for effect in effects if isinstance(effect, SendRecoveryRead)] == reads(2, 0)


def test_a_recovery_that_finds_nothing_doubts_nobody() -> None:
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0), fenced(1), has(0, 0), has(1, 0))
    closed = MARKED.closed(EntryId(-1), 0)
    assert step(machine, MetadataWritten(2)) == [FinishRecovery(closed, 2)]


# What a statement is for that nothing else noticed.

EQUAL = replace(MARKED, quorum=Quorum(3, 3, 3))


def reading_from(lac: int = -1) -> Recovery:
    machine = recovery()
    step(machine, RecoveryStarted(), fenced(0, lac), fenced(1, lac))
    return machine


def closes(last: int, length: int) -> list[RecoveryEffect]:
    return [WriteMetadata(MARKED.closed(EntryId(last), length), 1)]


def test_an_answer_that_was_not_asked_for_is_no_negative() -> None:
    """Of an earlier question, or given twice."""
    machine = reading_from()
    step(machine, has(1, 0))
    assert step(machine, has(1, 0)) == []
    assert step(machine, has(2, 5)) == []
    assert step(machine, has(2, 0)) == closes(-1, 0)


def test_a_bookie_that_cannot_give_the_base_does_not_undo_what_another_gave() -> None:
    machine = reading_from(lac=4)
    step(machine, BaseRead(0, 50), BaseRead(1, None), has(0, 5))
    assert step(machine, has(1, 5)) == closes(4, 50)


def test_who_has_answered_in_between_has_all_its_tries_again() -> None:
    machine = reading_from()
    assert step(machine, failed(0, 0)) == []
    assert step(machine, TimePassed(), now=0.1) == reads(0, 0)
    step(machine, has(0, 0, 10, considered=0), now=0.1)
    assert step(machine, failed(0, 1), now=0.1) == []
    assert reads(1, 0)[0] in step(machine, TimePassed(), now=0.2)


def test_who_was_in_limbo_in_between_has_all_its_tries_again() -> None:
    machine = reading_from()
    step(machine, failed(0, 0))
    step(machine, TimePassed(), now=0.1)
    step(machine, RecoveryEntriesRead(0, 0, answered=False, unknown=True), now=0.1)
    step(machine, has(1, 0, 10, considered=0), now=0.1)
    assert step(machine, failed(0, 1), now=0.1) == []
    assert reads(1, 0)[0] in step(machine, TimePassed(), now=0.2)


def test_each_entry_has_a_grace_of_its_own() -> None:
    machine = recovery(EQUAL)
    step(machine, RecoveryStarted(), fenced(0))
    step(machine, has(0, 0), now=0.0)
    assert machine.deadline() == CONFIG.grace_s
    step(machine, has(1, 0, 10, considered=0), now=0.5)
    assert machine.deadline() == 0.5 + CONFIG.grace_s


def test_once_the_end_is_found_nothing_waits_for_the_grace() -> None:
    machine = recovery(EQUAL)
    step(machine, RecoveryStarted(), fenced(0))
    step(machine, has(1, 0, 10, considered=0), has(0, 0))
    step(machine, TimePassed(), now=CONFIG.grace_s)
    assert machine.deadline() is None  # what was found is still written back


def test_once_the_end_is_found_nobody_is_asked_again() -> None:
    machine = reading_from()
    step(machine, failed(2, 0), has(0, 0))
    assert step(machine, has(1, 0)) == closes(-1, 0)
    assert step(machine, TimePassed(), now=CONFIG.retry_s) == []


def test_the_closing_cas_names_the_version_that_the_first_one_got() -> None:
    machine = recovery(OPEN, 0)
    step(machine, RecoveryStarted(), MetadataWritten(1))
    assert machine.phase is RecoveryPhase.FENCING
    step(machine, fenced(0), fenced(1), has(0, 0))
    assert step(machine, has(1, 0)) == closes(-1, 0)


def test_a_fence_that_is_answered_late_does_not_begin_the_reading_again() -> None:
    machine = reading_from()
    step(machine, has(0, 0, 10, considered=0))
    assert step(machine, fenced(2, lac=-1)) == []
    assert machine.last_found == 0


def test_a_metadata_store_that_does_not_answer_is_asked_again_after_a_pause() -> None:
    machine = recovery(OPEN, 0)
    step(machine, RecoveryStarted())
    assert step(machine, MetadataFailed(), now=3.0) == []
    assert machine.deadline() == 3.0 + CONFIG.retry_s
    assert step(machine, TimePassed(), now=3.0 + CONFIG.retry_s) == [ReadMetadata()]
    assert machine.deadline() is None


def test_nothing_that_comes_after_the_end_changes_it() -> None:
    closed = OPEN.closed(EntryId(4), 50)
    machine = recovery(closed, 3)
    step(machine, RecoveryStarted())
    assert step(machine, MetadataRead(OPEN, 4)) == []
    assert (machine.phase, machine.metadata) == (RecoveryPhase.DONE, closed)


def test_once_reading_has_begun_nobody_is_fenced_by_itself() -> None:
    """Its reads fence it, if it comes back."""
    machine = recovery()
    step(machine, RecoveryStarted(), silent(2), fenced(0), fenced(1))
    assert step(machine, TimePassed(), now=CONFIG.retry_s) == []


def test_a_bookie_that_has_another_key_is_not_asked_again() -> None:
    machine = recovery()
    stranger = LacRead(0, fenced=False, last_add_confirmed=-1, status=Status.WRONG_KEY)
    assert step(machine, RecoveryStarted(), stranger) == []
    assert machine.deadline() is None


def test_what_a_replaced_bookie_refuses_late_fails_nobody() -> None:
    machine = reading_from()
    step(machine, has(0, 0, 10, 20, considered=1))
    refused = WriteBackRefused(0, 0, 0, 0, Status.UNREACHABLE)
    assert step(machine, refused) == [ChooseReplacements((0,), (A, B, C), (A, B, C))]
    step(machine, ReplacementsChosen(((0, D),)))
    assert step(machine, WriteBackRefused(0, 0, 1, 1, Status.UNREACHABLE)) == []


def test_a_fence_that_comes_after_the_failure_begins_nothing() -> None:
    machine = recovery()
    step(machine, RecoveryStarted(), silent(0), silent(1), silent(0))
    assert step(machine, silent(1)) == [FailRecovery(RecoveryFailure.NOT_COVERED)]
    assert step(machine, fenced(0), fenced(1)) == []


def test_a_fence_that_is_answered_while_it_closes_changes_nothing() -> None:
    machine = reading_from()
    step(machine, has(0, 0))
    assert step(machine, has(1, 0)) == closes(-1, 0)
    assert step(machine, fenced(2)) == []
    assert machine.phase is RecoveryPhase.CLOSING
