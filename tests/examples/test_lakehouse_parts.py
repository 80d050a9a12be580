"""The parts of the lakehouse that need neither cluster nor Spark."""

import dataclasses
import json
from pathlib import Path

import pytest

from examples.lakehouse.compare import Verdict, compare
from examples.lakehouse.moments import Checkpoint, Moment, Watch
from examples.lakehouse.plot import svg
from examples.lakehouse.report import Mark, Outcome, Sample, last_line, peak

WANTED: dict[object, object] = {"a": 1, "b": 2, "c": 3}
EXACT = dataclasses.asdict(Verdict(3, 0, 0, 0, 0))


def test_what_is_as_expected_is_exact_in_any_order() -> None:
    verdict = compare(WANTED, [("c", 3), ("a", 1), ("b", 2)])
    assert verdict == Verdict(3, 0, 0, 0, 0)
    assert verdict.exact


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([("a", 1), ("b", 2)], Verdict(2, 1, 0, 0, 0)),
        ([("a", 1), ("b", 2), ("c", 3), ("a", 1)], Verdict(4, 0, 1, 0, 0)),
        ([("a", 1), ("b", 9), ("c", 3)], Verdict(3, 0, 0, 1, 0)),
        ([("a", 1), ("b", 2), ("c", 3), ("d", 4)], Verdict(4, 0, 0, 0, 1)),
        ([], Verdict(0, 3, 0, 0, 0)),
    ],
)
def test_each_kind_of_difference_is_counted_as_what_it_is(
    found: list[tuple[object, object]], verdict: Verdict
) -> None:
    assert compare(WANTED, found) == verdict
    assert not verdict.exact


def outcome(**changes: object) -> Outcome:
    good = Outcome(
        records=3,
        days=1,
        kills=["between two batches"],
        bookie_kills=1,
        parquet=EXACT,
        delays=EXACT,
        tailed_records=3,
        tailed_hours=3,
        worst="JFK 2013-01-01T10:00:00Z 99.0",
        samples=[Sample(0.0, 1, 0, 0), Sample(10.0, 3, 3, 3)],
        marks=[Mark(5.0, "driver killed & started")],
    )
    return dataclasses.replace(good, **changes)  # type: ignore[arg-type]


def test_the_last_line_has_all_figures() -> None:
    line = last_line(outcome())
    assert line.startswith("lakehouse: 3 records, 3 rows in 1 days, 3 windows, 1 driver kills, ")
    assert "1 bookie kills, lost 0, doubled 0, wrong 0, 10 s" in line
    assert outcome().exact


@pytest.mark.parametrize("what", ["lost", "doubled", "changed", "foreign"])
@pytest.mark.parametrize("where", ["parquet", "delays"])
def test_one_difference_anywhere_fails_the_run(where: str, what: str) -> None:
    assert not outcome(**{where: {**EXACT, what: 1}}).exact


def test_a_tailer_that_read_a_window_twice_or_not_at_all_fails_the_run() -> None:
    assert not outcome(tailed_records=4).exact
    assert not outcome(tailed_records=2, tailed_hours=2).exact


def test_the_peak_is_the_best_few_seconds_and_not_one_batch() -> None:
    assert peak([(0.0, 0), (1.0, 1000), (10.0, 1000)]) == 200
    assert peak([(0.0, 0), (5.0, 0), (10.0, 500), (15.0, 600)]) == 100


def test_a_run_of_one_sample_is_drawn() -> None:
    drawn = svg(outcome(samples=[Sample(0.0, 0, 0, 0)]))
    assert drawn.startswith("<svg")
    assert "driver killed &amp; started" in drawn


def note(directory: Path, kind: str, batch: int, end: int = 0) -> None:
    (directory / kind).mkdir(exist_ok=True)
    offsets = json.dumps({"logs": {"flights": ["id", end]}})
    (directory / kind / str(batch)).write_text(f"v1\n{{}}\n{offsets}", encoding="utf-8")


def test_the_position_of_a_query_is_the_end_of_the_last_batch_that_is_done(
    tmp_path: Path,
) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert (checkpoint.begun(), checkpoint.done(), checkpoint.position("flights")) == (-1, -1, 0)
    for batch in range(11):
        note(tmp_path, "offsets", batch, end=10 * batch)
    (tmp_path / "offsets" / ".11.tmp").touch()
    for batch in range(10):
        note(tmp_path, "commits", batch)
    assert (checkpoint.begun(), checkpoint.done()) == (10, 9)
    assert checkpoint.position("flights") == 90


def test_a_moment_is_told_from_checkpoint_and_log(tmp_path: Path) -> None:
    watch = Watch(Checkpoint(tmp_path))

    def moments(windows: int) -> list[Moment]:
        return [moment for moment in Moment if watch.now(moment, windows)]

    assert moments(0) == [Moment.BETWEEN]
    note(tmp_path, "offsets", 0)
    assert moments(5) == [Moment.BEGUN]
    assert moments(6) == [Moment.BEGUN, Moment.WRITTEN]
    note(tmp_path, "commits", 0)
    assert moments(6) == [Moment.BETWEEN]
    note(tmp_path, "offsets", 1)
    assert moments(6) == [Moment.BEGUN]
