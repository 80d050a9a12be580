"""The benchmark of logs runs from end to end; what it measures is not judged here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.disk import DiskFigures
from benchmarks.figures import Figure
from benchmarks.results import Results, keep

PERCENTILES = ("p50", "p99")
LATENCY = (
    "R: sequential durable writes",
    "F: fdatasync of 4 KiB",
    *(f"lone append of 100 B, aio {percent}" for percent in PERCENTILES),
    *(f"lone synchronous append of 100 B {percent}" for percent in PERCENTILES),
    *(f"append until tailed {percent}" for percent in PERCENTILES),
)
PROMISED = (
    *LATENCY,
    *(
        f"{what} of {size}, {how}"
        for what, hows in (
            ("appends", ("append_async, aio", "append_async, threads", "append_many_async, aio")),
            ("catch-up", ("as chunks", "as records")),
        )
        for size in ("100 B", "1 KB")
        for how in hows
    ),
    "takeover, cold last segment of 0.002 GB",
    "5 logs written by one process: appends of 100 B",
    "5 logs written by one process: memory of that process",
    "5 logs written by one process: sockets for them",
    "5 logs written by one process: threads for them",
    "5 logs written by one process: sessions",
    "import dlog: processor",
    "dlog --version: processor",
    *(
        f"{count}: {what}"
        for count in ("3 segments", "30 segments")
        for what in ("manifest", "open one", "lone append p50", "roll", "begin to tail at the end")
    ),
    *(
        f"{count}: {what}"
        for count in ("3 logs", "8 logs")
        for what in ("create one more p50", "list all", "open one", "lone append p50")
    ),
    "appends of 100 B, metrics asked every second",
)


def run(directory: Path, *options: str) -> tuple[list[dict[str, Any]], str]:
    """Return the figures of a quick run, and what it printed."""
    kept, data = directory / "kept" / "figures.json", directory / "data"
    command = [sys.executable, "-m", "benchmarks", "--quick", *options]
    run = subprocess.run(
        [*command, "--dir", str(data), "--json", str(kept)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    assert kept.with_suffix(".svg").read_text().startswith("<svg")
    assert not list(data.iterdir())
    figures: list[dict[str, Any]] = json.loads(kept.read_text())["figures"]
    return figures, run.stdout


@pytest.mark.parametrize(
    ("options", "promised"),
    [
        pytest.param((), PROMISED, marks=pytest.mark.long("bench"), id="all"),
        pytest.param(("--only", "latency"), LATENCY, id="latency"),
    ],
)
@pytest.mark.integration
def test_a_quick_run_tells_every_figure_and_leaves_nothing_but_them(
    tmp_path: Path, options: tuple[str, ...], promised: tuple[str, ...]
) -> None:
    told, shown = run(tmp_path, *options)
    names = [figure["name"] for figure in told]
    for wanted in promised:
        assert wanted in names or any(name.startswith(wanted) for name in names), wanted
    assert len(set(names)) == len(names)
    assert all(figure["value"] >= 0 for figure in told)
    assert all(name in shown for name in names)


def test_what_is_kept_tells_the_machine_and_its_load_beside_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "a" / "kept.json"
    keep([Figure("rate", 2.0, "/s", 0.5, "aims", ">= 4", False)], {"seconds": 1.0}, path)
    told = json.loads(path.read_text())
    assert told["figures"][0]["name"] == "rate"
    assert told["sizes"] == {"seconds": 1.0}
    assert told["processors"] >= 1
    assert told["load_after"] >= 0
    assert ">rate</text>" in path.with_suffix(".svg").read_text()


def test_an_aim_told_in_a_disk_that_changed_meanwhile_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = DiskFigures(1e8, 1e8, 1e-3, 1e-3, 1e-3), DiskFigures(1e8, 1e8, 9e-3, 1, 1)
    monkeypatch.setattr("benchmarks.results.measure_disk", lambda *_: after)
    results = Results(tmp_path, before, [])
    results.latency("an add", [2e-3], aim_f=6)
    results.share("adds", 5e7, copies=6, aim=0.6)
    results.end("adding", 0.1, 0)
    by_name = {figure.name: figure for figure in results.figures}
    assert by_name["an add p50"].met is None
    assert "disk unsteady" in by_name["an add p50"].aim
    assert by_name["adds"].met is True
