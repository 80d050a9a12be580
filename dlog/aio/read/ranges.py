"""Bounded reads: exactly the records of an offset range, as batches."""

from collections.abc import AsyncIterator
from typing import Final

from dlog.aio.port import Ledgers
from dlog.aio.read.chunks import Chunk, ChunkReader
from dlog.aio.store.manifests import ManifestNode

PATIENCE_S: Final = 30.0
"""How long a bounded read waits for a record that is committed somewhere, it was said."""


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
    reader = ChunkReader(
        ledgers,
        ManifestNode(ledgers.store, log),
        start,
        stop=end,
        incarnation=incarnation,
        patience_s=patience_s,
    )
    try:
        while chunks := await reader.read():
            for chunk in chunks:
                yield chunk
    finally:
        await reader.close()
