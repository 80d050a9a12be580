"""The benchmark of replicas runs from end to end on dlog alone; its figures are not judged here."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.replica import __main__ as bench
from dlog.local.cluster import LocalCluster


@pytest.mark.integration
async def test_commands_of_replicas_are_measured(tmp_path: Path) -> None:
    figures = bench.Figures()
    async with LocalCluster(tmp_path / "cluster") as cluster:
        await bench.measure("dlog", tmp_path / "nodes", cluster.uri, 0.1, figures)
    assert {clients: len(rates) for clients, rates in figures.rates.items()} == dict.fromkeys(
        bench.CLIENTS, 1
    )
    assert all(rate > 0 for rates in figures.rates.values() for rate in rates)


@pytest.mark.long("bench-replica")
@pytest.mark.integration
async def test_replicas_are_measured_from_end_to_end() -> None:
    sizes = (
        "--seconds",
        "0.2",
        "--rounds",
        "1",
        "--takeovers",
        "1",
        "--megabytes",
        "1",
        "--node-megabytes",
        "1",
    )
    outcome = await bench.main(bench.parse([*sizes, "--only", "dlog"]))
    dlog: bench.Figures = outcome["systems"]["dlog"]
    assert {clients: len(rates) for clients, rates in dlog.rates.items()} == dict.fromkeys(
        bench.CLIENTS, 1
    )
    assert len(dlog.takeovers_s) == 1
    said = bench.table(outcome)
    assert "| commands/s, 16 clients |" in said
    assert dlog.caught_up_s > 0
    assert "a new node has applied 1 MB" in said
    assert "from a snapshot" in said
    json.dumps(asdict(dlog))


def test_peers_that_cannot_be_had_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert bench.available([]) == ["dlog"]
    assert "there is no Go" in capsys.readouterr().err
