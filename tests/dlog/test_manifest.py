from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import InvalidSettings, ManifestTooLarge
from dlog.manifest import Manifest, Sealed, Segment
from dlog.position import NO_TXID
from dlog.recordbatch import Codec
from dlog.settings import LogSettings
from dlog.wire import log_pb2 as pb
from ledger.errors import DamagedMetadata
from ledger.ids import EntryId, LedgerId
from ledger.metastore.port import VALUE_BYTES_MAX
from ledger.quorum import Quorum

EMPTY = Manifest(incarnation="i")


def sealed(records: int, *, size: int = 100, txid: int = NO_TXID, at_ms: int = 1000) -> Sealed:
    return Sealed(EntryId(records - 1), records, size, txid, txid, at_ms, at_ms)


def grow(manifest: Manifest, *seals: Sealed | None) -> Manifest:
    """Return *manifest* with a segment for each seal; None leaves it open."""
    for seal in seals:
        number = manifest.next_segment
        manifest = manifest.with_segment(number, LedgerId(100 + number), 5)
        if seal is not None:
            manifest = manifest.with_sealed(number, seal)
    return manifest


def made_at(manifest: Manifest, *created_ms: int) -> Manifest:
    """Return *manifest* with segments that were created at those times."""
    segments = zip(manifest.segments, created_ms, strict=True)
    return replace(manifest, segments=tuple(replace(s, created_ms=ms) for s, ms in segments))


def roundtrip(manifest: Manifest) -> Manifest:
    return Manifest.decode(manifest.encode("log"), path="/logs/log")


@given(
    records=st.lists(st.integers(0, 2**40), max_size=5),
    opened=st.integers(0, 2),
    trim=st.integers(0, 2**41),
    deleting=st.lists(st.integers(10**6, 2**62), max_size=3, unique=True),
    txid=st.integers(-(2**63), 2**63 - 1),
)
def test_what_was_encoded_comes_back(
    records: list[int], opened: int, trim: int, deleting: list[int], txid: int
) -> None:
    manifest = grow(EMPTY, *(sealed(each, txid=txid) for each in records), *[None] * opened)
    manifest = replace(manifest, deleting=tuple(map(LedgerId, deleting))).trimmed(trim)
    assert roundtrip(manifest) == manifest


def test_settings_come_back() -> None:
    settings = LogSettings(
        quorum=Quorum(5, 4, 3),
        codec=Codec.ZSTD,
        codec_level=7,
        degraded_writes=False,
        record_bytes_max=10,
        roll_bytes=1,
        roll_age_s=0.5,
        roll_records=3,
        roll_idle_s=7.0,
        retention_bytes=4,
        retention_age_s=5.25,
    )
    assert roundtrip(Manifest(incarnation="x", settings=settings)).settings == settings


def test_a_manifest_of_before_levels_of_codecs_is_read_and_written_byte_for_byte() -> None:
    kept = bytes.fromhex(
        "080112066265666f72651802421b080310031802200128013080804038808080"
        "80044080bab70360645800820101028a01010e920102d00f"
    )
    manifest = Manifest.decode(kept, path="/logs/x")
    assert manifest.settings == LogSettings(codec=Codec.ZSTD, roll_idle_s=0.1)
    assert manifest.encode("log") == kept


def test_ten_thousand_segments_fit() -> None:
    segments = []
    first = 0
    for number in range(1, 10_001):
        seal = Sealed(
            EntryId(2000), 1_000_000 + number, 2**30, 2**50 + number, 2**50 + number,
            1_790_000_000_000 + 60_000 * number, 1_790_000_060_000 + 60_000 * number,
        )  # fmt: skip
        segments.append(
            Segment(number, LedgerId(2**40 + 7 * number), 1_790_000_000_000, first, seal)
        )
        first += seal.records
    manifest = Manifest(incarnation="i", segments=tuple(segments), next_segment=10_001)
    assert len(manifest.encode("log")) < VALUE_BYTES_MAX / 2
    assert roundtrip(manifest) == manifest


