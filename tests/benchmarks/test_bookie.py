"""The benchmark of a bookie runs from end to end; what it measures is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.figures import Figure
from benchmarks.plot import svg

PROMISED = (
    "R: sequential durable writes",
    "F: fdatasync of 4 KiB",
    *(f"adds of {size}" for size in ("100 B", "1 KB", "64 KB")),
    *(
        f"add of {size}, {in_flight} in flight {percent}"
        for size in ("100 B", "1 KB", "64 KB")
        for in_flight in (1, 16, 256)
        for percent in ("p50", "p99")
    ),
    "catch-up at 64 KB",
    "add of 1 KB, 16 in flight, beside catch-up p99",
    "add of 1 KB, 16 in flight, beside compaction p99",
    "restart after kill",
    "200 ledgers of 10 entries: memory growth",
    "200 ledgers of 10 entries: open files",
    "200 ledgers of 10 entries: disk",
)


@pytest.mark.integration
def test_a_quick_run_tells_every_figure_and_leaves_nothing_but_them(tmp_path: Path) -> None:
    kept, data = tmp_path / "kept" / "figures.json", tmp_path / "data"
    command = [sys.executable, "-m", "benchmarks.bookie", "--quick"]
    run = subprocess.run(
        [*command, "--dir", str(data), "--json", str(kept)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    told = json.loads(kept.read_text())["figures"]
    names = [figure["name"] for figure in told]
    for wanted in PROMISED:
        assert any(name.startswith(wanted) for name in names), wanted
    assert len(set(names)) == len(names)
    assert all(figure["value"] >= 0 for figure in told)
    assert all(name in run.stdout for name in names)
    assert kept.with_suffix(".svg").read_text().startswith("<svg")
    assert not list(data.iterdir())


def test_the_drawing_has_a_bar_for_each_aim_and_each_latency() -> None:
    figures = [
        Figure("rate", 100.0, "/s", 0.5, "aims", ">= 200", False),
        Figure("share", 300.0, "MB/s", 0.9, "R/2", ">= 0.7 R/2", True),
        Figure("waits <long> p50", 0.2, "ms", 2.0, "F", "<= 3 F", True),
        Figure("only told", 7.0, ""),
    ]
    drawing = svg(figures)
    assert drawing.count(">rate</text>") == 1
    assert drawing.count(">share</text>") == 1
    assert drawing.count(">waits &lt;long&gt; p50</text>") == 2
    assert "only told" not in drawing
    assert ">0.5</text>" in drawing  # half of the rate that was asked for
    assert ">1.29</text>" in drawing  # 0.9 where 0.7 was asked for
    assert ">1.5</text>" in drawing  # 2 F where 3 F was allowed
