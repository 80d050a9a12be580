"""Spark writes and reads encrypted logs as it does others, on disks that hold none of it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests import clusters
from tests.dlog.spark.conftest import KEY
from tests.dlog.spark.test_spark_sink import manifest, numbers, save, values

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

ROWS = 3000


def files_with(directory: Path, text: bytes) -> list[Path]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [path for path in files if text in path.read_bytes()]


def test_rows_in_messages_and_in_staged_ledgers_are_encrypted_and_are_read_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = numbers(spark, 0, ROWS).selectExpr("concat('secret-', value) AS value")
    with clusters.running(tmp_path) as cluster:
        uri = cluster.uri
        save(numbers(spark, 0, 1).selectExpr("'in plain' AS value"), uri, "plain")
        save(rows, uri, "orders", **{"log.encrypt_with": KEY})
        save(rows, uri, "orders", inlineBytesMax="1000")  # too many: each task stages a ledger
        found = manifest(uri, "orders")
        assert found.settings.encrypt_with == KEY
        assert len(found.segments) > 1
        assert values(uri, "orders") == [b"secret-%d" % row for row in range(ROWS)] * 2
        read = spark.read.format("dlog").option("uri", uri).option("logs", "orders").load()
        assert read.where("CAST(value AS STRING) LIKE 'secret-%'").count() == 2 * ROWS
    assert files_with(tmp_path, b"in plain"), "the test looks where they are"
    assert not files_with(tmp_path, b"secret-")
