"""The lakehouse on few departures: the driver dies, a bookie dies, no number is wrong."""

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from examples.lakehouse.moments import Moment
from examples.lakehouse.plot import svg
from examples.lakehouse.report import last_line
from examples.lakehouse.run import Course, run_lakehouse

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("records", "kills"),
    [
        (2000, ()),
        pytest.param(6000, (Moment.WRITTEN,), marks=pytest.mark.long("chaos-spark")),
    ],
    ids=["nobody", "driver and bookie"],
)
async def test_no_window_is_doubled_or_lost_whoever_is_killed(
    records: int, kills: tuple[Moment, ...], tmp_path: Path
) -> None:
    course = Course(records=records, rate=3000.0, per_trigger=600, kills=kills)
    said = io.StringIO()
    outcome = await run_lakehouse(tmp_path, course, Console(file=said, soft_wrap=True))
    assert outcome.exact, last_line(outcome)
    assert outcome.parquet["found"] > 0.98 * records
    assert outcome.delays["found"] > 0.05 * records
    assert outcome.tailed_records == outcome.tailed_hours == outcome.delays["found"]
    what = [mark.what for mark in outcome.marks]
    assert what.count("a bookie killed") == what.count("the bookie is back") == len(kills)
    assert sum(each.startswith("driver killed") for each in what) == len(kills)
    assert "lost 0, doubled 0, wrong 0" in last_line(outcome)
    drawn = ET.fromstring(svg(outcome))
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polyline")) == 5
