"""The benchmark of the Kafka gateway runs from end to end; its figures are not judged here."""

import json
from pathlib import Path

import pytest

from benchmarks.kafka import __main__ as bench

ROWS = ("produce 100 B, 1 producer", "produce at 1,000/s", "fetch 100 B", "takeover")


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(ROWS, marks=pytest.mark.long("bench-kafka"), id="all"),
        pytest.param(ROWS[:1], id="produce"),
    ],
)
@pytest.mark.integration
async def test_the_gateway_is_measured_from_end_to_end(
    tmp_path: Path, rows: tuple[str, ...]
) -> None:
    wanted = [word for row in rows for word in ("--only", row)]
    options = bench.parse(["--quick", "--rounds", "1", "--beside", bench.GATEWAY, *wanted])
    outcome = await bench.measure(options, tmp_path)
    assert outcome["figures"].keys() == set(rows)
    assert all(
        value > 0
        for by_system in outcome["figures"].values()
        for rounds in by_system.values()
        for measured in rounds
        for value in measured.values()
    )
    told = bench.table(outcome)
    assert all(f"| {row} |" in told for row in rows)
    json.dumps(outcome)
