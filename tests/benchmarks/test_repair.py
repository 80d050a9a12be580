"""The benchmark of repair runs from end to end; what it measures is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

OF_COPIES = (
    "metadata calls of a moved ledger",
    "small ledgers moved by one worker",
    "repair of a lost bookie, no throttle",
    "repair at the default throttle",
    "append beside repair against without, p99",
)
OF_PASSES = (
    "R: sequential durable writes",
    *(
        f"{what} of {count} ledgers{more}"
        for what in ("audit", "audit that marks", "check by ranges")
        for count in (20, 60)
        for more in ("", ": memory at its peak", ": sessions lost")
    ),
    "audit: memory of 60 ledgers, against 20",
    "check by ranges: memory of 60 ledgers, against 20",
)


@pytest.mark.long("bench-repair")
@pytest.mark.integration
@pytest.mark.parametrize(
    ("store", "options", "promised"),
    [
        ("file", (), (*OF_COPIES, *OF_PASSES)),
        pytest.param(
            *("zookeeper", ("--only", "passes"), OF_PASSES),
            marks=pytest.mark.zookeeper,
        ),  # a bookie that is killed is missed after a time-out: that takes long
    ],
)
def test_a_quick_run_tells_every_figure_and_leaves_nothing_but_them(
    store: str, options: tuple[str, ...], promised: tuple[str, ...], tmp_path: Path
) -> None:
    kept, data = tmp_path / "kept" / "figures.json", tmp_path / "data"
    command = [sys.executable, "-m", "benchmarks.repair", "--quick", "--store", store, *options]
    run = subprocess.run(
        [*command, "--dir", str(data), "--json", str(kept)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    told = json.loads(kept.read_text())
    names = [figure["name"] for figure in told["figures"]]
    for wanted in promised:
        assert any(name.startswith(wanted) for name in names), wanted
    assert len(set(names)) == len(names)
    assert told["sizes"]["store"] == store
    assert all(name in run.stdout for name in names)
    marked = [each["value"] for each in told["figures"] if each["name"].endswith("marked")]
    assert marked == [0, 2, 0, 6]
    assert kept.with_suffix(".svg").read_text().startswith("<svg")
    assert not list(data.iterdir())
