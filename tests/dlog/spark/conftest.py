"""One Spark session for all tests of a run."""

from collections.abc import Iterator
from typing import Final

import pytest
from pyspark.sql import SparkSession

from dlog.encryption.files import add_key
from tests.dlog.spark import sessions

KEY: Final = "of-spark"
"""Which all processes of the session have."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the format registered. No task is tried twice: a failed one fails its job."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sessions.environment().items():
            patch.setenv(name, value)
        keys = tmp_path_factory.mktemp("keys") / "keys"
        add_key(keys, KEY)
        patch.setenv("DLOG_KEY_FILE", str(keys))
        made = sessions.session("local[2]", tmp_path_factory.mktemp("spark"))
        yield made
        made.stop()
