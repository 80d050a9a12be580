from dataclasses import replace

import pytest

from dlog.errors import LogSealed, LostOwnership, ManifestTooLarge, NoSuchLog, TxidOutOfOrder
from dlog.manifest import FULL_BYTES, Manifest, Sealed
from dlog.position import NO_TXID
from dlog.protocol.edits import (
    Edit,
    Staged,
    add_segment,
    adopt,
    drop_log,
    forget_deleted,
    seal_segment,
    taken_by_sibling,
    trim,
)
from dlog.receipts import ORIGIN_BYTES, Receipt
from dlog.settings import LogSettings
from ledger.ids import EntryId, LedgerId

TEN = Sealed(EntryId(9), 10, 100, NO_TXID, NO_TXID, 0, 0)
ONE = Manifest(incarnation="i").with_segment(1, LedgerId(11), 0)
TWO = ONE.with_segment(2, LedgerId(12), 5)
ADD = add_segment("log", incarnation="i", own_segment=1, number=2, ledger_id=LedgerId(12), now_ms=5)


def test_a_segment_is_added_after_the_writers_own() -> None:
    assert ADD(ONE) == TWO


def test_a_segment_that_is_listed_already_is_done() -> None:
    assert ADD(TWO) is TWO
    trimmed = TWO.with_sealed(1, TEN).trimmed(10)
    assert ADD(trimmed) is trimmed


def test_a_segment_is_added_to_a_manifest_that_was_trimmed_meanwhile() -> None:
    assert ADD(ONE.trimmed(3)).trim_offset == 3


@pytest.mark.parametrize(
    "manifest",
    [
        ONE.with_sealed(1, TEN).with_segment(2, LedgerId(99), 0),
        TWO.with_sealed(1, TEN).with_segment(3, LedgerId(99), 0),
        replace(ONE, next_segment=5),
    ],
)
def test_who_is_not_last_any_more_has_lost_the_log(manifest: Manifest) -> None:
    with pytest.raises(LostOwnership):
        ADD(manifest)


def test_a_log_made_anew_is_not_dropped_in_place_of_another() -> None:
    with pytest.raises(NoSuchLog, match="another one"):
        drop_log("log", incarnation="before")(ONE)


def test_a_log_that_was_dropped_or_sealed_gets_no_segment() -> None:
    with pytest.raises(LogSealed):
        ADD(replace(ONE, sealed=True))
    with pytest.raises(LostOwnership):
        ADD(ONE.dropping())


WHOLE = ONE.with_sealed(1, replace(TEN, last_txid=8))
FULL = replace(WHOLE, deleting=tuple(LedgerId(2**62 + n) for n in range(FULL_BYTES // 9)))
UNIT = Staged(LedgerId(20), WHOLE.epoch, replace(TEN, first_txid=9, last_txid=12))


def adopting(staged: Staged = UNIT, incarnation: str = "i") -> Edit:
    receipt = Receipt(bytes(ORIGIN_BYTES), 1)
    return adopt(
        "log",
        incarnation=incarnation,
        epoch=WHOLE.epoch,
        receipt=receipt,
        staged=[staged],
        now_ms=5,
    )


def test_a_unit_becomes_the_last_segment_once() -> None:
    adopted = adopting()(WHOLE)
    assert [each.ledger_id for each in adopted.segments] == [11, 20]
    assert adopting()(adopted) is adopted


@pytest.mark.parametrize(
    ("manifest", "edit", "error"),
    [
        (WHOLE, adopting(incarnation="before"), NoSuchLog),
        (replace(WHOLE, sealed=True), adopting(), LogSealed),
        (FULL, adopting(), ManifestTooLarge),
        (WHOLE, adopting(replace(UNIT, epoch=UNIT.epoch + 1)), LostOwnership),
        (WHOLE, adopting(replace(UNIT, sealed=replace(TEN, first_txid=7))), TxidOutOfOrder),
        (WHOLE, adopting(replace(UNIT, sealed=replace(TEN, last_txid=7))), LostOwnership),
    ],
    ids=["another log", "sealed", "full", "another epoch", "txid", "txids since"],
)
def test_a_unit_that_has_no_place_is_refused(
    manifest: Manifest, edit: Edit, error: type[Exception]
) -> None:
    with pytest.raises(error):
        edit(manifest)


def test_a_seal_is_recorded_once() -> None:
    edit = seal_segment("log", 1, LedgerId(11), TEN, now_ms=0)
    sealed = edit(TWO)
    assert sealed.segments[1].first_offset == 10
    assert edit(sealed) is sealed


def test_a_seal_applies_the_retention() -> None:
    manifest = replace(TWO, settings=LogSettings(retention_age_s=1))
    kept = seal_segment("log", 1, LedgerId(11), TEN, now_ms=1000)(manifest)
    gone = seal_segment("log", 1, LedgerId(11), TEN, now_ms=1001)(manifest)
    assert kept.deleting == ()
    assert gone.deleting == (11,)
    assert gone.trim_offset == 10


def test_the_seal_of_a_segment_that_is_gone_is_done() -> None:
    assert seal_segment("log", 7, LedgerId(17), TEN, now_ms=0)(ONE) is ONE


def test_a_ledger_that_never_became_the_segment_does_not_seal_it() -> None:
    """A writer that is closed in the middle of a roll may have lost the number to another."""
    assert seal_segment("log", 1, LedgerId(99), TEN, now_ms=0)(ONE) is ONE


def test_who_slept_while_the_log_was_made_anew_changes_nothing_of_it() -> None:
    another = Manifest(incarnation="another").with_segment(1, LedgerId(21), 0)
    with pytest.raises(NoSuchLog):
        ADD(another)
    with pytest.raises(NoSuchLog):
        trim("log", 4, incarnation="i")(another)


def test_segments_are_sealed_in_order() -> None:
    with pytest.raises(LostOwnership):
        seal_segment("log", 2, LedgerId(12), TEN, now_ms=0)(TWO)


def test_trimming_twice_is_trimming_once() -> None:
    once = trim("log", 4, incarnation="i")(ONE)
    assert trim("log", 4, incarnation="i")(once) == once
    with pytest.raises(NoSuchLog):
        trim("log", 4, incarnation="i")(ONE.dropping())


def test_dropping_and_forgetting_are_safe_to_repeat() -> None:
    drop = drop_log("log", incarnation="i")
    dropped = drop(TWO)
    assert drop(dropped) is dropped
    empty = forget_deleted(dropped.deleting)(dropped)
    assert empty.deleting == ()
    assert forget_deleted(dropped.deleting)(empty) == empty


@pytest.mark.parametrize(
    ("owner", "text"),
    [
        ("web-1:4712", "web-1:4712 opened it, by its name on this machine: two workers"),
        ("web-1:80", "web-1:80 opened it, which is the name of this process too"),
        ("web-2:4712", ""),
        ("web-1:billing", ""),
        ("web-1", ""),
        (":4712", ""),
        ("", ""),
    ],
)
def test_only_a_process_of_the_same_machine_is_a_sibling(owner: str, text: str) -> None:
    reason = taken_by_sibling(owner, "web-1:80")
    assert reason.startswith(text)
    assert bool(reason) == bool(text)
