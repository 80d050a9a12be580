"""The benchmark of Spark runs from end to end; what it measures is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LONG = pytest.mark.long("bench-spark")
TABLES = tuple(f"table, 2,000 of 100 B: {way}" for way in ("memory", "dlog"))
PROMISED = (
    *TABLES,
    *(
        f"{what}, 2,000 of 100 B: {way}"
        for what in (
            "stream to noop",
            "stream to parquet",
            "write by one job",
            "write by a stream",
        )
        for way in ("memory", "dlog")
    ),
    *(
        f"{what}, until seen, 1,000/s, {percent}"
        for what in (
            "made by a source without input and output",
            "the same, beside appends that nobody reads",
            "appended to a log",
        )
        for percent in ("p50", "p99")
    ),
    *(
        f"backfill to parquet, 5,000 of 100 B, 2,500 a batch: {what}"
        for what in ("dlog", "JVM at most", "a worker at most", "the source at most")
    ),
)


@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("only", "promised"),
    [(("--only", "source"), TABLES), pytest.param((), PROMISED, marks=LONG)],
    ids=["tables", "everything"],
)
def test_a_quick_run_tells_every_figure(
    only: tuple[str, ...], promised: tuple[str, ...], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "benchmarks.spark", "--quick", "--without-kafka", *only]
    command += ["--dir", str(tmp_path), "--json", str(tmp_path / "kept.json")]
    subprocess.run(command, check=True, timeout=800)
    kept = json.loads((tmp_path / "kept.json").read_text())
    found = {figure["name"] for figure in kept["figures"]}
    assert set(promised) <= found
    assert (tmp_path / "kept.svg").exists()
