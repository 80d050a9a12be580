"""Each step of a takeover, and each way in which it can go wrong between two steps."""

from dataclasses import replace
from typing import Any

import pytest

from dlog.errors import EpochChanged, LogSealed, LostOwnership, NoSuchLog, TakeoverFailed
from dlog.manifest import Manifest, Sealed
from dlog.position import NO_TXID
from dlog.protocol.actions import DeleteLedger, RecoverSegment
from dlog.protocol.takeover import (
    ATTEMPTS_MAX,
    TROUBLES_MAX,
    CheckGateways,
    CheckLeadership,
    CreateLedger,
    ReadManifest,
    WriteManifest,
    take_over,
)
from ledger.errors import (
    BadVersion,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    RecoveryFailed,
    WrongPassword,
)
from ledger.ids import EntryId, LedgerId
from ledger.protocol.procedure import Wait
from tests.procedures import Next, Raised, Returned, Script

OWN = LedgerId(50)
CONFLICT = BadVersion("/logs/log", 7)
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


Taken = tuple[Manifest, int]
Takeover = Script[Taken]


def taking(log: str = "log", **options: Any) -> Takeover:
    return Script(take_over(log, **options))


def wait_of(takeover: Takeover) -> float:
    """Let it hear that it still leads; return how long it waits then."""
    action = takeover.answer(True)
    assert isinstance(action, Wait)
    return action.seconds


def begin_again(takeover: Takeover) -> Next[Taken]:
    """Let it hear that it still leads, and wait; return what it does then."""
    wait_of(takeover)
    return takeover.answer(None)


def at_write(manifest: Manifest = NEW, version: int = 7) -> tuple[Takeover, WriteManifest]:
    """Return a takeover that is about to compare and swap."""
    takeover = taking()
    takeover.begin()
    action = takeover.answer((manifest, version))
    while isinstance(action, RecoverSegment):
        action = takeover.answer(FIVE)
    assert isinstance(action, CreateLedger)
    action = takeover.answer((OWN, 0))
    assert isinstance(action, WriteManifest)
    return takeover, action


def error_of(end: Next[Taken]) -> Exception:
    assert isinstance(end, Raised)
    return end.error


def test_the_first_open_of_a_log_has_nothing_to_recover() -> None:
    takeover = taking("log")
    assert takeover.begin() == ReadManifest()
    assert takeover.answer((NEW, 0)) == CreateLedger(1, NEW)
    wanted = NEW.taken_over(1, OWN, 44, "")
    assert takeover.answer((OWN, 44)) == WriteManifest(wanted, 0)
    assert takeover.answer(1) == Returned((wanted, 1))


def test_the_last_two_ledgers_are_recovered_in_order_before_one_is_created() -> None:
    takeover = taking("log")
    takeover.begin()
    assert takeover.answer((ROLLING, 7)) == RecoverSegment(LedgerId(12), 3)
    assert takeover.answer(FIVE) == RecoverSegment(LedgerId(13), 8)
    effect = takeover.answer(TEN)
    assert isinstance(effect, CreateLedger)
    assert effect.segment == 4
    write = takeover.answer((OWN, 0))
    assert isinstance(write, WriteManifest)
    assert write.version == 7
    assert [s.first_offset for s in write.manifest.segments] == [0, 10, 15, 25]
    assert [s.sealed for s in write.manifest.segments] == [TEN, FIVE, TEN, None]


def test_nobody_is_asked_about_a_segment_whose_seal_the_manifest_has() -> None:
    manifest = NEW.with_segment(1, LedgerId(11), 0).with_sealed(1, TEN)
    takeover = taking("log")
    takeover.begin()
    assert takeover.answer((manifest, 0)) == CreateLedger(2, manifest)


def test_of_the_last_two_segments_the_open_one_alone_is_recovered() -> None:
    manifest = (
        NEW.with_segment(1, LedgerId(11), 0).with_sealed(1, TEN).with_segment(2, LedgerId(12), 0)
    )
    takeover = taking("log")
    takeover.begin()
    assert takeover.answer((manifest, 0)) == RecoverSegment(LedgerId(12), 3)
    assert isinstance(takeover.answer(FIVE), CreateLedger)


def test_nothing_is_handed_out_before_the_manifest_is_written() -> None:
    takeover = taking("log")
    effects = [
        takeover.begin(),
        takeover.answer((NEW, 0)),
        takeover.answer((OWN, 0)),
    ]
    assert not any(isinstance(effect, Returned) for effect in effects)


