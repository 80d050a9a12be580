"""The benchmark of replicas runs from end to end on dlog alone; its figures are not judged here."""

import json
from dataclasses import asdict

import pytest

from benchmarks.replica import __main__ as bench


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