def test_a_manifest_over_the_limit_says_so() -> None:
    manifest = replace(EMPTY, deleting=tuple(LedgerId(2**62 + i) for i in range(120_000)))
    with pytest.raises(ManifestTooLarge) as caught:
        manifest.encode("flights")
    assert "truncate the log" in str(caught.value)
    assert caught.value.size_bytes > VALUE_BYTES_MAX


@pytest.mark.parametrize("value", [b"\xff\xff", b"", b"\x08\x02"])
def test_what_is_no_manifest_is_told(value: bytes) -> None:
    with pytest.raises(DamagedMetadata):
        Manifest.decode(value, path="/logs/x")


def test_a_manifest_that_breaks_an_invariant_is_damaged() -> None:
    good = grow(EMPTY, sealed(3), None)
    value = good.encode("log").replace(b"\x82\x01\x02\x02\x02", b"\x82\x01\x02\x02\x00")
    with pytest.raises(DamagedMetadata, match="numbers ascend"):
        Manifest.decode(value, path="/logs/x")


def test_a_segment_after_an_open_one_has_no_first_offset_until_that_is_sealed() -> None:
    manifest = grow(EMPTY, sealed(10), None, None)
    assert [s.first_offset for s in manifest.segments] == [0, 10, None]
    manifest = manifest.with_sealed(2, sealed(5))
    assert [s.first_offset for s in manifest.segments] == [0, 10, 15]
    assert manifest.sealed_end == 15


def test_a_third_open_segment_is_refused() -> None:
    with pytest.raises(AssertionError, match="more segments are open"):
        grow(EMPTY, None, None, None)


def test_a_log_that_had_segments_and_lists_none_is_refused_unless_it_is_dropped() -> None:
    grown = grow(EMPTY, sealed(1), None)
    assert grown.dropping().segments == ()
    with pytest.raises(AssertionError, match="stays listed"):
        replace(grown, segments=())


def test_a_segment_number_is_never_given_out_twice() -> None:
    manifest = grow(EMPTY, sealed(1), sealed(1)).trimmed(2)
    with pytest.raises(AssertionError, match="given out before"):
        manifest.with_segment(2, LedgerId(9), 0)


def test_trimming_drops_whole_sealed_segments_and_lists_their_ledgers() -> None:
    manifest = grow(EMPTY, sealed(10), sealed(10), sealed(10), None)
    trimmed = manifest.trimmed(20)
    assert [s.number for s in trimmed.segments] == [3, 4]
    assert trimmed.deleting == (101, 102)
    assert trimmed.trim_offset == 20
    assert manifest.trimmed(19).deleting == (101,)


def test_the_trim_point_never_moves_back() -> None:
    manifest = grow(EMPTY, sealed(10), None).trimmed(7)
    assert manifest.trimmed(3) == manifest


def test_the_last_segment_stays_although_it_is_trimmed_whole() -> None:
    manifest = grow(EMPTY, sealed(10, txid=77), sealed(0, txid=77)).trimmed(10)
    assert [s.number for s in manifest.segments] == [2]
    assert manifest.sealed_end == 10
    assert manifest.sealed_last_txid == 77


def test_the_last_txid_outlives_the_segment_that_told_it() -> None:
    manifest = grow(Manifest(incarnation="i"), sealed(3, txid=1005), None).trimmed(3)
    assert [segment.sealed for segment in manifest.segments] == [None]
    assert manifest.sealed_last_txid == 1005
    assert roundtrip(manifest).sealed_last_txid == 1005


def test_an_open_segment_is_never_dropped() -> None:
    manifest = grow(EMPTY, sealed(10), None, None).trimmed(50)
    assert [s.number for s in manifest.segments] == [2, 3]


def test_deleted_ledgers_leave_the_list() -> None:
    manifest = grow(EMPTY, sealed(1), sealed(1), None).trimmed(2)
    assert manifest.deleted([LedgerId(101)]).deleting == (102,)


