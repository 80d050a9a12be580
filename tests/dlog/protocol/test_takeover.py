"""Each step of a takeover, and each way in which it can go wrong between two steps."""

from dataclasses import replace

import pytest

from dlog.errors import EpochChanged, LogSealed, LostOwnership, NoSuchLog, TakeoverFailed
from dlog.manifest import Manifest, Sealed
from dlog.position import NO_TXID
from dlog.protocol.takeover import (
    ATTEMPTS_MAX,
    TROUBLES_MAX,
    CheckLeadership,
    CreateLedger,
    DeleteLedger,
    GiveUp,
    LeadershipChecked,
    LeadershipLost,
    LedgerCreated,
    LedgerDeleted,
    ManifestConflicted,
    ManifestRead,
    ManifestWritten,
    Opened,
    OpenRequested,
    ReadManifest,
    RecoverSegment,
    SegmentRecovered,
    StepFailed,
    Takeover,
    TakeoverEffect,
    TakeoverEvent,
    TimePassed,
    WriteManifest,
)
from ledger.errors import (
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    RecoveryFailed,
    WrongPassword,
)
from ledger.ids import EntryId, LedgerId

NOW = 100.0
OWN = LedgerId(50)
LOST_REPLY = MetadataUnavailable("zk://x", "set", 1.0)
TEN = Sealed(EntryId(9), 10, 100, NO_TXID, 3, 0, 0)
FIVE = Sealed(EntryId(4), 5, 100, NO_TXID, 8, 0, 0)
NEW = Manifest(incarnation="i")
ROLLING = (
    NEW.with_segment(1, LedgerId(11), 0)
    .with_sealed(1, TEN)
    .with_segment(2, LedgerId(12), 0)
    .with_segment(3, LedgerId(13), 0)
)
"""The writer before listed segment 3 while it may still add to segment 2."""


def step(takeover: Takeover, event: TakeoverEvent) -> TakeoverEffect:
    """Return the one effect of *event*."""
    (effect,) = takeover.step(event, now=NOW)
    return effect


def wait(takeover: Takeover) -> float:
    """Let it find that it still leads; return how long it waits then."""
    assert takeover.step(LeadershipChecked(held=True), now=NOW) == []
    again_at = takeover.deadline()
    assert again_at is not None
    return again_at - NOW


def begin_again(takeover: Takeover) -> TakeoverEffect:
    """Let it find that it still leads, and wait; return what it does then."""
    again_at = NOW + wait(takeover)
    (effect,) = takeover.step(TimePassed(), now=again_at)
    return effect


def at_write(manifest: Manifest = NEW, version: int = 7) -> tuple[Takeover, WriteManifest]:
    """Return a takeover that is about to compare and swap."""
    takeover = Takeover("log")
    step(takeover, OpenRequested())
    effect = step(takeover, ManifestRead(manifest, version))
    while isinstance(effect, RecoverSegment):
        effect = step(takeover, SegmentRecovered(effect.number, FIVE))
    assert isinstance(effect, CreateLedger)
    effect = step(takeover, LedgerCreated(OWN, 0))
    assert isinstance(effect, WriteManifest)
    return takeover, effect


def give_up(effect: TakeoverEffect) -> Exception:
    assert isinstance(effect, GiveUp)
    return effect.error


def test_the_first_open_of_a_log_has_nothing_to_recover() -> None:
    takeover = Takeover("log")
    assert step(takeover, OpenRequested()) == ReadManifest()
    assert step(takeover, ManifestRead(NEW, 0)) == CreateLedger(1, NEW)
    wanted = NEW.taken_over(1, OWN, 44, "")
    assert step(takeover, LedgerCreated(OWN, 44)) == WriteManifest(wanted, 0)
    assert step(takeover, ManifestWritten(1)) == Opened(wanted, 1)


