"""Job two: tails `delays`, and keeps a board of the hours as they become complete.

Call: python -m examples.lakehouse.board URI; then, on the standard input, how many records the
log has: it ends with the last of them.
"""

import asyncio
import json
import sys
from typing import Final

from dlog.aio import Log
from dlog.demo.roles import Role
from examples.lakehouse import DELAYS

_WAIT_S: Final = 0.5


async def run(role: Role, uri: str) -> None:
    end = asyncio.create_task(role.hear_async())
    hours: dict[tuple[str, str], float] = {}
    records = 0
    reader = await Log.tail(DELAYS, uri=uri, start="start")
    role.say("read", records=0)
    while not end.done() or records < int(end.result()):
        batch = await reader.read_batch(timeout_s=_WAIT_S)
        for record in batch:
            hour = json.loads(record.value)
            hours[hour["origin"], hour["hour"]] = hour["mean_delay"]
        records += len(batch)
        if batch:
            role.say("read", records=records)
    await reader.close()
    (origin, hour), delay = max(hours.items(), key=lambda item: item[1])
    role.say("tailed", records=records, hours=len(hours), worst=[origin, hour, delay])


if __name__ == "__main__":
    asyncio.run(run(Role(), sys.argv[1]))