def test_after_a_conflict_the_own_ledger_is_deleted_and_all_begins_again() -> None:
    takeover, _ = at_write(NEW, 7)
    other = NEW.with_segment(1, LedgerId(66), 0)
    assert takeover.fail(CONFLICT) == ReadManifest()
    assert takeover.answer((other, 8)) == DeleteLedger(OWN)
    assert takeover.answer(None) == CheckLeadership()
    assert begin_again(takeover) == ReadManifest()
    assert takeover.answer((other, 8)) == RecoverSegment(LedgerId(66), NO_TXID)


def test_after_a_conflict_who_does_not_lead_any_more_gives_up() -> None:
    takeover, _ = at_write()
    takeover.fail(CONFLICT)
    takeover.answer((NEW, 8))
    takeover.answer(None)
    assert isinstance(error_of(takeover.answer(False)), LostOwnership)


def test_a_lost_reply_of_a_swap_that_arrived_is_success() -> None:
    takeover, write = at_write(ROLLING, 7)
    assert takeover.fail(LOST_REPLY) == ReadManifest()
    assert takeover.answer((write.manifest, 8)) == Returned((write.manifest, 4))


def test_a_lost_reply_is_success_even_if_the_manifest_was_trimmed_since() -> None:
    takeover, write = at_write(ROLLING, 7)
    takeover.fail(LOST_REPLY)
    trimmed = write.manifest.trimmed(12)
    assert takeover.answer((trimmed, 9)) == Returned((trimmed, 4))


def test_a_lost_reply_of_a_swap_that_did_not_arrive_is_repeated_with_the_same_ledger() -> None:
    takeover, write = at_write(ROLLING, 7)
    takeover.fail(LOST_REPLY)
    assert takeover.answer((ROLLING, 7)) == write


def test_a_repeated_swap_that_loses_against_its_own_first_attempt_is_success() -> None:
    takeover, write = at_write(ROLLING, 7)
    takeover.fail(LOST_REPLY)
    takeover.answer((ROLLING, 7))
    assert takeover.fail(CONFLICT) == ReadManifest()
    assert takeover.answer((write.manifest, 8)) == Returned((write.manifest, 4))


def test_a_lost_reply_of_a_swap_that_lost_deletes_the_own_ledger() -> None:
    takeover, _ = at_write(NEW, 7)
    takeover.fail(LOST_REPLY)
    assert takeover.answer((NEW.with_segment(1, LedgerId(66), 0), 8)) == DeleteLedger(OWN)


def test_a_ledger_that_is_listed_but_taken_over_already_is_not_deleted() -> None:
    takeover, write = at_write(NEW, 7)
    takeover.fail(LOST_REPLY)
    after = write.manifest.with_sealed(1, TEN).with_segment(2, LedgerId(66), 0)
    assert isinstance(error_of(takeover.answer((after, 9))), LostOwnership)


def test_as_long_as_the_outcome_of_the_swap_is_unknown_its_ledger_is_not_deleted() -> None:
    takeover, _ = at_write()
    effects = []
    effect = takeover.fail(LOST_REPLY)
    while not isinstance(effect, Raised):
        effects.append(effect)
        effect = takeover.fail(LOST_REPLY)
    assert effects == [ReadManifest()] * (ATTEMPTS_MAX - 1)
    assert effect.error is LOST_REPLY


def test_bookies_that_stay_silent_are_told_after_a_few_attempts_not_after_minutes() -> None:
    silent = RecoveryFailed(1, "too few of its bookies confirmed the fence")
    takeover = taking("flights")
    takeover.begin()
    for _ in range(TROUBLES_MAX - 1):
        takeover.answer((ROLLING, 7))
        assert takeover.fail(silent) == CheckLeadership()
        begin_again(takeover)
    takeover.answer((ROLLING, 7))
    assert error_of(takeover.fail(silent)) is silent


def test_a_swap_that_never_arrives_is_not_repeated_for_ever() -> None:
    takeover, _ = at_write(NEW, 7)
    effect: Next[Taken] = takeover.fail(LOST_REPLY)
    steps = 0
    while not isinstance(effect, Raised):
        steps += 1
        assert steps < 50
        if isinstance(effect, WriteManifest):
            effect = takeover.fail(LOST_REPLY)
        else:
            effect = takeover.answer((NEW, 7))
    assert effect.error is LOST_REPLY


