"""A Spark application of its own, whose writing tasks fail, sleep and linger as they are told.

`python -m tests.dlog.spark.application MASTER URI DIRECTORY` reads commands, a line of JSON each,
and answers each with one: null, or what the query died of. A command copies a log into another
one, by a query of two tasks that stage all they write.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from dlog.aio.write.sink import Staged
from dlog.local.zookeeper import dying_with_parent
from dlog.spark.sink import writers
from dlog.spark.sink.rows import StagedLedger
from dlog.spark.sink.writers import SinkMessage, StreamWriter
from dlog.spark.source import DlogSource
from tests.dlog.spark.sessions import ROOT, environment, session
from tests.waiting import wait_until

SLEEPS: Final = "sleeps"
"""The first attempt of task 0 sleeps before it seals, so Spark runs a second one beside it."""
FAILS: Final = "fails"
"""The first attempt of each task fails once it has sealed what it staged."""
LINGERS: Final = "lingers"
"""Task 0 sleeps before it seals, while task 1 fails until Spark gives up; a query that is started
later has no trouble."""
HELD: Final = "held"
"""No task seals as long as there is a file `hold`; each says `held` with its process."""
TASKS: Final = 2
PATIENCE_S: Final = 400.0
_SETTINGS: Final = {
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    # Spark leaves the worker of a task alone that it has killed: it goes on.
    "spark.python.task.killTimeout": "600s",
}


class Told(RuntimeError):
    """A task was told to fail."""


class TroubledSource(DlogSource):
    """Format `troubled`: as `dlog`, with what the options `trouble` and `signals` say."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = dict(options)
        self._trouble, self._signals = given.pop("trouble", ""), Path(given.pop("signals", ""))
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "troubled"

    def streamWriter(self, schema: StructType, overwrite: bool) -> "TroubledWriter":
        made = super().streamWriter(schema, overwrite)
        return TroubledWriter(made, self._trouble, self._signals)


class TroubledWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    def __init__(self, made: StreamWriter, trouble: str, signals: Path) -> None:
        self._made, self._trouble, self._signals = made, trouble, signals

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        context = TaskContext.get()
        assert context is not None
        task, first = context.partitionId(), context.attemptNumber() == 0
        is_later = (self._signals / "later").exists()
        if self._trouble == LINGERS and task == 1 and not is_later:
            wait_until((self._signals / "asleep").exists, "task 0 sleeps", timeout_s=PATIENCE_S)
            raise Told
        sleeps = task == 0 and first and self._trouble in {SLEEPS, LINGERS} and not is_later
        ledger = self._sleeping if sleeps else StagedLedger
        if self._trouble == HELD:
            ledger = self._held
        with patch.object(writers, "StagedLedger", ledger):
            message = self._made.write(iterator)
        if self._trouble == FAILS and first:
            (self._signals / f"failed{task}").touch()
            raise Told
        return message

    def commit(self, messages: list[SinkMessage | None], batchId: int) -> None:  # noqa: N803
        self._made.commit(messages, batchId)

    def abort(self, messages: list[SinkMessage | None], batchId: int) -> None:  # noqa: N803
        self._made.abort(messages, batchId)

    def _held(self, *given: Any) -> StagedLedger:
        made = StagedLedger(*given)
        seal = made.seal

        def sealed() -> Staged:
            hold = self._signals / "hold"
            if hold.exists():
                (self._signals / f"held {os.getpid()}").touch()
                wait_until(lambda: not hold.exists(), "it is let go", timeout_s=PATIENCE_S)
            return seal()

        made.seal = sealed  # type: ignore[method-assign]
        return made

    def _sleeping(self, *given: Any) -> StagedLedger:
        made = StagedLedger(*given)
        seal = made.seal

        def sealed() -> Staged:
            (self._signals / "asleep").touch()
            wait_until((self._signals / "wake").exists, "it is woken", timeout_s=PATIENCE_S)
            staged = seal()
            (self._signals / "sealed").write_text(str(staged.ledger_id))
            return staged

        made.seal = sealed  # type: ignore[method-assign]
        return made


class Application:
    """The process, for a test. Used by one thread at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def copy(
        self,
        uri: str,
        source: str,
        target: str,
        trouble: str,
        directory: Path,
        *,
        per_trigger: int = 0,
    ) -> str | None:
        """Copy what *source* has, *per_trigger* records in a batch if it is not 0; return what the
        query died of. *directory* has its checkpoint."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        command = [uri, source, target, trouble, str(directory), per_trigger]
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer: str | None = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def application(master: str, directory: Path) -> Iterator[Application]:
    command = [sys.executable, "-m", "tests.dlog.spark.application", master, str(directory)]
    with (directory / "application.log").open("wb") as said:
        process = subprocess.Popen(
            dying_with_parent(command, os.getpid()),
            cwd=ROOT,
            env={**os.environ, **environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
    with process:
        ending = threading.Timer(10 * PATIENCE_S, process.kill)  # whatever it hangs in
        ending.start()
        try:
            yield Application(process)
        finally:
            ending.cancel()
            process.kill()


def main() -> None:
    master, directory = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Spark writes there, too
    spark = session(master, Path(directory) / "scratch", _SETTINGS)
    spark.dataSource.register(TroubledSource)
    for line in sys.stdin:
        outcome = _copy(spark, *json.loads(line))
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()


def _copy(
    spark: SparkSession,
    uri: str,
    source: str,
    target: str,
    trouble: str,
    directory: str,
    per_trigger: int,
) -> str | None:
    reader = spark.readStream.format("dlog").option("uri", uri).option("minPartitions", TASKS)
    if per_trigger:
        reader = reader.option("maxRecordsPerTrigger", per_trigger)
    query = (
        reader.load(source)
        .select("value")
        .writeStream.format("troubled")
        .option("uri", uri)
        .option("inlineBytesMax", 0)
        .option("trouble", trouble)
        .option("signals", directory)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start(target)
    )
    try:
        assert query.awaitTermination(int(PATIENCE_S)), query.status
    except StreamingQueryException as error:
        return str(error)
    return None


if __name__ == "__main__":
    main()
