"""The warm standby: tails the log and checks it, and takes it over once it is elected.

Tailing never disturbs the leader. The tail goes on through the takeover and over the own
appends, so that at the end this process has read the whole log as it grew.

Call: python -m dlog.demo.standby URI
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

from dlog.aio import Log
from dlog.demo import LOG
from dlog.demo.compare import compare
from dlog.demo.roles import Role, append_rest, elected
from dlog.demo.source import flights

_WAIT_S: Final = 0.5
_REPORT_EVERY_S: Final = 0.1


class WarmState:
    """What an application would keep: here, what was read, to be compared with the source."""

    def __init__(self, role: Role, rows: Sequence[bytes]) -> None:
        self._role, self._rows = role, rows
        self._read: list[tuple[int | None, bytes]] = []

    async def follow(self, uri: str) -> None:
        """Read until the last row has come."""
        reader = await Log.tail(LOG, uri=uri, start="start")
        reported = 0.0
        while not self._read or self._read[-1][0] != len(self._rows) - 1:
            batch = await reader.read_batch(timeout_s=_WAIT_S)
            self._read.extend((record.txid, bytes(record.value)) for record in batch)
            if self._read and time.monotonic() - reported > _REPORT_EVERY_S:
                reported = time.monotonic()
                self._role.say("read", records=len(self._read))
        self._role.say("read", records=len(self._read))
        await reader.close()
        exact = compare(self._rows, self._read).exact
        self._role.say("followed", records=len(self._read), exact=exact)


async def run(role: Role, uri: str) -> None:
    rows = flights()
    state = WarmState(role, rows)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(state.follow(uri))
        term = await elected(uri, candidate="standby")
        role.say("elected")
        log = await Log.open(LOG, uri=uri, term=term)
        role.say("leading", epoch=log.epoch, last_txid=log.last_txid)
        await append_rest(role, log, rows)
        await log.close()
        await term.resign()


if __name__ == "__main__":
    asyncio.run(run(Role(), sys.argv[1]))