def test_attempts_are_bounded_and_their_waits_grow() -> None:
    takeover = taking("log", attempts_max=3)
    waits = []
    effect = takeover.begin()
    for _ in range(100):
        match effect:
            case ReadManifest():
                effect = takeover.fail(LOST_REPLY)
            case CheckLeadership():
                waits.append(wait_of(takeover))
                effect = takeover.answer(None)
            case _:
                break
    assert error_of(effect) is LOST_REPLY
    assert len(waits) == 2
    assert waits[0] < waits[1]


def test_who_is_slower_than_others_each_time_is_told_so() -> None:
    takeover = taking("log", attempts_max=2)
    takeover.begin()
    effect: Next[Taken] = takeover.fail(LOST_REPLY)
    assert effect == CheckLeadership()
    begin_again(takeover)
    takeover.answer((NEW, 7))
    takeover.answer((OWN, 0))
    takeover.fail(CONFLICT)
    takeover.answer((NEW, 8))
    assert isinstance(error_of(takeover.answer(None)), TakeoverFailed)


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
    takeover = taking("log")
    takeover.begin()
    found = takeover.fail(NoSuchLog("log")) if manifest is None else takeover.answer((manifest, 0))
    assert isinstance(error_of(found), error)


@pytest.mark.parametrize("there", [None, Manifest(incarnation="another")])
def test_a_log_that_was_renamed_meanwhile_keeps_the_ledger_it_may_list(
    there: Manifest | None,
) -> None:
    """Nothing tells a rename from a deletion here; of a deleted log the janitor deletes it."""
    takeover, _ = at_write()
    takeover.fail(LOST_REPLY)
    found = takeover.fail(NoSuchLog("log")) if there is None else takeover.answer((there, 0))
    assert isinstance(error_of(found), NoSuchLog)


def test_a_swap_that_finds_no_log_keeps_the_ledger_that_one_before_it_may_have_listed() -> None:
    takeover, _ = at_write()
    gone = NoSuchLog("log")
    assert error_of(takeover.fail(gone)) is gone


def test_trouble_that_may_pass_begins_again_without_a_ledger_to_delete() -> None:
    takeover = taking("log")
    takeover.begin()
    takeover.answer((ROLLING, 7))
    assert takeover.fail(RecoveryFailed(12, "bookies")) == CheckLeadership()
    begin_again(takeover)
    takeover.answer((NEW, 8))
    assert takeover.fail(NotEnoughBookies(3, ["a"])) == CheckLeadership()


def test_a_ledger_that_is_gone_was_trimmed_so_the_manifest_is_read_again() -> None:
    takeover = taking("log")
    takeover.begin()
    takeover.answer((ROLLING, 7))
    assert takeover.fail(NoSuchLedger(12)) == CheckLeadership()


def test_a_ledger_that_is_gone_is_a_race_and_no_trouble_however_often_there_was_some() -> None:
    """A takeover that slept while its log was deleted and made again found a ledger gone."""
    takeover = taking("log")
    takeover.begin()
    silent = RecoveryFailed(12, "bookies")
    for error in (*[silent] * (TROUBLES_MAX - 1), NoSuchLedger(12)):
        takeover.answer((ROLLING, 7))
        assert takeover.fail(error) == CheckLeadership()
        begin_again(takeover)


def test_trouble_that_does_not_pass_is_told_at_once() -> None:
    takeover = taking("log")
    takeover.begin()
    takeover.answer((ROLLING, 7))
    error = WrongPassword(12)
    assert error_of(takeover.fail(error)) is error


def test_trouble_with_writing_that_certainly_did_not_happen_deletes_the_ledger() -> None:
    takeover, _ = at_write()
    error = WrongPassword(1)
    assert takeover.fail(error) == DeleteLedger(OWN)
    assert error_of(takeover.answer(None)) is error


def test_trouble_with_writing_that_may_pass_deletes_the_ledger_and_begins_again() -> None:
    takeover, _ = at_write()
    assert takeover.fail(NotEnoughBookies(3, ["a"])) == DeleteLedger(OWN)
    assert takeover.answer(None) == CheckLeadership()
    assert begin_again(takeover) == ReadManifest()


def test_trouble_with_asking_who_leads_that_does_not_pass_is_told_at_once() -> None:
    takeover = taking("log")
    takeover.begin()
    takeover.answer((ROLLING, 7))
    assert takeover.fail(RecoveryFailed(12, "bookies")) == CheckLeadership()
    error = WrongPassword(1)
    assert error_of(takeover.fail(error)) is error


