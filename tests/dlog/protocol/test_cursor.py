from dataclasses import replace

import pytest

from dlog.errors import DamagedLog, NoSuchLog, ObjectLost, Trimmed
from dlog.manifest import Location, Manifest, Sealed, StoredObject
from dlog.position import NO_TXID
from dlog.protocol.cursor import (
    BACKOFF_S_MAX,
    AwaitManifest,
    BatchesRead,
    Cursor,
    CursorEffect,
    CursorEvent,
    Deliver,
    EndFound,
    Fail,
    FetchManifest,
    FindEnd,
    FindPlace,
    Finish,
    Interrupted,
    LedgerMissing,
    ManifestSeen,
    NothingNew,
    PlaceFound,
    ReadEntries,
    SegmentEnded,
    StopMoved,
)
from ledger.errors import NotEnoughBookies, WrongPassword
from ledger.ids import EntryId, LedgerId
from ledger.protocol.common import TimePassed

EMPTY = Manifest(incarnation="i")


def sealed(records: int) -> Sealed:
    return Sealed(EntryId(records - 1), records, 0, NO_TXID, NO_TXID, 0, 0)


ONE = EMPTY.with_segment(1, LedgerId(11), 0)
TWO_OPEN = ONE.with_segment(2, LedgerId(12), 0)
TWO = ONE.with_sealed(1, sealed(10)).with_segment(2, LedgerId(12), 0)
THREE = TWO.with_sealed(2, sealed(5)).with_segment(3, LedgerId(13), 0)


SILENT = NotEnoughBookies(3, ["a"])


def step(cursor: Cursor, event: CursorEvent, *, now: float = 0.0) -> list[CursorEffect]:
    return cursor.step(event, now=now)


def entered(manifest: Manifest, start: int, stop: int | None = None) -> tuple[Cursor, CursorEffect]:
    cursor = Cursor("log", start, stop=stop)
    (effect,) = step(cursor, ManifestSeen(manifest))
    return cursor, effect


def error_of(effects: list[CursorEffect]) -> Exception:
    assert isinstance(effects[-1], Fail)
    return effects[-1].error


def test_reading_begins_with_the_segment_that_holds_the_start() -> None:
    assert entered(THREE, 0)[1] == ReadEntries(THREE.segments[0], 0)
    assert entered(THREE, 10)[1] == ReadEntries(THREE.segments[1], 0)
    assert entered(THREE, 15)[1] == ReadEntries(THREE.segments[2], 0)


def test_a_start_inside_a_segment_is_looked_for_there() -> None:
    cursor, effect = entered(THREE, 12)
    assert effect == FindPlace(THREE.segments[1], 2)
    assert step(cursor, PlaceFound(1, 1)) == [ReadEntries(THREE.segments[1], 1)]
    assert step(cursor, BatchesRead([(1, 1, 4)])) == [
        Deliver(2, 1, 11, skip=1, take=3),
        ReadEntries(THREE.segments[1], 2),
    ]


def test_batches_are_delivered_in_order_and_reading_goes_on_behind_them() -> None:
    cursor, _ = entered(ONE, 0)
    assert step(cursor, BatchesRead([(0, 0, 3), (1, 3, 2)])) == [
        Deliver(1, 0, 0, skip=0, take=3),
        Deliver(1, 1, 3, skip=0, take=2),
        ReadEntries(ONE.segments[0], 2),
    ]
    assert cursor.next_offset == 5
    assert step(cursor, NothingNew()) == [ReadEntries(ONE.segments[0], 2)]


def test_the_stop_cuts_a_batch() -> None:
    cursor, _ = entered(ONE, 0, stop=4)
    assert step(cursor, BatchesRead([(0, 0, 3), (1, 3, 5)])) == [
        Deliver(1, 0, 0, skip=0, take=3),
        Deliver(1, 1, 3, skip=0, take=1),
        Finish(),
    ]


