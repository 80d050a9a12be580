"""Compares what the log and what Spark's Parquet files hold with the source, record by record.

Call: python -m dlog.demo.verifier URI PARQUET_FILE...
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from dlog.aio import Log
from dlog.demo import LOG
from dlog.demo.compare import Verdict, compare
from dlog.demo.roles import Role
from dlog.demo.source import flights

_WAIT_S: Final = 10.0


async def read_log(uri: str) -> list[tuple[int | None, bytes]]:
    """Return (txid, value) of every record of the log, in order."""
    rows: list[tuple[int | None, bytes]] = []
    reader = await Log.tail(LOG, uri=uri, start="start", follow=False)
    while batch := await reader.read_batch(timeout_s=_WAIT_S):
        rows.extend((record.txid, bytes(record.value)) for record in batch)
    await reader.close()
    return rows


def read_parquet(paths: Sequence[str]) -> Iterator[tuple[int | None, bytes]]:
    """Yield (txid, value) of every row of the files, in order of the log's offsets."""
    columns = ["offset", "txid", "value"]
    table = pa.concat_tables([pq.read_table(path, columns=columns) for path in paths])
    table = table.sort_by("offset")
    yield from zip(table["txid"].to_pylist(), table["value"].to_pylist(), strict=True)


def _as_event(verdict: Verdict) -> dict[str, object]:
    return asdict(verdict)


def main() -> None:
    role = Role()
    uri, *paths = sys.argv[1:]
    rows = flights()
    in_log = compare(rows, asyncio.run(read_log(uri)))
    in_parquet = compare(rows, read_parquet(paths))
    role.say("verdict", source=len(rows), log=_as_event(in_log), parquet=_as_event(in_parquet))


if __name__ == "__main__":
    main()
