"""Metrics: counted in plain numbers, and read as Prometheus wants them."""

import gc
import logging

import pytest
from prometheus_client.registry import CollectorRegistry

from ledger.metering.collector import ExposedCollector
from ledger.metering.declaration import (
    OTHERS,
    SERIES_MAX,
    Buckets,
    Exposed,
    Live,
    MetricRegistry,
    bounded,
)


def registry(declared: MetricRegistry[None]) -> CollectorRegistry:
    exposed = Exposed()
    exposed.add(declared)
    found = CollectorRegistry(auto_describe=False)
    found.register(ExposedCollector(exposed))
    return found


def test_a_value_falls_into_the_first_bucket_whose_bound_it_does_not_exceed() -> None:
    buckets = Buckets([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        buckets.observe(value)
    assert buckets.counts == [2, 2, 1]
    assert buckets.total == 7.5


def test_a_histogram_is_read_with_buckets_that_add_up() -> None:
    declared: MetricRegistry[None] = MetricRegistry()
    spread = declared.spread("dlog_wait_seconds", "How long.", [1.0, 2.0])
    for value in (0.5, 1.5, 9.0):
        spread.observe(value)
    found = registry(declared)

    def at_most(bound: str) -> float | None:
        return found.get_sample_value("dlog_wait_seconds_bucket", {"le": bound})

    assert [at_most("1.0"), at_most("2.0"), at_most("+Inf")] == [1, 2, 3]
    assert found.get_sample_value("dlog_wait_seconds_count") == 3
    assert found.get_sample_value("dlog_wait_seconds_sum") == 11


def test_a_tally_is_there_from_the_start_and_has_a_number_for_each_label() -> None:
    declared: MetricRegistry[None] = MetricRegistry()
    plain = declared.tally("dlog_plain_total", "Plain.")
    labelled = declared.tally("dlog_labelled_total", "Labelled.", "how")
    found = registry(declared)
    assert found.get_sample_value("dlog_plain_total") == 0
    plain.add()
    plain.add(by=4)
    labelled.add("well")
    labelled.add("well")
    assert found.get_sample_value("dlog_plain_total") == 5
    assert found.get_sample_value("dlog_labelled_total", {"how": "well"}) == 2


def test_labels_that_are_known_are_shown_before_their_first_event() -> None:
    declared: MetricRegistry[None] = MetricRegistry()
    ended = declared.tally("dlog_ended_total", "Ended.", "how", known=[("done",), ("failed",)])
    found = registry(declared)
    ended.add("done")
    assert found.get_sample_value("dlog_ended_total", {"how": "done"}) == 1
    assert found.get_sample_value("dlog_ended_total", {"how": "failed"}) == 0


def test_a_name_is_declared_once() -> None:
    declared: MetricRegistry[None] = MetricRegistry()
    declared.gauge("dlog_level", "A level.", lambda _: 1)
    with pytest.raises(AssertionError):
        declared.gauge("dlog_level", "Another.", lambda _: 2)


def test_a_metric_that_cannot_be_read_does_not_take_others_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    declared: MetricRegistry[None] = MetricRegistry()
    declared.gauge("dlog_broken", "Broken.", lambda _: 1 // 0)
    declared.gauge("dlog_whole", "Whole.", lambda _: 3)
    found = registry(declared)
    with caplog.at_level(logging.WARNING):
        assert found.get_sample_value("dlog_whole") == 3
        assert found.get_sample_value("dlog_broken") is None
    assert caplog.text.count("metric_not_read") == 1


def test_series_are_bounded_and_the_rest_is_put_together() -> None:
    values = [(f"log-{number}", 1) for number in range(SERIES_MAX + 50)]
    found = bounded(values, lambda a, b: a + b)
    assert len(found) == SERIES_MAX + 1
    assert found["log-0"] == 1
    assert found[OTHERS] == 50
    assert bounded([("a", 1), ("a", 5), ("a", 3)], max) == {"a": 5}


class Thing:
    pass


def test_what_is_open_is_held_by_nobody_else_here() -> None:
    live: Live[Thing] = Live()
    kept, closed, lost = Thing(), Thing(), Thing()
    for each in (kept, closed, lost):
        live.add(each)
    live.remove(closed)
    del lost, each
    gc.collect()
    assert list(live) == [kept]
