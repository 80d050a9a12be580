"""Each Python worker of an executor imports for itself: it has only what its task needs."""

import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from dlog import Log
from dlog.spark.source import DlogSource

pytestmark = [pytest.mark.spark, pytest.mark.integration]

NOT_OF_A_WORKER = {
    "bookie",
    "dlog.aio.admin",
    "dlog.aio.log",
    "dlog.aio.read.consumer",
    "dlog.aio.standby",
    "dlog.cli",
    "dlog.spark.consumer_progress",
    "dlog.spark.source",
    "dlog.spark.log_ends",
    "grpc",
    "kazoo",  # of a namespace that is in ZooKeeper
    "pandas",
    "prometheus_client",
    "rich",
    "typer",
}
NOT_OF_A_READER = {
    "dlog.aio.write",
    "dlog.spark.sink",
    "dlog.spark.micro_batch",
    "pyarrow.pandas_compat",
}
READ = """
import pickle, sys
from pathlib import Path
reader, parts = pickle.loads(Path(sys.argv[1]).read_bytes())
assert sum(rows.num_rows for part in parts for rows in reader.read(part)) == 6
print(*sys.modules)
"""
WRITE = """
import pickle, sys
import pyarrow.ipc
from pathlib import Path
writer, rows = pickle.loads(Path(sys.argv[1]).read_bytes())
writer.write(iter(pyarrow.ipc.open_stream(rows)))
print(*sys.modules)
"""
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COLUMNS = {
    "value": pa.array([b"1", b"2", b"3"]),
    "key": pa.array([b"a", None, b"c"]),
    "timestamp": pa.array([1, None, 3], pa.timestamp("us", tz="UTC")),
    "txid": pa.array([1, 2, 3]),
    "headers": pa.array([[("h", b"v")], None, []], HEADERS),
    "log": pa.array(["one", "two", "one"]),
}


def test_what_a_worker_has_not_is_called_so_still() -> None:
    ours = {name for name in NOT_OF_A_WORKER | NOT_OF_A_READER if name.startswith("dlog.")}
    assert ours
    assert [name for name in sorted(ours) if find_spec(name) is None] == []


def modules_after(task: str, scratch: Path, *given: Any) -> set[str]:
    (scratch / "task").write_bytes(pickle.dumps(given))
    done = subprocess.run(
        [sys.executable, "-c", task, scratch / "task"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_a_task_that_reads_imports_what_it_needs(uri: str, tmp_path: Path) -> None:
    with Log.open("read", uri=uri) as log:
        for row in range(3):  # entries that are joined
            log.append(b"%d" % row, key=b"k", txid=row, headers={"h": b"v"})
        log.append_many([bytes(100_000)] * 3)
    source = DlogSource({"uri": uri, "path": "read", "includeheaders": "true"})
    reader = source.reader(None)
    modules = modules_after(READ, tmp_path, reader, reader.partitions())
    assert not modules & (NOT_OF_A_WORKER | NOT_OF_A_READER)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"logs": "one,two"}, tuple(COLUMNS)),
        ({"path": "staged", "inlinebytesmax": "0"}, tuple(COLUMNS)[:-1]),
    ],
    ids=["travelling", "staged"],
)
def test_a_task_that_writes_imports_what_it_needs(
    uri: str, tmp_path: Path, options: dict[str, str], names: tuple[str, ...]
) -> None:
    rows = pa.record_batch({name: COLUMNS[name] for name in names})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    source = DlogSource({"uri": uri, **options})
    writer = source.writer(from_arrow_schema(rows.schema), overwrite=False)
    try:
        modules = modules_after(WRITE, tmp_path, writer, sink.getvalue().to_pybytes())
    finally:
        writer.abort([])
    assert not modules & NOT_OF_A_WORKER
    assert ("ledger.writer" in modules) == ("path" in options), "a ledger of the task's own"
