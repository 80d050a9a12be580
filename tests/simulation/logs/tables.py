"""Tables of logs in a simulated world: small files of text in place of Parquet, and what must hold.

`tables_have_each_record_once`: whatever manifest is there, its files are there too, whole, and have
each offset from its first up to its end exactly once, with the value that readers of the log saw.
A manifest follows the one before it: its number is the next one, its end is not lower, unless the
table begins again.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dlog.aio.maintain import table as driver
from dlog.chunk import Chunk
from dlog.protocol import table as protocol
from dlog.protocol.table import TABLE, Table, TableFile, parse_table

if TYPE_CHECKING:
    from tests.simulation.logs.oracle import LogHistory
    from tests.simulation.logs.world import World

FILE_ROWS: Final = 3
WRITTEN_BYTES_MAX: Final = 300
"""Small, so that tables have many commits, of several files."""
DUE_BYTES: Final = 400
DUE_MS: Final = 500
Row = tuple[int, str]


class TextFiles:
    """What `table_files.RowFiles` does, with a line for each file's rows."""

    def __init__(self, directory: Path, name: str, *, by_day: bool) -> None:
        del by_day
        self._directory, self._name = directory, name
        self._waiting: list[Row] = []
        self._files = 0
        self.bytes = 0

    def add(self, log: str, chunks: Iterable[Chunk]) -> list[tuple[TableFile, Path]]:
        del log
        done: list[tuple[TableFile, Path]] = []
        for chunk in chunks:
            for record in chunk:
                self._waiting.append((record.offset, record.value.hex()))
                self.bytes += len(record.value)
                if len(self._waiting) == FILE_ROWS:
                    done += self.end()
        return done

    def end(self) -> list[tuple[TableFile, Path]]:
        if not self._waiting:
            return []
        rows, self._waiting = self._waiting, []
        self._files += 1
        path = self._directory / f"{self._name}-{self._files}.parquet"
        path.write_text(json.dumps(rows))
        file = TableFile(
            path=path.name,
            rows=len(rows),
            bytes=path.stat().st_size,
            first=rows[0][0],
            last=rows[-1][0],
        )
        return [(file, path)]


def wrong_table(world: "World", storage: str, before: bytes | None, after: bytes) -> str | None:
    """Return what is wrong with a manifest that took the place of another one."""
    table = parse_table(after)
    if before is not None and (wrong := _wrong_step(parse_table(before), table)):
        return wrong
    return wrong_rows(world, storage, table)


def _wrong_step(before: Table, after: Table) -> str | None:
    if after.number != before.number + 1:
        return f"manifest {after.number} follows {before.number}"
    if after.files and (after.end < before.end or after.first != before.first):
        return f"{before.first}..{before.end} became {after.first}..{after.end}"
    return None


def wrong_rows(world: "World", storage: str, table: Table) -> str | None:
    """Return what is wrong with the files of *table*."""
    rows: list[Row] = []
    for file in table.files:
        data = world.objects.data.get((storage, file.path))
        if data is None or len(data) != file.bytes:
            return f"{file.path} is not as it was written"
        try:
            rows += [(offset, value) for offset, value in json.loads(data)]
        except ValueError:
            return f"{file.path} is damaged"
    offsets = [offset for offset, _ in sorted(rows)]
    if offsets != list(range(table.first, table.end)):
        return f"{table.first}..{table.end} has the offsets {offsets}"
    history = world.logs.histories.get(table.incarnation)
    for offset, value in rows:
        seen = history.records.get(offset) if history else None
        if seen is not None and seen.payload.hex() != value:
            return f"offset {offset} has another value than readers saw"
    return None


def tables_at_the_end(world: "World") -> str | None:
    """Return what is wrong with the tables of the logs when nothing is left to do."""
    for history in world.logs.current.values():
        manifest = history.manifest
        storage = manifest.storage + TABLE
        data = world.objects.marks.get(storage)
        if not manifest.settings.archive_table or manifest.dropped or data is None:
            continue
        table = parse_table(data)
        if wrong := wrong_rows(world, storage, table):
            return wrong
    return None


def is_behind(world: "World", history: "LogHistory") -> bool:
    """Whether there is a table that lacks archived records."""
    manifest = history.manifest
    data = world.objects.marks.get(manifest.storage + TABLE)
    if data is None or manifest.dropped or not manifest.settings.archive_table:
        return False
    return parse_table(data).end < protocol.archived_end(manifest)


@contextmanager
def simulated_tables() -> Iterator[None]:
    """Let production code write small files of text within the block."""
    honest = driver.row_files, driver.WRITTEN_BYTES_MAX, protocol.DUE_BYTES, protocol.DUE_MS
    driver.row_files = lambda _: TextFiles  # type: ignore[assignment,return-value]
    driver.WRITTEN_BYTES_MAX = WRITTEN_BYTES_MAX  # type: ignore[misc]
    protocol.DUE_BYTES, protocol.DUE_MS = DUE_BYTES, DUE_MS  # type: ignore[misc]
    try:
        yield
    finally:
        driver.row_files = honest[0]
        driver.WRITTEN_BYTES_MAX = honest[1]  # type: ignore[misc]
        protocol.DUE_BYTES, protocol.DUE_MS = honest[2:]  # type: ignore[misc]
