"""Makes a log: its manifest, once what an earlier one of its name left is gone."""

import secrets
from contextlib import suppress

from dlog.aio.dropping import finish_drop
from dlog.aio.manifests import ManifestNode
from dlog.aio.port import Ledgers
from dlog.errors import LogExists, NoSuchLog
from dlog.manifest import Manifest
from dlog.recordbatch import check_codec
from dlog.settings import LogSettings


async def ensure_log(ledgers: Ledgers, node: ManifestNode, settings: LogSettings | None) -> None:
    """Create the log unless it exists."""
    try:
        manifest, _ = await node.read()
    except NoSuchLog:
        manifest = None
    if manifest is not None and not manifest.dropped:
        return
    with suppress(LogExists):  # another process was faster
        await create(ledgers, node, settings)


async def create(ledgers: Ledgers, node: ManifestNode, settings: LogSettings | None) -> Manifest:
    """Create the log; finish the deletion of an earlier one first. Raises `LogExists`."""
    check_codec((settings or LogSettings()).codec)
    await finish_drop(ledgers, node)
    manifest = Manifest(incarnation=secrets.token_hex(8), settings=settings or LogSettings())
    return await node.create(manifest)
