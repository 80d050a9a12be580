"""A short run of `make chaos-archive`."""

from pathlib import Path

import pytest

from tests.integration.archive_chaos import chaos


@pytest.mark.integration
async def test_a_log_that_moves_to_an_s3_under_faults_loses_and_leaks_nothing(
    tmp_path: Path,
) -> None:
    done = await chaos(20.0, 1, tmp_path)
    assert done["appended"] > 0
    assert done["segments"] > 0
    assert done["archiver 1 killed"] + done["archiver 2 killed"] > 0
