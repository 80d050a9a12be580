"""The leader that will be killed: elects itself, opens the log, and appends until then.

It appends one record, and the rest on command: when standby and Spark have got that one.

Call: python -m dlog.demo.writer URI
"""

import asyncio
import sys

from dlog.aio import Log
from dlog.demo import LOG
from dlog.demo.roles import Role, append_rest, elected
from dlog.demo.source import flights


async def run(role: Role, uri: str) -> None:
    rows = flights()
    term = await elected(uri, candidate="writer")
    log = await Log.open(LOG, uri=uri, term=term)
    role.say("leading", epoch=log.epoch)
    await log.append(rows[0], txid=0)
    await role.hear_async()  # once everybody has seen this one
    await append_rest(role, log, rows)
    await log.close()
    await term.resign()


if __name__ == "__main__":
    asyncio.run(run(Role(), sys.argv[1]))
