"""A cluster of processes for tests that are no coroutines."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlog.local.cluster import LocalCluster


@contextmanager
def running(
    directory: Path, *, zookeeper: str | None = None, tls: bool = False
) -> Iterator[LocalCluster]:
    """Run a cluster in *directory*, on the metadata store *zookeeper* or its own."""
    loop = asyncio.new_event_loop()
    cluster = LocalCluster(directory, zookeeper=zookeeper, tls=tls)
    try:
        loop.run_until_complete(cluster.__aenter__())
        try:
            yield cluster
        finally:
            loop.run_until_complete(cluster.__aexit__(None, None, None))
    finally:
        loop.close()
