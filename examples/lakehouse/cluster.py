"""The cluster: three bookies and the metadata store, until stopped.

The word "kill" on the standard input kills the last bookie with SIGKILL; a while later it is back.

Call: python -m examples.lakehouse.cluster DIRECTORY
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Final

from dlog.aio.admin import create_log
from dlog.demo.roles import Role
from dlog.local.cluster import LocalCluster
from examples.lakehouse import DELAYS, FLIGHTS

_AWAY_S: Final = 5.0
_VICTIM: Final = 2


async def run(role: Role, directory: Path) -> None:
    loop = asyncio.get_running_loop()
    words = asyncio.Queue[str]()
    loop.add_signal_handler(signal.SIGTERM, words.put_nowait, "end")
    loop.add_reader(0, lambda: words.put_nowait(role.hear()))
    async with LocalCluster(directory, bookies=3) as cluster:
        for log in (FLIGHTS, DELAYS):
            await create_log(log, uri=cluster.uri)
        role.say("up", uri=cluster.uri)
        while await words.get() == "kill":
            cluster.kill_bookie(_VICTIM)
            role.say("killed", bookie=_VICTIM)
            await asyncio.sleep(_AWAY_S)
            await cluster.restart_bookie(_VICTIM)
            role.say("back", bookie=_VICTIM)


if __name__ == "__main__":
    asyncio.run(run(Role(), Path(sys.argv[1])))
