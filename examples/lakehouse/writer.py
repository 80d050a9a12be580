"""Appends the departures at a bounded rate: the first one, and the rest on command.

Call: python -m examples.lakehouse.writer URI RECORDS RECORDS_PER_S
"""

import asyncio
import sys

from dlog.aio import Log
from dlog.demo.roles import Role, append_rest
from examples.lakehouse import FLIGHTS
from examples.lakehouse.source import departures


async def run(role: Role, uri: str, records: int, rate: float) -> None:
    rows = departures(records)
    async with Log.open(FLIGHTS, uri=uri) as log:
        await log.append(rows[0], txid=0)
        role.say("ready")
        await role.hear_async()  # once the pipeline runs
        await append_rest(role, log, rows, rate=rate)


if __name__ == "__main__":
    asyncio.run(run(Role(), sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
