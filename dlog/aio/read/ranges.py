"""Bounded reads: exactly the records of an offset range, as batches."""

from collections.abc import AsyncIterator
from typing import Final

from dlog.aio.port import Ledgers
from dlog.aio.read.chunks import ChunkReader
from dlog.aio.store.manifests import ManifestNode
from dlog.chunk import Chunk

PATIENCE_S: Final = 30.0
"""How long a bounded read waits for a record that is committed somewhere, it was said."""
KEPT_MAX: Final = 16
"""Readers that wait for the next range of their log; each has watches at the metadata store."""


async def read_range(
    ledgers: Ledgers,
    log: str,
    start: int,
    end: int,
    *,
    incarnation: str | None = None,
    patience_s: float = PATIENCE_S,
) -> AsyncIterator[Chunk]:
    """Yield the records from *start* up to, not with, *end*, all of them and in order.

    Requires that they are committed (see `dlog.aio.read.tails`). With *incarnation* a log that was
    deleted and re-created is not read. Raises `Trimmed`, `NoSuchLog`, `NotThereYet`,
    `DamagedLog`, or what reading a ledger raises; then not all were yielded."""
    if start >= end:
        return
    reader = _reader(ledgers, log, start, end, incarnation, patience_s)
    try:
        while chunks := await reader.read():
            for chunk in chunks:
                yield chunk
    finally:
        await reader.close()


class RangeReaders:
    """Reads ranges as `read_range`; who follows a log range by range finds its place kept.

    To find a place costs as many round trips as the segment's number of entries has bits. So
    the reader of a range that was read to its end is kept for the one that begins there."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._kept: dict[tuple[str, str, int], ChunkReader] = {}
        """By log, incarnation and next offset, in the order in which they were used."""

    async def read(
        self, log: str, start: int, end: int, *, incarnation: str
    ) -> AsyncIterator[list[Chunk]]:
        """Yield what `read_range` does, as it was read, and raise the same."""
        if start >= end:
            return
        reader = self._kept.pop((log, incarnation, start), None)
        if reader is not None:
            reader.go_on(end)
        else:
            reader = _reader(self._ledgers, log, start, end, incarnation, PATIENCE_S)
        was_read = False
        try:
            while chunks := await reader.read():
                yield chunks
            was_read = True
        finally:
            if was_read:
                await self._keep((log, incarnation, end), reader)
            else:
                await reader.close()

    async def close(self) -> None:
        while self._kept:
            await self._kept.pop(next(iter(self._kept))).close()

    async def _keep(self, place: tuple[str, str, int], reader: ChunkReader) -> None:
        replaced = self._kept.pop(place, None)
        self._kept[place] = reader
        if replaced is None and len(self._kept) > KEPT_MAX:
            replaced = self._kept.pop(next(iter(self._kept)))
        if replaced is not None:
            await replaced.close()


def _reader(
    ledgers: Ledgers, log: str, start: int, end: int, incarnation: str | None, patience_s: float
) -> ChunkReader:
    return ChunkReader(
        ledgers,
        ManifestNode(ledgers.store, log),
        start,
        stop=end,
        incarnation=incarnation,
        patience_s=patience_s,
    )
