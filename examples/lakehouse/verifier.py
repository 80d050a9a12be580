"""Compares what Parquet and the log `delays` hold with the plain computation.

Call: python -m examples.lakehouse.verifier URI DIRECTORY RECORDS
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

import pyarrow.dataset as ds

from dlog.aio import Log
from dlog.demo.roles import Role
from examples.lakehouse import DELAYS
from examples.lakehouse.compare import compare
from examples.lakehouse.expected import Row, expected
from examples.lakehouse.source import departures

_WAIT_S: Final = 10.0


async def read_delays(uri: str) -> list[tuple[object, Row]]:
    """Return airport and hour, and all facts, of each record of the log, in order."""
    found: list[tuple[object, Row]] = []
    reader = await Log.tail(DELAYS, uri=uri, start="start", follow=False)
    while batch := await reader.read_batch(timeout_s=_WAIT_S):
        for record in batch:
            facts = json.loads(record.value)
            key = bytes(record.key or b"").decode()
            found.append(((key, facts["hour"]), facts))
    await reader.close()
    return found


def read_parquet(files: Path) -> Iterator[tuple[object, Row]]:
    """Yield txid and facts of each row of the Parquet files that are listed in *files*."""
    paths = [path.removeprefix("file://") for path in files.read_text("utf-8").splitlines()]
    table = ds.dataset(paths, partitioning=ds.partitioning(flavor="hive")).to_table()
    for row in table.to_pylist():
        yield row.pop("txid"), row


def main() -> None:
    role = Role()
    uri, directory, records = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    wanted = expected(departures(records))
    rows = compare(wanted.rows, read_parquet(directory / "files.txt"))
    windows = compare(wanted.windows, asyncio.run(read_delays(uri)))
    days = len({row["day"] for row in wanted.rows.values()})
    role.say("verdict", parquet=asdict(rows), delays=asdict(windows), days=days)


if __name__ == "__main__":
    main()
