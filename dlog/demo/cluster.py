"""The cluster of the demo: three bookies and the metadata store, until stopped.

Call: python -m dlog.demo.cluster DIRECTORY [--zookeeper]
"""

import asyncio
import signal
import sys
from pathlib import Path

from dlog.demo import LOG
from dlog.demo.roles import Role
from dlog.local.cluster import MANAGED, LocalCluster
from dlog.namespace import create_log


async def run(role: Role, directory: Path, *, zookeeper: bool) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    store = MANAGED if zookeeper else None
    async with LocalCluster(directory, bookies=3, zookeeper=store) as cluster:
        await create_log(LOG, uri=cluster.uri)
        role.say("up", uri=cluster.uri, bookies=[bookie.address for bookie in cluster.bookies()])
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(run(Role(), Path(sys.argv[1]), zookeeper="--zookeeper" in sys.argv[2:]))
