"""Carries out `protocol.table`: writes archived records to the files of a table, and verifies them.

Rows come from the log as every reader gets them. Files are made in a temporary directory, uploaded,
and read back whole. A step of its own after archiving: what fails here holds up nothing there.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, cast

from google_crc32c import extend

from dlog import metrics
from dlog.aio.port import Ledgers
from dlog.aio.procedures import on_ledgers
from dlog.aio.read.chunks import RangeReaders
from dlog.aio.store import ManifestNode
from dlog.archive import object_store
from dlog.archive.object_store import ObjectFolder
from dlog.chunk import Chunk
from dlog.errors import DamagedTable, InvalidSettings, TableMissing
from dlog.manifest import Manifest
from dlog.protocol import table as protocol
from dlog.protocol.table import Table, TableFile, WriteRows, table_storage
from dlog.recordbatch import Flag
from ledger.log_events import get_logger
from ledger.procedures import run
from ledger.protocol.procedure import Action

if TYPE_CHECKING:
    from dlog.archive.table_files import RowFiles

WRITTEN_BYTES_MAX: Final = 256 << 20
"""Of rows, as they are in memory, in one commit: an attempt that fails repeats no more."""
READ_BYTES: Final = 8 << 20
Paced = Callable[[int], Awaitable[None]]
_log = get_logger(__name__)


@dataclass(slots=True)
class TableReport:
    """What was added to the table of a log."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    end: int | None = None
    """Offset after its last row; None: nothing was added."""
    orphans: int = 0
    """Files of attempts that failed, or that were replaced, which were deleted."""


@dataclass(slots=True)
class TableCheck:
    """What `verify_table` found."""

    log: str
    first: int
    end: int
    files: int
    rows: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return not self.problems


async def extend_table(
    ledgers: Ledgers,
    node: ManifestNode,
    *,
    incarnation: str,
    now_ms: Callable[[], int],
    at_once: bool = False,
    orphans: bool = True,
    paced: Paced | None = None,
) -> TableReport:
    """Add what is archived to the table of the log, if it has one, commit after commit. *at_once*:
    however little there is. *orphans*: delete files of earlier attempts, too.

    Raises as `protocol.table.extend_table`, and `TableMissing`."""
    report = TableReport()
    perform = _Writer(ledgers, node, paced).perform
    while True:
        steps = protocol.extend_table(
            node.steps,
            incarnation=incarnation,
            token=_token(),
            now_ms=now_ms(),
            at_once=at_once or report.rows > 0,
        )
        added = await run(steps, perform)
        if added is None:
            break
        report.rows += added.rows
        report.files += added.files
        report.bytes += added.bytes
        report.end = added.end
        metrics.TABLE_ROWS.add(by=added.rows)
        _log.info("table_extended", log=node.log, rows=added.rows, end=added.end)
    if orphans:
        collect = protocol.collect_table(node.steps, incarnation=incarnation, now_ms=now_ms())
        report.orphans = len(await run(collect, perform))
    return report


async def reset_table(
    ledgers: Ledgers, node: ManifestNode, *, incarnation: str, now_ms: Callable[[], int]
) -> None:
    """Let the table begin again, without rows. Raises as `protocol.table.reset_table`."""
    steps = protocol.reset_table(
        node.steps, incarnation=incarnation, token=_token(), now_ms=now_ms()
    )
    while not await run(steps, _Writer(ledgers, node).perform):
        steps = protocol.reset_table(
            node.steps, incarnation=incarnation, token=_token(), now_ms=now_ms()
        )


async def read_table(ledgers: Ledgers, node: ManifestNode) -> tuple[Manifest, Table]:
    """Return the manifests of the log and of its table, once they are sure to be of one log.

    Raises `NoSuchLog`, `NoSuchTable`, `TableDiverged`, and what the storage raises."""
    perform = on_ledgers(ledgers)
    return await run(protocol.read_table(node.steps), perform)