def test_the_last_two_ledgers_are_recovered_in_order_before_one_is_created() -> None:
    takeover = Takeover("log")
    step(takeover, OpenRequested())
    assert step(takeover, ManifestRead(ROLLING, 7)) == RecoverSegment(2, LedgerId(12), 3)
    assert step(takeover, SegmentRecovered(2, FIVE)) == RecoverSegment(3, LedgerId(13), 8)
    effect = step(takeover, SegmentRecovered(3, TEN))
    assert isinstance(effect, CreateLedger)
    assert effect.segment == 4
    write = step(takeover, LedgerCreated(OWN, 0))
    assert isinstance(write, WriteManifest)
    assert write.version == 7
    assert [s.first_offset for s in write.manifest.segments] == [0, 10, 15, 25]
    assert [s.sealed for s in write.manifest.segments] == [TEN, FIVE, TEN, None]


def test_nobody_is_asked_about_a_segment_whose_seal_the_manifest_has() -> None:
    manifest = NEW.with_segment(1, LedgerId(11), 0).with_sealed(1, TEN)
    takeover = Takeover("log")
    step(takeover, OpenRequested())
    assert step(takeover, ManifestRead(manifest, 0)) == CreateLedger(2, manifest)


def test_of_the_last_two_segments_the_open_one_alone_is_recovered() -> None:
    manifest = (
        NEW.with_segment(1, LedgerId(11), 0).with_sealed(1, TEN).with_segment(2, LedgerId(12), 0)
    )
    takeover = Takeover("log")
    step(takeover, OpenRequested())
    assert step(takeover, ManifestRead(manifest, 0)) == RecoverSegment(2, LedgerId(12), 3)
    assert isinstance(step(takeover, SegmentRecovered(2, FIVE)), CreateLedger)


def test_nothing_is_handed_out_before_the_manifest_is_written() -> None:
    takeover = Takeover("log")
    effects = [
        step(takeover, OpenRequested()),
        step(takeover, ManifestRead(NEW, 0)),
        step(takeover, LedgerCreated(OWN, 0)),
    ]
    assert not any(isinstance(effect, Opened) for effect in effects)


def test_after_a_conflict_the_own_ledger_is_deleted_and_all_begins_again() -> None:
    takeover, _ = at_write(NEW, 7)
    other = NEW.with_segment(1, LedgerId(66), 0)
    assert step(takeover, ManifestConflicted()) == ReadManifest()
    assert step(takeover, ManifestRead(other, 8)) == DeleteLedger(OWN)
    assert step(takeover, LedgerDeleted()) == CheckLeadership()
    assert begin_again(takeover) == ReadManifest()
    assert step(takeover, ManifestRead(other, 8)) == RecoverSegment(1, LedgerId(66), NO_TXID)


def test_a_takeover_that_is_woken_too_early_waits_on() -> None:
    takeover = Takeover("log")
    step(takeover, OpenRequested())
    assert step(takeover, StepFailed(LOST_REPLY)) == CheckLeadership()
    again_at = NOW + wait(takeover)
    assert takeover.step(TimePassed(), now=again_at - 0.01) == []
    assert takeover.deadline() == again_at
    assert takeover.step(TimePassed(), now=again_at) == [ReadManifest()]
    assert takeover.deadline() is None


def test_after_a_conflict_who_does_not_lead_any_more_gives_up() -> None:
    takeover, _ = at_write()
    step(takeover, ManifestConflicted())
    step(takeover, ManifestRead(NEW, 8))
    step(takeover, LedgerDeleted())
    assert isinstance(give_up(step(takeover, LeadershipChecked(held=False))), LostOwnership)


def test_a_lost_reply_of_a_swap_that_arrived_is_success() -> None:
    takeover, write = at_write(ROLLING, 7)
    assert step(takeover, StepFailed(LOST_REPLY)) == ReadManifest()
    assert step(takeover, ManifestRead(write.manifest, 8)) == Opened(write.manifest, 4)