def test_where_the_stop_moves_reading_goes_on_with_the_entry_that_it_cut() -> None:
    cursor, _ = entered(ONE, 0, stop=4)
    step(cursor, BatchesRead([(0, 0, 3), (1, 3, 5)]))
    assert step(cursor, StopMoved(8)) == [ReadEntries(ONE.segments[0], 1)]
    assert step(cursor, BatchesRead([(1, 3, 5), (2, 8, 2)])) == [
        Deliver(1, 1, 3, skip=1, take=4),
        Finish(),
    ]
    assert step(cursor, StopMoved(9)) == [ReadEntries(ONE.segments[0], 2)]
    assert step(cursor, BatchesRead([(2, 8, 2)])) == [Deliver(1, 2, 8, skip=0, take=1), Finish()]
    assert step(cursor, StopMoved(9)) == [ReadEntries(ONE.segments[0], 2)]
    assert step(cursor, BatchesRead([(2, 8, 2)])) == [Finish()]


def test_a_stop_that_moves_leads_on_behind_a_segment_that_its_writer_left() -> None:
    cursor, _ = entered(TWO_OPEN, 0, stop=3)
    step(cursor, NothingNew())
    step(cursor, EndFound(1))
    assert step(cursor, BatchesRead([(0, 0, 1), (1, 1, 2)]))[-1] == Finish()
    assert step(cursor, StopMoved(5)) == [FetchManifest()]
    assert step(cursor, ManifestSeen(TWO_OPEN)) == [ReadEntries(TWO_OPEN.segments[1], 0)]


def test_where_the_stop_moves_that_was_reached_at_once_the_place_is_found() -> None:
    cursor, effect = entered(ONE, 4, stop=4)
    assert effect == Finish()
    assert step(cursor, StopMoved(6)) == [FetchManifest()]
    assert step(cursor, ManifestSeen(ONE)) == [FindPlace(ONE.segments[0], 4)]


def test_a_start_at_the_stop_delivers_nothing() -> None:
    assert entered(ONE, 4, stop=4)[1] == Finish()


def test_after_the_end_of_a_segment_the_next_one_is_read_from_its_first_entry() -> None:
    cursor, _ = entered(TWO, 0)
    step(cursor, BatchesRead([(0, 0, 10)]))
    assert cursor.later == TWO.segments[1]
    assert step(cursor, SegmentEnded()) == [ReadEntries(TWO.segments[1], 0)]
    assert cursor.later is None
    assert step(cursor, BatchesRead([(0, 0, 1)]))[0] == Deliver(2, 0, 10, skip=0, take=1)


def test_what_the_manifest_did_not_say_of_an_end_is_read_again() -> None:
    for seen in (ONE, TWO_OPEN):
        cursor, _ = entered(seen, 0)
        step(cursor, BatchesRead([(0, 0, 10)]))
        assert step(cursor, SegmentEnded()) == [FetchManifest()]
        assert step(cursor, ManifestSeen(TWO)) == [ReadEntries(TWO.segments[1], 0)]


def test_a_first_offset_that_is_missing_is_the_end_of_the_segment_before() -> None:
    cursor, _ = entered(TWO_OPEN, 0)
    step(cursor, BatchesRead([(0, 0, 7)]))
    step(cursor, SegmentEnded())
    step(cursor, ManifestSeen(TWO_OPEN))
    assert step(cursor, BatchesRead([(0, 0, 2)]))[0] == Deliver(2, 0, 7, skip=0, take=2)


def test_without_a_next_segment_the_manifest_is_awaited() -> None:
    cursor, _ = entered(ONE, 0)
    step(cursor, SegmentEnded())
    assert step(cursor, ManifestSeen(ONE)) == [AwaitManifest()]
    assert step(cursor, ManifestSeen(TWO_OPEN)) == [ReadEntries(TWO_OPEN.segments[1], 0)]


