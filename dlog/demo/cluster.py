"""The cluster of the demo: three bookies and the metadata store, until stopped.

Call: python -m dlog.demo.cluster DIRECTORY [--zookeeper] [--tls]
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from dlog.aio.admin import create_log
from dlog.demo import LOG
from dlog.demo.roles import Role
from dlog.demo.security_check import check_secured
from dlog.local.cluster import MANAGED, LocalCluster


async def run(role: Role, directory: Path, *, zookeeper: bool, tls: bool) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    store = MANAGED if zookeeper else None
    async with LocalCluster(directory, bookies=3, zookeeper=store, tls=tls) as cluster:
        os.environ.update(cluster.environment)
        await create_log(LOG, uri=cluster.uri)
        bookies = {each.name: (each.address, each.meant) for each in cluster.bookies()}
        role.say(
            "up",
            uri=cluster.uri,
            bookies=[address for address, _ in bookies.values()],
            environment=dict(cluster.environment),
            secured=await check_secured(bookies, cluster.client_tls) if tls else "",
        )
        await ended.wait()


if __name__ == "__main__":
    flags = sys.argv[2:]
    asyncio.run(
        run(Role(), Path(sys.argv[1]), zookeeper="--zookeeper" in flags, tls="--tls" in flags)
    )
