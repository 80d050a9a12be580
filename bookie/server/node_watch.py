"""Keeping up with nodes of the metadata store."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from ledger.errors import MetadataError
from ledger.metastore.port import MetadataStore, Watch

REFRESH_S: Final = 30.0
RETRY_S: Final = 0.5


async def follow(
    store: MetadataStore,
    paths: Sequence[str],
    changed: Callable[[Collection[str]], Awaitable[None]],
) -> None:
    """Call *changed* with those of *paths* that changed; at first with all of them, as one may have
    changed before it was watched, and every `REFRESH_S` in any case, then with none. While the
    store is out of reach it is called again. Until cancelled."""
    watches = {path: store.watch(path) for path in paths}
    changes = {path: _changed(watch) for path, watch in watches.items()}
    due: Collection[str] = tuple(paths)
    try:
        while True:
            await _until_done(changed, due)
            await asyncio.wait(
                changes.values(), timeout=REFRESH_S, return_when=asyncio.FIRST_COMPLETED
            )
            due = [path for path, change in changes.items() if change.done()]
            for path in due:
                changes[path].result()
                changes[path] = _changed(watches[path])
    finally:
        for change in changes.values():
            change.cancel()
        for watch in watches.values():
            watch.close()


async def _until_done(
    changed: Callable[[Collection[str]], Awaitable[None]], due: Collection[str]
) -> None:
    while True:
        try:
            await changed(due)
        except MetadataError:
            await asyncio.sleep(RETRY_S)
        else:
            return


def _changed(watch: Watch) -> "asyncio.Future[None]":
    return asyncio.ensure_future(watch.changed())