def test_a_log_without_segments_is_awaited() -> None:
    assert entered(EMPTY, 0)[1] == AwaitManifest()


def test_a_log_that_is_sealed_for_good_ends() -> None:
    over = replace(ONE.with_sealed(1, sealed(2)), sealed=True)
    cursor, _ = entered(over, 0)
    step(cursor, BatchesRead([(0, 0, 2)]))
    step(cursor, SegmentEnded())
    assert step(cursor, ManifestSeen(over)) == [Finish()]
    assert entered(replace(EMPTY, sealed=True), 0)[1] == Finish()


def test_empty_segments_are_passed() -> None:
    manifest = ONE.with_sealed(1, sealed(0)).with_segment(2, LedgerId(12), 0)
    cursor, _ = entered(ONE, 0)
    step(cursor, SegmentEnded())
    assert step(cursor, ManifestSeen(manifest)) == [ReadEntries(manifest.segments[1], 0)]


def test_a_start_behind_the_end_waits_and_skips_what_comes_before_it() -> None:
    cursor, effect = entered(ONE, 100)
    assert effect == FindPlace(ONE.segments[0], 100)
    step(cursor, PlaceFound(3, 30))
    assert step(cursor, BatchesRead([(3, 30, 50)])) == [ReadEntries(ONE.segments[0], 4)]
    assert step(cursor, BatchesRead([(4, 80, 30)]))[0] == Deliver(1, 4, 80, skip=20, take=10)


def test_a_start_behind_the_end_is_looked_for_in_the_next_segment_too() -> None:
    cursor, _ = entered(TWO_OPEN, 12)
    step(cursor, PlaceFound(1, 10))
    step(cursor, SegmentEnded())
    assert step(cursor, ManifestSeen(TWO_OPEN)) == [FindPlace(TWO_OPEN.segments[1], 2)]


def test_a_start_behind_a_sealed_last_segment_waits_for_the_next() -> None:
    closed = ONE.with_sealed(1, sealed(10))
    cursor, effect = entered(closed, 10)
    assert effect == AwaitManifest()
    assert step(cursor, ManifestSeen(TWO)) == [ReadEntries(TWO.segments[1], 0)]


def test_a_position_below_the_trim_point_is_told_and_never_jumped() -> None:
    error = entered(THREE.trimmed(11), 5)[1]
    assert isinstance(error, Fail)
    assert isinstance(error.error, Trimmed)
    assert error.error.first_offset == 11


def test_a_trim_is_noticed_in_the_middle_of_a_segment() -> None:
    cursor, _ = entered(ONE, 0)
    step(cursor, BatchesRead([(0, 0, 3)]))
    assert isinstance(error_of(step(cursor, ManifestSeen(ONE.trimmed(4)))), Trimmed)


def test_a_trim_below_the_position_does_not_matter() -> None:
    cursor, _ = entered(ONE, 0)
    step(cursor, BatchesRead([(0, 0, 3)]))
    assert step(cursor, ManifestSeen(ONE.trimmed(3))) == [ReadEntries(ONE.segments[0], 1)]


def test_a_segment_that_was_trimmed_away_at_its_end_is_left_for_the_next() -> None:
    cursor, _ = entered(TWO, 0)
    step(cursor, BatchesRead([(0, 0, 10)]))
    step(cursor, SegmentEnded())
    trimmed = TWO.trimmed(10)
    assert step(cursor, ManifestSeen(trimmed)) == [ReadEntries(trimmed.segments[0], 0)]


def test_a_start_is_found_behind_segments_that_were_trimmed_while_it_was_looked_for() -> None:
    cursor, effect = entered(TWO_OPEN, 15)  # nobody knows yet where segment 2 begins
    assert effect == FindPlace(TWO_OPEN.segments[0], 15)
    step(cursor, PlaceFound(1, 10))
    step(cursor, SegmentEnded())
    trimmed = THREE.trimmed(15)
    assert step(cursor, ManifestSeen(trimmed)) == [ReadEntries(trimmed.segments[0], 0)]