async def verify_table(ledgers: Ledgers, node: ManifestNode) -> TableCheck:
    """Read all files of the table, wholly, and count: each offset must be there once.

    Raises as `read_table`, and `ObjectStorageUnavailable`. Needs 16 bytes of memory a row."""
    manifest, table = await read_table(ledgers, node)
    row_files(node.log)
    from dlog.archive.table_files import OffsetCheck

    folder = object_store.open_folder(table_storage(manifest))
    check = TableCheck(node.log, table.first, table.end, len(table.files))
    offsets = OffsetCheck(table.first, table.end)
    for file in table.files:
        data = await folder.read(file.path, range(file.bytes))
        if data is None:
            check.problems.append(f"{file.path} does not exist")
            continue
        reason = await asyncio.to_thread(offsets.add, file, data)
        if reason:
            check.problems.append(f"{file.path}: {reason}")
    check.rows = offsets.rows
    check.problems += offsets.problems()
    return check


def _token() -> str:
    return secrets.token_hex(protocol.TOKEN_BYTES)


class _Writer:
    """Does the actions of a table."""

    def __init__(self, ledgers: Ledgers, node: ManifestNode, paced: Paced | None = None) -> None:
        self._ledgers, self._node, self._paced = ledgers, node, paced
        self._otherwise = on_ledgers(ledgers)

    async def perform(self, action: Action[Any]) -> object:
        if isinstance(action, WriteRows):
            return await self._write(action)
        return await self._otherwise(action)

    async def _write(self, action: WriteRows) -> tuple[tuple[TableFile, ...], int]:
        made = row_files(self._node.log)
        folder = object_store.open_folder(action.storage)
        files: list[TableFile] = []
        end = action.first
        ranges = RangeReaders(self._ledgers)
        with TemporaryDirectory(prefix="dlog-table-") as directory:
            rows = made(Path(directory), action.name, by_day=action.by_day)
            reads = cast(
                "AsyncGenerator[list[Chunk], None]",
                ranges.read(
                    self._node.log, action.first, action.end, incarnation=action.incarnation
                ),
            )
            try:
                async with aclosing(reads):
                    async for chunks in reads:
                        self._check_plain(chunks)
                        await self._upload(folder, rows.add(self._node.log, chunks), files)
                        end = chunks[-1].end
                        if rows.bytes >= WRITTEN_BYTES_MAX:
                            break
                await self._upload(folder, rows.end(), files)
            finally:
                await ranges.close()
        return tuple(files), end

    def _check_plain(self, chunks: Sequence[Chunk]) -> None:
        """Records that were encrypted stay so: a segment of before the setting was changed."""
        if any(chunk.batch.header.flags & Flag.ENCRYPTED for chunk in chunks):
            reason = (
                f"log {self._node.log!r} has encrypted records from offset {chunks[0].begin} on, "
                "which would leave it in plain text; unset it, or truncate them"
            )
            raise InvalidSettings("archive_table", "parquet", reason)

    async def _upload(
        self,
        folder: ObjectFolder,
        made: Sequence[tuple[TableFile, Path]],
        files: list[TableFile],
    ) -> None:
        for file, local in made:
            checksum = _Checksum()
            await folder.put(file.path, checksum.over(_parts_of(local, self._paced)))
            local.unlink()
            back = _Checksum()
            async for _ in back.over(_parts_in(folder, file)):
                pass
            if back != checksum or back.size != file.bytes:
                where, reason = f"the new file {file.path}", "it is not what was uploaded"
                raise DamagedTable(self._node.log, where, reason)
            files.append(file)


@dataclass(slots=True)
class _Checksum:
    size: int = 0
    crc: int = 0

    async def over(self, parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async with aclosing(parts):
            async for part in parts:
                self.size += len(part)
                self.crc = extend(self.crc, part)
                yield part


async def _parts_of(path: Path, paced: Paced | None) -> AsyncGenerator[bytes, None]:
    with path.open("rb") as file:
        while part := file.read(READ_BYTES):
            if paced is not None:
                await paced(len(part))
            yield part
            await asyncio.sleep(0)


async def _parts_in(folder: ObjectFolder, file: TableFile) -> AsyncGenerator[bytes, None]:
    """Yield what is stored, up to a part that is missing."""
    for begin in range(0, file.bytes, READ_BYTES):
        part = await folder.read(file.path, range(begin, min(file.bytes, begin + READ_BYTES)))
        if not part:
            return
        yield part


def row_files(log: str) -> "type[RowFiles]":
    """Return what makes files. Raises `TableMissing` if the library is not installed."""
    try:
        from dlog.archive.table_files import RowFiles
    except ImportError:
        raise TableMissing(log) from None
    return RowFiles
