"""A process that waits until it leads a log, and then appends to it until it is killed.

    python -m tests.integration.leading URI LOG

It writes lines: ``stands`` when it is connected, and then, for each record that is acknowledged,
its offset and the time by the monotonic clock, which is the same for all processes of a machine.
"""

import asyncio
import sys
import time

from dlog.aio import Log
from leader import campaign
from ledger.client import ClientConfig, LedgerClient

PAUSE_S = 0.005
SESSION_S = 30.0
"""Nobody is to learn of a death by the end of its session."""


async def lead(uri: str, name: str) -> None:
    client = await LedgerClient.connect(uri, ClientConfig(session_timeout_s=SESSION_S))
    print("stands", flush=True)
    term = await campaign(client.store, name)
    log = await Log.open(name, client=client, term=term)
    while True:
        record = await log.append(b"a record")
        print(record.offset, time.monotonic(), flush=True)
        await asyncio.sleep(PAUSE_S)


if __name__ == "__main__":
    asyncio.run(lead(*sys.argv[1:]))