@pytest.mark.parametrize(
    "manifest", [None, replace(ONE, dropped=True), replace(ONE, incarnation="other")]
)
def test_a_log_that_was_deleted_or_replaced_is_no_log(manifest: Manifest | None) -> None:
    cursor, _ = entered(ONE, 0)
    assert isinstance(error_of(step(cursor, ManifestSeen(manifest))), NoSuchLog)


@pytest.mark.parametrize("batch", [(1, 0, 3), (0, 1, 3)])
def test_a_gap_is_never_skipped(batch: tuple[int, int, int]) -> None:
    cursor, _ = entered(ONE, 0)
    assert isinstance(error_of(step(cursor, BatchesRead([batch]))), DamagedLog)


def test_what_came_before_a_gap_is_still_delivered() -> None:
    cursor, _ = entered(ONE, 0)
    effects = step(cursor, BatchesRead([(0, 0, 3), (1, 4, 1)]))
    assert effects[0] == Deliver(1, 0, 0, skip=0, take=3)
    assert isinstance(error_of(effects), DamagedLog)


def test_a_segment_that_ends_elsewhere_than_the_manifest_says_is_damaged() -> None:
    cursor, _ = entered(TWO, 0)
    step(cursor, BatchesRead([(0, 0, 9)]))
    step(cursor, SegmentEnded())
    assert isinstance(error_of(step(cursor, ManifestSeen(TWO))), DamagedLog)


def test_a_segment_that_begins_elsewhere_than_the_one_before_ended_is_damage() -> None:
    """Its records would be delivered under the offsets of others."""
    cursor, _ = entered(ONE, 0)
    step(cursor, BatchesRead([(0, 0, 12)]))
    step(cursor, SegmentEnded())
    begins_at_10 = THREE.trimmed(10)
    assert isinstance(error_of(step(cursor, ManifestSeen(begins_at_10))), DamagedLog)


def test_after_trouble_the_place_is_found_again_behind_the_last_delivery() -> None:
    cursor, _ = entered(THREE, 0)
    step(cursor, BatchesRead([(0, 0, 4)]))
    assert step(cursor, Interrupted(SILENT)) == []
    again_at = cursor.deadline()
    assert again_at is not None
    assert step(cursor, TimePassed(), now=again_at) == [FetchManifest()]
    assert step(cursor, ManifestSeen(THREE)) == [FindPlace(THREE.segments[0], 4)]
    step(cursor, PlaceFound(0, 0))
    assert step(cursor, BatchesRead([(0, 0, 6)]))[0] == Deliver(1, 0, 0, skip=4, take=2)


def test_waits_after_trouble_grow_until_something_is_delivered() -> None:
    cursor, _ = entered(ONE, 0)

    def waits(times: int) -> list[float]:
        waited = []
        for _ in range(times):
            assert step(cursor, Interrupted(SILENT)) == []
            again_at = cursor.deadline()
            assert again_at is not None
            assert step(cursor, TimePassed(), now=again_at / 2) == []
            assert step(cursor, TimePassed(), now=again_at) == [FetchManifest()]
            waited.append(again_at)
        return waited

    grown = waits(12)
    assert grown == sorted(grown)
    assert grown[0] < grown[-1] == BACKOFF_S_MAX
    step(cursor, ManifestSeen(ONE))
    step(cursor, BatchesRead([(0, 0, 4)]))
    assert waits(1) == grown[:1]


def test_a_manifest_that_is_seen_after_trouble_ends_the_wait() -> None:
    cursor, _ = entered(ONE, 0)
    step(cursor, Interrupted(SILENT))
    assert step(cursor, ManifestSeen(ONE)) == [ReadEntries(ONE.segments[0], 0)]
    assert cursor.deadline() is None


