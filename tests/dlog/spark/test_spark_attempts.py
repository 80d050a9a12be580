"""Tasks that Spark runs more than once, on a Spark cluster of processes: each row is there once,
and what the other attempts staged never becomes part of the log and is deleted."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog import Log
from dlog.aio.admin import log_info
from dlog.aio.maintain.janitor import Janitor
from ledger.client import LedgerClient
from tests.dlog.spark.application import FAILS, LINGERS, SLEEPS, TASKS, Application, application
from tests.dlog.spark.standalone import standalone
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

ROWS = [b"%d" % row for row in range(1000)]
LATER_S = 60.0


@pytest.fixture(scope="module")
def spark_application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    directory = tmp_path_factory.mktemp("application")
    with standalone(directory / "cluster") as master, application(master, directory) as running:
        yield running


@pytest.fixture(scope="module")
def source(uri: str) -> str:
    with Log.open("source", uri=uri) as log:
        log.append_many(ROWS)
    return "source"


def values(uri: str, log: str) -> list[bytes]:
    with Log.tail(log, uri=uri, stop="end") as reader:
        return [record.value for record in reader]


def ledgers(uri: str, log: str) -> set[int]:
    manifest = asyncio.run(log_info(log, uri=uri)).manifest
    return {int(segment.ledger_id) for segment in manifest.segments}


def orphans(uri: str) -> set[int]:
    """Return the ledgers that the janitor has deleted now."""

    async def deleted() -> set[int]:
        client = await LedgerClient.connect(uri)
        try:
            done = await Janitor(client).run_once()
        finally:
            await client.close()
        assert not done.troubles
        return {int(each.ledger_id) for each in done.orphans}

    return asyncio.run(deleted())


def wake(signals: Path) -> int:
    """Let the attempt go on that sleeps; return the ledger that it seals."""
    (signals / "wake").touch()
    sealed = signals / "sealed"
    wait_until(lambda: sealed.exists() and bool(sealed.read_text()), "it sealed", timeout_s=LATER_S)
    return int(sealed.read_text())


def test_a_slow_task_that_spark_overtakes_by_a_second_attempt_adds_nothing(
    spark_application: Application, uri: str, source: str, tmp_path: Path
) -> None:
    assert spark_application.copy(uri, source, "overtaken", SLEEPS, tmp_path) is None
    assert (tmp_path / "asleep").exists()
    assert not (tmp_path / "sealed").exists(), "the second attempt was taken"
    late = wake(tmp_path)
    assert values(uri, "overtaken") == ROWS
    assert late not in ledgers(uri, "overtaken")
    assert late in orphans(uri)
    assert values(uri, "overtaken") == ROWS


def test_a_task_that_fails_once_it_has_staged_is_run_again_and_counts_once(
    spark_application: Application, uri: str, source: str, tmp_path: Path
) -> None:
    orphans(uri)
    assert spark_application.copy(uri, source, "failed", FAILS, tmp_path) is None
    assert len(list(tmp_path.glob("failed*"))) == TASKS
    assert values(uri, "failed") == ROWS
    deleted = orphans(uri)
    assert len(deleted) >= TASKS  # Spark may run one again for reasons of its own
    assert not deleted & ledgers(uri, "failed")
    assert values(uri, "failed") == ROWS


@pytest.mark.long("chaos-spark")
def test_a_task_that_goes_on_after_its_stage_was_aborted_adds_nothing(
    spark_application: Application, uri: str, source: str, tmp_path: Path
) -> None:
    died_of = spark_application.copy(uri, source, "lingering", LINGERS, tmp_path)
    assert died_of is not None
    assert "Told" in died_of
    (tmp_path / "later").touch()
    assert spark_application.copy(uri, source, "lingering", LINGERS, tmp_path) is None
    assert not (tmp_path / "sealed").exists()
    late = wake(tmp_path)
    assert values(uri, "lingering") == ROWS
    assert late not in ledgers(uri, "lingering")
    assert late in orphans(uri)
    assert values(uri, "lingering") == ROWS