def test_a_lost_reply_is_success_even_if_the_manifest_was_trimmed_since() -> None:
    takeover, write = at_write(ROLLING, 7)
    step(takeover, StepFailed(LOST_REPLY))
    trimmed = write.manifest.trimmed(12)
    assert step(takeover, ManifestRead(trimmed, 9)) == Opened(trimmed, 4)


def test_a_lost_reply_of_a_swap_that_did_not_arrive_is_repeated_with_the_same_ledger() -> None:
    takeover, write = at_write(ROLLING, 7)
    step(takeover, StepFailed(LOST_REPLY))
    assert step(takeover, ManifestRead(ROLLING, 7)) == write


def test_a_repeated_swap_that_loses_against_its_own_first_attempt_is_success() -> None:
    takeover, write = at_write(ROLLING, 7)
    step(takeover, StepFailed(LOST_REPLY))
    step(takeover, ManifestRead(ROLLING, 7))
    assert step(takeover, ManifestConflicted()) == ReadManifest()
    assert step(takeover, ManifestRead(write.manifest, 8)) == Opened(write.manifest, 4)


def test_a_lost_reply_of_a_swap_that_lost_deletes_the_own_ledger() -> None:
    takeover, _ = at_write(NEW, 7)
    step(takeover, StepFailed(LOST_REPLY))
    assert step(takeover, ManifestRead(NEW.with_segment(1, LedgerId(66), 0), 8)) == DeleteLedger(
        OWN
    )


def test_a_ledger_that_is_listed_but_taken_over_already_is_not_deleted() -> None:
    takeover, write = at_write(NEW, 7)
    step(takeover, StepFailed(LOST_REPLY))
    after = write.manifest.with_sealed(1, TEN).with_segment(2, LedgerId(66), 0)
    assert isinstance(give_up(step(takeover, ManifestRead(after, 9))), LostOwnership)


def test_as_long_as_the_outcome_of_the_swap_is_unknown_its_ledger_is_not_deleted() -> None:
    takeover, _ = at_write()
    effects = []
    effect = step(takeover, StepFailed(LOST_REPLY))
    while not isinstance(effect, GiveUp):
        effects.append(effect)
        effect = step(takeover, StepFailed(LOST_REPLY))
    assert effects == [ReadManifest()] * (ATTEMPTS_MAX - 1)
    assert effect.error is LOST_REPLY


def test_bookies_that_stay_silent_are_told_after_a_few_attempts_not_after_minutes() -> None:
    silent = RecoveryFailed(1, "too few of its bookies confirmed the fence")
    takeover = Takeover("flights")
    step(takeover, OpenRequested())
    for _ in range(TROUBLES_MAX - 1):
        step(takeover, ManifestRead(ROLLING, 7))
        assert step(takeover, StepFailed(silent)) == CheckLeadership()
        begin_again(takeover)
    step(takeover, ManifestRead(ROLLING, 7))
    assert give_up(step(takeover, StepFailed(silent))) is silent


def test_a_swap_that_never_arrives_is_not_repeated_for_ever() -> None:
    takeover, _ = at_write(NEW, 7)
    effect: TakeoverEffect = step(takeover, StepFailed(LOST_REPLY))
    steps = 0
    while not isinstance(effect, GiveUp):
        steps += 1
        assert steps < 50
        if isinstance(effect, WriteManifest):
            effect = step(takeover, StepFailed(LOST_REPLY))
        else:
            effect = step(takeover, ManifestRead(NEW, 7))
    assert effect.error is LOST_REPLY


def test_attempts_are_bounded_and_their_waits_grow() -> None:
    takeover = Takeover("log", attempts_max=3)
    waits = []
    effect = step(takeover, OpenRequested())
    for _ in range(100):
        match effect:
            case ReadManifest():
                effect = step(takeover, StepFailed(LOST_REPLY))
            case CheckLeadership():
                waits.append(wait(takeover))
                (effect,) = takeover.step(TimePassed(), now=NOW + waits[-1])
            case _:
                break
    assert give_up(effect) is LOST_REPLY
    assert len(waits) == 2
    assert waits[0] < waits[1]


