"""What roles of the demo do alike: they speak with the demo that started them, by events as JSON
lines out and words as lines in.

Whatever else writes to the standard output of a role (Spark's libraries do) goes to its
standard error, which the demo keeps in a file. Writer and standby also are elected alike, and once
they lead, append the rows that the log has not yet.
"""

import asyncio
import ctypes
import json
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NoReturn

from dlog.aio import Log
from dlog.config import load
from dlog.demo import LEASE_S, LOG, SESSION_TIMEOUT_S
from leader import campaign
from leader.term import Term
from ledger.metastore import open_store
from ledger.security.certificates import Security

_PR_SET_PDEATHSIG: Final = 1
_CHUNK_ROWS: Final = 500
_CHUNKS_IN_FLIGHT_MAX: Final = 32
_REPORT_EVERY_S: Final = 0.02


class Role:
    """This process as a role of the demo."""

    def __init__(self) -> None:
        """Take over the standard output, and die with the demo, whatever it dies of."""
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the demo ended before its role began")
        signal.signal(signal.SIGTERM, _leave)
        self._out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
        os.dup2(2, 1)

    def say(self, event: str, **fields: object) -> None:
        """Report *event*; `at` is comparable between the processes of one machine."""
        line = json.dumps({"event": event, "at": time.monotonic(), **fields})
        self._out.write(line + "\n")

    def hear(self) -> str:
        """Wait for the next word of the demo."""
        return sys.stdin.readline().strip()

    async def hear_async(self) -> str:
        """Wait for the next word of the demo, beside other work."""
        return await asyncio.to_thread(self.hear)


def _leave(_number: int, _frame: object) -> NoReturn:
    sys.exit(0)


async def elected(uri: str, *, candidate: str) -> Term:
    """Stand for election until elected."""
    tls = load().secured
    store = await open_store(uri, session_timeout_s=SESSION_TIMEOUT_S, tls=tls)
    security = Security.of(tls)
    return await campaign(store, LOG, candidate=candidate, lease_s=LEASE_S, security=security)


async def append_rest(
    role: Role, log: Log, rows: Sequence[bytes], *, rate: float = math.inf
) -> None:
    """Append the rows after the log's last txid, each with its number as txid, no more than
    *rate* a second.

    That is all it takes to lose and double nothing: what the log holds, whoever wrote it, is
    what has been done. Says `first` at the first acknowledgement, `progress` now and then, and
    `appended` at the end.
    """
    first = 0 if log.last_txid is None else log.last_txid + 1
    began = reported = time.monotonic()
    in_flight: deque[tuple[int, asyncio.Future[object]]] = deque()
    if first < len(rows):
        await log.append(rows[first], txid=first)
        role.say("first", row=first)
    for start in range(first + 1, len(rows), _CHUNK_ROWS):
        end = min(start + _CHUNK_ROWS, len(rows))
        newest = [log.append_async(rows[row], txid=row) for row in range(start, end)][-1]
        in_flight.append((end, asyncio.ensure_future(newest)))
        while in_flight and (in_flight[0][1].done() or len(in_flight) > _CHUNKS_IN_FLIGHT_MAX):
            done, acknowledged = in_flight.popleft()
            await acknowledged
            if time.monotonic() - reported > _REPORT_EVERY_S:
                reported = time.monotonic()
                role.say("progress", rows=done, appended=done - first, seconds=reported - began)
        # Even without a wait this lets the acknowledgements in.
        await asyncio.sleep(max(0.0, began + (end - first) / rate - time.monotonic()))
    await log.flush()
    seconds = time.monotonic() - began
    role.say("progress", rows=len(rows), appended=len(rows) - first, seconds=seconds)
    role.say("appended", last_offset=log.last_offset)