def test_what_ended_the_last_attempt_is_told() -> None:
    takeover = taking("log", attempts_max=1)
    takeover.begin()
    takeover.answer((ROLLING, 7))
    gone = NoSuchLedger(12)
    assert error_of(takeover.fail(gone)) is gone


def test_leadership_lost_before_the_swap_deletes_the_own_ledger() -> None:
    takeover, _ = at_write()
    assert takeover.fail(LostOwnership("log")) == DeleteLedger(OWN)
    assert isinstance(error_of(takeover.answer(None)), LostOwnership)


def test_leadership_lost_while_recovering_gives_up() -> None:
    takeover = taking("log")
    takeover.begin()
    takeover.answer((ROLLING, 7))
    assert isinstance(error_of(takeover.fail(LostOwnership("log"))), LostOwnership)


def test_leadership_lost_while_the_swap_is_unknown_leaves_the_ledger() -> None:
    takeover, _ = at_write()
    takeover.fail(LOST_REPLY)
    assert isinstance(error_of(takeover.fail(LostOwnership("log"))), LostOwnership)


def test_an_epoch_that_is_not_the_expected_one_is_told_before_anybody_is_fenced() -> None:
    taken = ROLLING.with_sealed(2, FIVE).taken_over(4, LedgerId(14), 0, "host:1")
    takeover = taking("log", expected_epoch=1)
    takeover.begin()
    error = error_of(takeover.answer((taken, 7)))
    assert isinstance(error, EpochChanged)
    assert (error.expected_epoch, error.epoch, error.owner) == (1, 4, "host:1")


def test_an_expected_epoch_is_looked_at_again_after_a_conflict() -> None:
    first = NEW.taken_over(1, LedgerId(11), 0, "")
    takeover = taking("log", expected_epoch=1)
    takeover.begin()
    assert isinstance(takeover.answer((first, 7)), RecoverSegment)
    takeover.answer(FIVE)
    takeover.answer((OWN, 0))
    takeover.fail(CONFLICT)
    taken = first.with_sealed(1, FIVE).taken_over(2, LedgerId(12), 0, "other")
    assert takeover.answer((taken, 8)) == DeleteLedger(OWN)
    takeover.answer(None)
    begin_again(takeover)
    assert isinstance(error_of(takeover.answer((taken, 8))), EpochChanged)


def test_a_takeover_begins_an_epoch_and_a_writer_that_reopens_stays_in_its_own() -> None:
    mine = NEW.taken_over(1, LedgerId(11), 0, "me")
    takeover = taking("log", expected_epoch=1, reopens="i")
    takeover.begin()
    takeover.answer((mine, 7))
    takeover.answer(FIVE)
    effect = takeover.answer((OWN, 0))
    assert isinstance(effect, WriteManifest)
    assert (effect.manifest.epoch, effect.manifest.owner) == (1, "me")
    assert effect.manifest.last is not None
    assert effect.manifest.last.number == 2


def test_a_writer_does_not_reopen_into_a_log_that_was_made_anew() -> None:
    takeover = taking("log", expected_epoch=1, reopens="another incarnation")
    takeover.begin()
    anew = NEW.taken_over(1, LedgerId(11), 0, "me")
    assert isinstance(error_of(takeover.answer((anew, 7))), NoSuchLog)


def test_a_log_that_says_that_a_gateway_leads_it_is_asked_about_and_no_name_is() -> None:
    led = NEW.taken_over(1, LedgerId(11), 0, "anybody", gateway=True)
    takeover = taking("log", spares_gateways=True)
    takeover.begin()
    assert takeover.answer((led, 7)) == CheckGateways()
    named = NEW.taken_over(1, LedgerId(11), 0, "kafka gateway host:1")
    takeover = taking("log", spares_gateways=True)
    takeover.begin()
    assert isinstance(takeover.answer((named, 7)), RecoverSegment)


@pytest.mark.parametrize("is_gateway", [True, False])
def test_a_takeover_writes_whether_a_gateway_did_it(is_gateway: bool) -> None:
    led = NEW.taken_over(1, LedgerId(11), 0, "x", gateway=not is_gateway)
    takeover = taking("log", is_gateway=is_gateway)
    takeover.begin()
    takeover.answer((led, 7))
    takeover.answer(FIVE)
    effect = takeover.answer((OWN, 0))
    assert isinstance(effect, WriteManifest)
    assert effect.manifest.gateway is is_gateway
    kept = Manifest.decode(effect.manifest.encode("log"), path="/logs/log")
    assert kept.gateway is is_gateway