def test_who_is_slower_than_others_each_time_is_told_so() -> None:
    takeover = Takeover("log", attempts_max=2)
    step(takeover, OpenRequested())
    effect: TakeoverEffect = step(takeover, StepFailed(LOST_REPLY))
    assert effect == CheckLeadership()
    begin_again(takeover)
    step(takeover, ManifestRead(NEW, 7))
    step(takeover, LedgerCreated(OWN, 0))
    step(takeover, ManifestConflicted())
    step(takeover, ManifestRead(NEW, 8))
    assert isinstance(give_up(step(takeover, LedgerDeleted())), TakeoverFailed)


@pytest.mark.parametrize(
    ("manifest", "error"),
    [
        (None, NoSuchLog),
        (replace(NEW, dropped=True), NoSuchLog),
        (replace(NEW, sealed=True), LogSealed),
    ],
)
def test_a_log_that_nobody_may_write_is_refused(
    manifest: Manifest | None, error: type[Exception]
) -> None:
    takeover = Takeover("log")
    step(takeover, OpenRequested())
    assert isinstance(give_up(step(takeover, ManifestRead(manifest, 0))), error)


@pytest.mark.parametrize("there", [None, Manifest(incarnation="another")])
def test_a_log_that_was_renamed_meanwhile_keeps_the_ledger_it_may_list(
    there: Manifest | None,
) -> None:
    """Nothing tells a rename from a deletion here; of a deleted log the janitor deletes it."""
    takeover, _ = at_write()
    step(takeover, StepFailed(LOST_REPLY))
    assert isinstance(give_up(step(takeover, ManifestRead(there, 0))), NoSuchLog)


def test_a_swap_that_finds_no_log_keeps_the_ledger_that_one_before_it_may_have_listed() -> None:
    takeover, _ = at_write()
    gone = NoSuchLog("log")
    assert give_up(step(takeover, StepFailed(gone))) is gone


def test_trouble_that_may_pass_begins_again_without_a_ledger_to_delete() -> None:
    takeover = Takeover("log")
    step(takeover, OpenRequested())
    step(takeover, ManifestRead(ROLLING, 7))
    assert step(takeover, StepFailed(RecoveryFailed(12, "bookies"))) == CheckLeadership()
    begin_again(takeover)
    step(takeover, ManifestRead(NEW, 8))
    assert step(takeover, StepFailed(NotEnoughBookies(3, ["a"]))) == CheckLeadership()


def test_a_ledger_that_is_gone_was_trimmed_so_the_manifest_is_read_again() -> None:
    takeover = Takeover("log")
    step(takeover, OpenRequested())
    step(takeover, ManifestRead(ROLLING, 7))
    assert step(takeover, StepFailed(NoSuchLedger(12))) == CheckLeadership()


def test_a_ledger_that_is_gone_is_a_race_and_no_trouble_however_often_there_was_some() -> None:
    """A takeover that slept while its log was deleted and made again found a ledger gone."""
    takeover = Takeover("log")
    step(takeover, OpenRequested())
    silent = RecoveryFailed(12, "bookies")
    for error in (*[silent] * (TROUBLES_MAX - 1), NoSuchLedger(12)):
        step(takeover, ManifestRead(ROLLING, 7))
        assert step(takeover, StepFailed(error)) == CheckLeadership()
        begin_again(takeover)


def test_trouble_that_does_not_pass_is_told_at_once() -> None:
    takeover = Takeover("log")
    step(takeover, OpenRequested())
    step(takeover, ManifestRead(ROLLING, 7))
    error = WrongPassword(12)
    assert give_up(step(takeover, StepFailed(error))) is error


