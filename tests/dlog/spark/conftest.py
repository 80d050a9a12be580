"""One Spark session for all tests of a run, and a cluster for each module."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import dlog.spark
from dlog.local.cluster import LocalCluster
from dlog.local.java import java_environment

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the format registered. No task is tried twice: a failed one fails its job."""
    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in java_environment().items():
            patch.setenv(name, value)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", str(ROOT))
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.local.dir", str(scratch))
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        dlog.spark.register(session)
        yield session
        session.stop()


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"))
    try:
        loop.run_until_complete(cluster.__aenter__())
        yield cluster.uri
        loop.run_until_complete(cluster.__aexit__(None, None, None))
    finally:
        loop.close()
