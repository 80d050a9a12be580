"""docs/metrics.md lists what is declared, and what is declared keeps the conventions."""

import re

import pytest

from ledger.metering.declaration import Metric, MetricKind
from tests.documents.metrics_page import DECLARED, PAGE, page

ALL: list[Metric[object]] = [each for metrics in DECLARED.values() for each in metrics]
UNITS_THAT_ARE_NOT_BASE = re.compile(r"_(ms|millis|us|ns|kb|kib|mb|mib|percent|minutes|hours)(_|$)")


def test_the_page_is_what_the_packages_declare() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: make metrics"


def test_no_name_is_declared_twice() -> None:
    names = [each.name for each in ALL]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("metric", ALL, ids=lambda each: each.name)
def test_names_and_words_keep_the_conventions(metric: Metric[object]) -> None:
    assert re.fullmatch(r"dlog_[a-z]+(_[a-z]+)*", metric.name)
    assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total")
    assert not UNITS_THAT_ARE_NOT_BASE.search(metric.name)
    assert re.fullmatch(r"[A-Z0-9][^|]*\.", metric.says)
    assert len(metric.labels) <= 2
    assert not {"ledger", "ledger_id", "entry", "offset", "peer", "le"} & set(metric.labels)
