"""Names for the completion of shells: of logs, out of the namespace, and of codecs."""

import asyncio
from typing import Final

import typer

from ledger.errors import LogError

LOOK_S: Final = 2.0
"""A person waits for it: better no completion than a late one."""


def complete_log(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of logs that begin with *incomplete*; none if they are not known."""

    async def look() -> list[str]:
        from dlog.aio.store.watching import listed_names
        from dlog.cli.connections import check_there, opened_store

        uri = context.params.get("uri")
        check_there(uri)
        async with asyncio.timeout(LOOK_S), opened_store(uri) as store:
            return await listed_names(store, incomplete)

    try:
        return asyncio.run(look())
    except (LogError, OSError):  # OSError: the time-out, too
        return []


def complete_codec(incomplete: str) -> list[str]:
    """Return the names of codecs that begin with *incomplete*; levels of zstd are left out."""
    from dlog.recordbatch import Codec

    names = [codec.name.lower() for codec in Codec]
    return [name for name in names if name.startswith(incomplete)]