def test_trouble_with_writing_that_certainly_did_not_happen_deletes_the_ledger() -> None:
    takeover, _ = at_write()
    error = WrongPassword(1)
    assert step(takeover, StepFailed(error)) == DeleteLedger(OWN)
    assert give_up(step(takeover, LedgerDeleted())) is error


def test_leadership_lost_before_the_swap_deletes_the_own_ledger() -> None:
    takeover, _ = at_write()
    assert step(takeover, LeadershipLost()) == DeleteLedger(OWN)
    assert isinstance(give_up(step(takeover, LedgerDeleted())), LostOwnership)


def test_leadership_lost_while_recovering_gives_up() -> None:
    takeover = Takeover("log")
    step(takeover, OpenRequested())
    step(takeover, ManifestRead(ROLLING, 7))
    assert isinstance(give_up(step(takeover, LeadershipLost())), LostOwnership)


def test_leadership_lost_while_the_swap_is_unknown_leaves_the_ledger() -> None:
    takeover, _ = at_write()
    step(takeover, StepFailed(LOST_REPLY))
    assert isinstance(give_up(step(takeover, LeadershipLost())), LostOwnership)


def test_a_takeover_that_is_over_takes_no_more_events() -> None:
    takeover, _ = at_write()
    step(takeover, ManifestWritten(8))
    with pytest.raises(AssertionError, match="over"):
        step(takeover, OpenRequested())


def test_an_epoch_that_is_not_the_expected_one_is_told_before_anybody_is_fenced() -> None:
    taken = ROLLING.with_sealed(2, FIVE).taken_over(4, LedgerId(14), 0, "host:1")
    takeover = Takeover("log", expected_epoch=1)
    step(takeover, OpenRequested())
    error = give_up(step(takeover, ManifestRead(taken, 7)))
    assert isinstance(error, EpochChanged)
    assert (error.expected_epoch, error.epoch, error.owner) == (1, 4, "host:1")


def test_an_expected_epoch_is_looked_at_again_after_a_conflict() -> None:
    first = NEW.taken_over(1, LedgerId(11), 0, "")
    takeover = Takeover("log", expected_epoch=1)
    step(takeover, OpenRequested())
    assert isinstance(step(takeover, ManifestRead(first, 7)), RecoverSegment)
    step(takeover, SegmentRecovered(1, FIVE))
    step(takeover, LedgerCreated(OWN, 0))
    step(takeover, ManifestConflicted())
    taken = first.with_sealed(1, FIVE).taken_over(2, LedgerId(12), 0, "other")
    assert step(takeover, ManifestRead(taken, 8)) == DeleteLedger(OWN)
    step(takeover, LedgerDeleted())
    begin_again(takeover)
    assert isinstance(give_up(step(takeover, ManifestRead(taken, 8))), EpochChanged)


def test_a_takeover_begins_an_epoch_and_a_writer_that_heals_stays_in_its_own() -> None:
    mine = NEW.taken_over(1, LedgerId(11), 0, "me")
    takeover = Takeover("log", expected_epoch=1, heals="i")
    step(takeover, OpenRequested())
    step(takeover, ManifestRead(mine, 7))
    step(takeover, SegmentRecovered(1, FIVE))
    effect = step(takeover, LedgerCreated(OWN, 0))
    assert isinstance(effect, WriteManifest)
    assert (effect.manifest.epoch, effect.manifest.owner) == (1, "me")
    assert effect.manifest.last is not None
    assert effect.manifest.last.number == 2


def test_a_writer_does_not_heal_into_a_log_that_was_made_anew() -> None:
    takeover = Takeover("log", expected_epoch=1, heals="another incarnation")
    step(takeover, OpenRequested())
    anew = NEW.taken_over(1, LedgerId(11), 0, "me")
    assert isinstance(give_up(step(takeover, ManifestRead(anew, 7))), NoSuchLog)
