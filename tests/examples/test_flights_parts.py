"""The parts of the flights demo that need no cluster."""

import dataclasses
import json

import pytest

from dlog.demo.compare import Verdict, compare
from dlog.demo.report import DemoOutcome, DemoTakeover, last_line

SOURCE = [b"zero", b"one", b"two", b"three"]
GOOD: list[tuple[int | None, bytes]] = list(enumerate(SOURCE))


def test_an_exact_copy_has_nothing_wrong_with_it() -> None:
    verdict = compare(SOURCE, GOOD)
    assert verdict == Verdict(4, 0, 0, 0, 0, 0)
    assert verdict.exact


@pytest.mark.parametrize(
    ("copy", "wrong"),
    [
        ([GOOD[0], GOOD[1], GOOD[3]], {"records": 3, "lost": 1}),
        ([GOOD[0], *GOOD], {"records": 5, "doubled": 1}),
        ([*GOOD, GOOD[1]], {"records": 5, "doubled": 1}),
        ([GOOD[0], GOOD[2], GOOD[1], GOOD[3]], {"out_of_order": 1}),
        ([*GOOD[:3], (3, b"tree")], {"changed": 1}),
        ([*GOOD, (4, b"four")], {"records": 5, "foreign": 1}),
        ([*GOOD, (None, b"one")], {"records": 5, "foreign": 1}),
        ([], {"records": 0, "lost": 4}),
    ],
)
def test_each_kind_of_difference_is_counted_as_what_it_is(
    copy: list[tuple[int | None, bytes]], wrong: dict[str, int]
) -> None:
    verdict = compare(SOURCE, copy)
    assert verdict == dataclasses.replace(Verdict(4, 0, 0, 0, 0, 0), **wrong)
    assert not verdict.exact


def outcome(**wrong: int) -> DemoOutcome:
    good = dataclasses.asdict(Verdict(4, 0, 0, 0, 0, 0))
    return DemoOutcome(4, good, {**good, **wrong}, True, DemoTakeover(2.0, 0.25, 0.05), 1.0, 1.0)


def test_the_last_line_tells_the_takeover_in_milliseconds() -> None:
    assert last_line(outcome()) == "demo: 4 records, 0 lost, 0 doubled, takeover 2300 ms"
    assert outcome().exact


@pytest.mark.parametrize("what", ["lost", "doubled", "out_of_order", "changed", "foreign"])
def test_a_difference_in_one_copy_alone_fails_the_demo(what: str) -> None:
    assert not outcome(**{what: 1}).exact


def test_a_copy_that_ends_early_fails_the_demo() -> None:
    assert not outcome(records=3).exact


def test_a_standby_that_read_something_else_fails_the_demo() -> None:
    assert not dataclasses.replace(outcome(), standby_exact=False).exact


@pytest.mark.spark
def test_the_source_gives_compact_json_with_whole_numbers() -> None:
    from dlog.demo.source import flights

    rows = flights(rows_max=100)
    assert len(rows) == 100
    first = json.loads(rows[0])
    assert (first["carrier"], first["flight"], first["dep_time"]) == ("UA", 1545, 517)
    assert b": " not in rows[0]
    assert b"517.0" not in rows[0]


@pytest.mark.spark
def test_the_source_gives_the_same_bytes_each_time() -> None:
    from dlog.demo.source import flights

    assert flights(rows_max=1000) == flights(rows_max=1000)
