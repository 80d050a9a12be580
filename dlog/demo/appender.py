"""What writer and standby do alike once they lead: append the rows that the log has not yet."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from dlog.aio import Log
from dlog.demo.roles import Role

_CHUNK_ROWS: Final = 500
_CHUNKS_IN_FLIGHT_MAX: Final = 32
_REPORT_EVERY_S: Final = 0.02


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
