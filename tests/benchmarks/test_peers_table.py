"""Ratios are made within rounds, aims are judged by their medians, and the page says both."""

import json
from pathlib import Path

import pytest

from benchmarks.peers.bookkeeper import WHEN_EMPTY, configuration
from benchmarks.peers.commands import burst_and_tick, mark_of, marked
from benchmarks.peers.metrics import AIMS, METRICS
from benchmarks.peers.rows import ROWS
from benchmarks.peers.samples import BadSamples, Sample, Samples, Spread, keep, kept
from benchmarks.peers.systems import AIO, BUFFERED, CONFLUENT, KAFKA, MANY, SYSTEMS
from benchmarks.peers.table import NOTES, drawing, judged, number, page, summary
from benchmarks.peers.usage import Usage, parsed


def sample(metric: str, system: str, value: float, round_number: int = 1, run: str = "r") -> Sample:
    return Sample(metric, system, value, run, round_number)


def test_a_ratio_is_made_of_two_samples_of_one_round() -> None:
    samples = Samples(
        [
            sample("lone-p50", AIO, 1.0, 1),
            sample("lone-p50", KAFKA, 2.0, 1),
            sample("lone-p50", AIO, 9.0, 2),
            sample("lone-p50", KAFKA, 3.0, 2),
            sample("lone-p50", KAFKA, 100.0, 1, run="of another hour"),
        ]
    )
    assert samples.ratio("lone-p50", AIO, KAFKA) == Spread(1.75, 0.5, 3.0)
    assert samples.ratio("lone-p50", AIO, CONFLUENT) is None


def test_a_peer_that_gave_nothing_has_no_ratio() -> None:
    samples = Samples([sample("lone-p50", AIO, 1.0), sample("lone-p50", KAFKA, 0.0)])
    assert samples.ratio("lone-p50", AIO, KAFKA) is None


def test_what_was_kept_is_found_again_with_what_came_before(tmp_path: Path) -> None:
    first, second = sample("catch-up", AIO, 1.5), sample("catch-up", KAFKA, 2.5, 2)
    keep([first], tmp_path / "there" / "kept.jsonl")
    keep([second], tmp_path / "there" / "kept.jsonl")
    assert kept(tmp_path / "there" / "kept.jsonl") == [first, second]


def test_a_line_that_is_no_sample_is_named(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    for line in ("{", json.dumps({"metric": "lone-p50"}), "[]"):
        path.write_text(line)
        with pytest.raises(BadSamples, match=r"kept.jsonl, line 1, is no sample"):
            kept(path)


def test_where_nothing_was_kept_a_sentence_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadSamples, match="is not there: measure something first"):
        kept(tmp_path / "kept.jsonl")


def test_more_or_less_is_better_as_its_metric_says() -> None:
    samples = Samples(
        [
            sample("throughput-100", AIO, 600.0),
            sample("throughput-100", KAFKA, 500.0),
            sample("throughput-100", BUFFERED, 400.0),
            sample("open-2000-p50", AIO, 2.0),
            sample("open-2000-p50", KAFKA, 3.0),
        ]
    )
    verdicts = {(aim.metric, peer): met for aim, peer, _, met in judged(samples)}
    assert verdicts == {
        ("throughput-100", KAFKA): False,
        ("throughput-100", BUFFERED): True,
        ("open-2000-p50", KAFKA): True,
    }


def test_of_the_best_peer_the_worst_ratio_counts() -> None:
    samples = Samples(
        [
            sample("throughput-100", MANY, 1000.0),
            sample("throughput-100", KAFKA, 500.0),
            sample("throughput-100", BUFFERED, 600.0),
            sample("cpu-servers", AIO, 1.0),
            sample("cpu-servers", KAFKA, 2.0),
            sample("cpu-servers", BUFFERED, 3.0),
        ]
    )
    best = {aim.metric: (peer, met) for aim, peer, _, met in judged(samples)}
    assert best == {"throughput-100": (BUFFERED, False), "cpu-servers": (KAFKA, True)}


def test_the_page_has_rows_ratios_aims_and_settings() -> None:
    samples = Samples([sample("catch-up", AIO, 1.5), sample("catch-up", CONFLUENT, 1.0)])
    text = page(samples)
    assert "| Catch-up, 100 B | dlog aio | confluent-kafka | 1.5 | >= 1 | met |" in text
    assert "|  | M records/s | dlog aio / it |" in text
    assert "| confluent-kafka | 1 | 1.5 |" in text
    assert "## Lone append" not in text, "nothing was measured of it"
    assert NOTES.read_text() in text
    assert all(f"- **{name}**: " in text for name in SYSTEMS)
    assert "## Aims" not in summary(samples)
    assert "Catch-up, 100 B: dlog aio / confluent-kafka" in drawing(samples)


def test_a_number_has_three_digits_or_all_before_the_point() -> None:
    assert [number(each) for each in (0.012345, 1.2345, 99.94, 123.4, 12345.6)] == [
        "0.0123", "1.23", "99.9", "123", "12,346"
    ]  # fmt: skip


def test_aims_are_of_what_is_measured() -> None:
    for aim in AIMS:
        assert aim.metric in METRICS
        assert {aim.ours, *aim.peers} <= SYSTEMS.keys()
    assert {system for row in ROWS.values() for system in row.systems} == SYSTEMS.keys()


def test_what_the_kernel_says_of_a_process_is_read() -> None:
    stat = "7 (a (b) c) S 1 7 7 0 -1 4 0 0 0 0 250 50 0 0 20 0 9 0 1 0 0"
    io = "rchar: 1\nwchar: 2\nread_bytes: 3\nwrite_bytes: 4096\ncancelled_write_bytes: 5\n"
    status = "Name:\tx\nVmHWM:\t  900 kB\nVmRSS:\t  800 kB\n"
    usage = parsed(stat, io, status, ticks=100)
    assert usage == Usage(3.0, 4096, 800 * 1024)
    assert usage.plus(usage) == Usage(6.0, 8192, 1600 * 1024)


def test_a_bookie_is_told_its_places_and_the_settings_that_differ() -> None:
    text = configuration("127.0.0.1:2181", "/there", 3181, Path("/data"), WHEN_EMPTY)
    lines = dict(line.split("=", 1) for line in text.splitlines())
    assert lines["metadataServiceUri"] == "zk+hierarchical://127.0.0.1:2181/there"
    assert lines["bookiePort"] == "3181"
    assert lines["journalDirectories"] == "/data/journal"
    assert lines["journalFlushWhenQueueEmpty"] == "true"


@pytest.mark.parametrize(("rate", "burst", "tick_s"), [(200, 1, 0.005), (20_000, 10, 0.0005)])
def test_what_is_due_within_half_a_millisecond_is_due_together(
    rate: float, burst: int, tick_s: float
) -> None:
    assert burst_and_tick(rate) == (burst, tick_s)


def test_a_record_says_its_index() -> None:
    assert [mark_of(marked(100, index)) for index in (-1, 0, 70_000)] == [-1, 0, 70_000]
    assert len(marked(100, 7)) == 100
