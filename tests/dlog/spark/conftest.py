"""One Spark session for all tests of a run."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.dlog.spark import sessions


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the format registered. No task is tried twice: a failed one fails its job."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sessions.environment().items():
            patch.setenv(name, value)
        made = sessions.session("local[2]", tmp_path_factory.mktemp("spark"))
        yield made
        made.stop()