def test_retention_by_age_keeps_what_is_young() -> None:
    manifest = replace(
        grow(EMPTY, sealed(10, at_ms=1000), sealed(10, at_ms=50_000), None),
        settings=LogSettings(retention_age_s=60),
    )
    manifest = made_at(manifest, 0, 2_000, 60_000)
    assert manifest.retained_from(now_ms=61_000) == 0
    assert manifest.retained_from(now_ms=61_001) == 10
    assert manifest.retained_from(now_ms=200_000) == 20


@pytest.mark.parametrize(
    ("given_ms", "counts_from_ms"),
    [(5, 10_000), (9**15, 20_000), (-(2**62), 10_000), (15_000, 15_000)],
    ids=["seconds", "microseconds", "before all calendars", "right"],
)
def test_for_retention_a_record_is_as_old_as_its_segment_may_be(
    given_ms: int, counts_from_ms: int
) -> None:
    manifest = replace(
        made_at(grow(EMPTY, sealed(10, at_ms=given_ms), None), 10_000, 20_000),
        settings=LogSettings(retention_age_s=60),
    )
    assert manifest.retained_from(now_ms=counts_from_ms + 60_000) == 0
    assert manifest.retained_from(now_ms=counts_from_ms + 60_001) == 10


def test_the_last_segment_of_all_ends_now_for_retention() -> None:
    manifest = replace(
        made_at(grow(EMPTY, sealed(10, at_ms=9**15)), 10_000),
        settings=LogSettings(retention_age_s=60),
    )
    assert manifest.retained_from(now_ms=10**9) == 0


def test_times_of_older_programs_that_are_far_apart_come_back() -> None:
    manifest = grow(EMPTY, sealed(1, at_ms=-(2**62)), sealed(1, at_ms=2**62), sealed(1, at_ms=7))
    assert roundtrip(manifest) == manifest


def test_retention_by_bytes_keeps_at_least_that_much() -> None:
    manifest = replace(
        grow(EMPTY, *(sealed(10, size=100) for _ in range(4)), None),
        settings=LogSettings(retention_bytes=200),
    )
    assert manifest.retained_from(now_ms=0) == 20


def test_without_retention_nothing_goes() -> None:
    manifest = grow(EMPTY, sealed(10, at_ms=0), None)
    assert manifest.retained_from(now_ms=10**15) == 0


def test_dropping_lists_every_ledger() -> None:
    dropped = grow(EMPTY, sealed(1), None, None).dropping()
    assert dropped.deleting == (101, 102, 103)
    assert dropped.dropped
    assert roundtrip(dropped) == dropped


def test_find_and_after() -> None:
    manifest = grow(EMPTY, sealed(1), sealed(1), None).trimmed(1)
    assert manifest.find(1) is None
    assert manifest.find(3) is manifest.segments[-1]
    assert manifest.after(1) == manifest.segments[0]
    assert manifest.after(2) == manifest.segments[1]
    assert manifest.after(3) is None


@pytest.mark.parametrize(
    "settings", [{"record_bytes_max": 0}, {"record_bytes_max": 2**25}, {"roll_age_s": -1.0}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(InvalidSettings):
        LogSettings(**settings)  # type: ignore[arg-type]


def test_epoch_and_owner_come_back() -> None:
    manifest = EMPTY.taken_over(1, LedgerId(9), 5, "host:17")
    assert (manifest.epoch, manifest.owner) == (1, "host:17")
    assert roundtrip(manifest) == manifest


def test_the_epoch_of_an_old_manifest_is_its_last_segment() -> None:
    manifest = grow(EMPTY, sealed(3), None)
    node = pb.ManifestNode.FromString(manifest.encode("log"))
    node.ClearField("epoch")
    found = Manifest.decode(node.SerializeToString(), path="/logs/log")
    assert (found.epoch, found.owner) == (2, "")
