"""Spark and a cluster with TLS and roles: options alone say who a query is; nothing shows them."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dlog.local.cluster import LocalCluster
from dlog.tls.authority import CertificateRequest
from dlog.tls.files import issue_to
from ledger.metastore import open_store
from ledger.security.access import Grant, Role, Rules
from ledger.security.documents import change_rules
from tests import clusters
from tests.dlog.spark.feeding import Feed
from tests.dlog.spark.running import QUERY_TIMEOUT_S

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

STAGED = 40_000
"""Rows of 100 bytes that tasks write themselves, instead of the keeper."""
DENIALS_MAX = 30
"""Of three bookies, for one write or one read. Who tried again until patience ends would hear more
than a hundred."""
GRANTS = (
    Grant("cn:writer", Role.WRITER, "orders*"),
    Grant("cn:reader", Role.READER, "orders*"),
)


class Secured:
    """A cluster with TLS, and who may do what there."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def options(self, name: str) -> dict[str, Any]:
        """Return all that *name* says to be known: nothing of it is in any environment."""
        directory = self.cluster.directory / "tls"
        if not (directory / f"{name}.pem").exists():
            issue_to(directory, name, CertificateRequest(name=name, days=1))
        return {
            "uri": self.cluster.uri,
            "tls": "required",
            "tlsCa": str(directory / "ca.pem"),
            "tlsCert": str(directory / f"{name}.pem"),
            "tlsKey": str(directory / f"{name}-key.pem"),
        }

    def denials(self) -> int:
        """Return how often bookies have refused something to somebody, as they say."""
        logs = "".join(each.log_path.read_text() for each in self.cluster.processes)
        lines = [line for line in logs.splitlines() if "access_denied" in line]
        untold = re.compile(r"others_untold\W+(?:\x1b\[\d*m)*(\d+)")
        return len(lines) + sum(int(n) for line in lines for n in untold.findall(line))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with clusters.running(tmp_path_factory.mktemp("secured"), tls=True) as cluster:

        async def grant() -> None:
            store = await open_store(cluster.uri)
            for one in GRANTS:
                await change_rules(store, partial(Rules.granted, grant=one), by="a test")
            await store.close()

        asyncio.run(grant())
        yield Secured(cluster)


def save(frame: DataFrame, options: Mapping[str, str], log: str) -> None:
    frame.write.format("dlog").options(**options).mode("append").save(log)


def load(spark: SparkSession, options: Mapping[str, str], log: str) -> DataFrame:
    return spark.read.format("dlog").options(**options).load(log)


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr("LPAD(id, 100, '0') AS value")


def test_a_writer_writes_and_a_reader_reads_by_options_alone(
    spark: SparkSession, secured: Secured, tmp_path: Path
) -> None:
    save(rows(spark, 10), secured.options("writer"), "orders")
    save(rows(spark, STAGED), secured.options("writer"), "orders")
    assert load(spark, secured.options("reader"), "orders").count() == 10 + STAGED
    feed = Feed(spark, tmp_path)
    feed.put(5)
    query = feed.run(log="orders-streamed", **secured.options("writer"))
    assert query.exception() is None
    stream = spark.readStream.format("dlog").options(**secured.options("reader"))
    copied = (
        stream.load("orders-streamed")
        .writeStream.format("memory")
        .queryName("copied")
        .trigger(availableNow=True)
        .start()
    )
    assert copied.awaitTermination(QUERY_TIMEOUT_S)
    assert spark.table("copied").count() == 5


def test_who_may_only_read_writes_nothing_and_hears_so_once(
    spark: SparkSession, secured: Secured, tmp_path: Path
) -> None:
    save(rows(spark, 10), secured.options("writer"), "orders-kept")
    feed = Feed(spark, tmp_path)
    feed.put(5)
    before = secured.denials()
    with pytest.raises(StreamingQueryException, match=r"AccessDenied: cn:reader is not allowed to"):
        feed.run(log="orders-kept", **secured.options("reader"))
    with pytest.raises(PySparkException, match=r"AccessDenied: cn:reader is not allowed to"):
        save(rows(spark, STAGED), secured.options("reader"), "orders-made")  # which is not there
    assert 0 < secured.denials() - before <= 2 * DENIALS_MAX
    assert load(spark, secured.options("reader"), "orders-kept").count() == 10
    assert load(spark, secured.options("reader"), "orders-made").count() == 0


def test_who_was_granted_nothing_reads_nothing_and_hears_what_to_ask_for(
    spark: SparkSession, secured: Secured
) -> None:
    save(rows(spark, 10), secured.options("writer"), "orders-hidden")
    before = secured.denials()
    grant = "dlog access grant cn:stranger reader 'orders-hidden'"
    with pytest.raises(PySparkException, match=f"AccessDenied: .* an operator runs: {grant}"):
        load(spark, secured.options("stranger"), "orders-hidden").count()
    assert 0 < secured.denials() - before <= DENIALS_MAX


def test_without_options_of_tls_a_query_hears_what_to_set(
    spark: SparkSession, secured: Secured
) -> None:
    with pytest.raises(PySparkException, match="takes TLS only, and here it is off; set DLOG_TLS"):
        load(spark, {"uri": secured.cluster.uri}, "orders").count()


def test_what_spark_shows_of_a_query_has_none_of_its_options(
    spark: SparkSession, secured: Secured, tmp_path: Path
) -> None:
    save(rows(spark, 10), secured.options("writer"), "orders-shown")
    options = secured.options("reader")
    frame = load(spark, options, "orders-shown")
    shown = [repr(frame), frame.schema.json()]
    explain = spark.sparkContext._jvm.PythonSQLUtils.explainString
    shown += [
        explain(frame._jdf.queryExecution(), mode) for mode in ("extended", "codegen", "formatted")
    ]
    feed = Feed(spark, tmp_path)
    feed.put(5)
    query = feed.run(log="orders-shown", **secured.options("writer"))
    shown += [str(query.lastProgress), query._jsq.explainInternal(True)]
    hidden = (
        options["tlsKey"],
        options["tlsCert"],
        options["tlsCa"],
        "tlskey",
        secured.cluster.uri,
    )
    for text in shown:
        assert not [each for each in hidden if each.lower() in text.lower()]