def test_trouble_that_does_not_pass_is_raised_at_once() -> None:
    cursor, _ = entered(ONE, 0)
    error = WrongPassword(11)
    assert error_of(step(cursor, Interrupted(error))) is error


def test_a_missing_ledger_of_a_trimmed_segment_is_trimmed() -> None:
    cursor, _ = entered(TWO, 0)
    step(cursor, BatchesRead([(0, 0, 4)]))
    assert step(cursor, LedgerMissing()) == [FetchManifest()]
    assert isinstance(error_of(step(cursor, ManifestSeen(TWO.trimmed(10)))), Trimmed)


def test_a_missing_ledger_of_a_listed_segment_is_damage() -> None:
    cursor, _ = entered(TWO, 0)
    step(cursor, LedgerMissing())
    assert isinstance(error_of(step(cursor, ManifestSeen(TWO))), DamagedLog)


def test_a_segment_whose_ledger_is_missing_is_opened_where_it_has_moved() -> None:
    location = Location(on_bookies=False, object=StoredObject("o", 1))
    moved = replace(TWO.segments[0], location=location)
    manifest = replace(TWO, segments=(moved, *TWO.segments[1:]))
    cursor, _ = entered(TWO, 0)
    step(cursor, LedgerMissing())
    assert step(cursor, ManifestSeen(manifest)) == [ReadEntries(moved, 0)]
    step(cursor, LedgerMissing())
    error = error_of(step(cursor, ManifestSeen(manifest)))
    assert isinstance(error, ObjectLost)


def test_a_segment_whose_writer_may_still_be_in_it_is_not_left() -> None:
    cursor, effect = entered(TWO_OPEN, 0)
    assert effect == ReadEntries(TWO_OPEN.segments[0], 0)
    assert step(cursor, NothingNew()) == [FindEnd(*TWO_OPEN.segments)]
    assert step(cursor, EndFound(None)) == [ReadEntries(TWO_OPEN.segments[0], 0)]


def test_a_segment_is_left_at_its_end_if_its_writer_went_on_without_closing_it() -> None:
    cursor, _ = entered(TWO_OPEN, 0)
    step(cursor, BatchesRead([(0, 0, 3)]))
    assert step(cursor, NothingNew()) == [FindEnd(*TWO_OPEN.segments)]
    assert step(cursor, EndFound(1)) == [ReadEntries(TWO_OPEN.segments[0], 1)]
    assert step(cursor, BatchesRead([(1, 3, 2)])) == [
        Deliver(1, 1, 3, skip=0, take=2),
        FetchManifest(),
    ]
    assert step(cursor, ManifestSeen(TWO_OPEN)) == [ReadEntries(TWO_OPEN.segments[1], 0)]
    assert step(cursor, BatchesRead([(0, 0, 1)]))[0] == Deliver(2, 0, 5, skip=0, take=1)


def test_a_segment_that_was_read_to_the_end_it_turns_out_to_have_is_left_at_once() -> None:
    cursor, _ = entered(TWO_OPEN, 0)
    step(cursor, BatchesRead([(0, 0, 3)]))
    step(cursor, NothingNew())
    assert step(cursor, EndFound(0)) == [FetchManifest()]
    (effect,) = step(
        cursor, ManifestSeen(ONE.with_sealed(1, sealed(4)).with_segment(2, LedgerId(12), 0))
    )
    assert isinstance(effect, Fail)  # a manifest that says otherwise is not believed in silence
    assert isinstance(effect.error, DamagedLog)


def test_a_segment_that_is_listed_while_the_one_before_is_read_is_noticed() -> None:
    cursor, _ = entered(ONE, 0)
    assert step(cursor, NothingNew()) == [ReadEntries(ONE.segments[0], 0)]
    assert step(cursor, ManifestSeen(TWO_OPEN)) == [ReadEntries(ONE.segments[0], 0)]
    assert step(cursor, NothingNew()) == [FindEnd(*TWO_OPEN.segments)]
