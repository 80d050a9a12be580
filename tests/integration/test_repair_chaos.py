"""Bookies and disks are lost under load with real processes, shortly; `make chaos-repair` does it
for long."""

import subprocess
from typing import Final

import pytest

from tests.integration.test_log_chaos import ROOT, SKIPPED, chaos

SECONDS: Final = 5
DEADLINE_S: Final = 600


@pytest.mark.long("chaos-repair")
@pytest.mark.integration
@pytest.mark.timeout(DEADLINE_S + 30)
@pytest.mark.parametrize(
    ("zookeepers", "seed", "first"),
    [
        ("0", "6", "a disk that is replaced"),
        pytest.param(
            *("1", "20", "a machine that burns"),
            marks=pytest.mark.zookeeper,
        ),
    ],
)
def test_a_cluster_that_loses_bookies_and_disks_has_every_copy_again_and_lost_no_record(
    zookeepers: str, seed: str, first: str
) -> None:
    done = subprocess.run(
        chaos(*("--repair", "--seconds", str(SECONDS), "--seed", seed, "--zookeepers", zookeepers)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout)
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert f"after {first}" in done.stdout
    assert "full replication again within" in done.stdout
