"""The leader that is ended: elected, it appends numbered records at a rate until then.

It says in JSON lines, every so often, how many candidates follow it and below which number all is
acknowledged; or why it failed. A line makes it hand over, the end of its input makes it end.

Call: python -m dlog.measuring.leader URI LOG RECORDS_PER_S RECORD_BYTES

A numbered record carries the offset it must have, so that each says whether one was lost or
doubled. Invariant: value n is at offset n. A lost record makes all that follow come too early, a
doubled one too late.
"""

import asyncio
import json
import logging
import os
import struct
import sys
from collections import deque
from collections.abc import Iterable
from typing import Final

from dlog.aio import Log
from dlog.cli.connections import connected
from dlog.config import load
from dlog.position import Record, RecordId
from leader import Term, campaign
from ledger import log_events
from ledger.errors import LogError
from ledger.metastore.uri import URI_VARIABLE

_NUMBER: Final = struct.Struct(">Q")
NUMBER_BYTES: Final = _NUMBER.size
"""A record has no less."""
PENDING_MAX: Final = 10_000
"""Appends that wait for their acknowledgement."""
_REPORT_S: Final = 0.01


def numbered(number: int, size: int) -> bytes:
    """Return a value of *size* bytes that carries *number*."""
    return _NUMBER.pack(number).ljust(size, b"\0")


class Checked:
    """Takes records in the order of their offsets, from 0 on."""

    def __init__(self) -> None:
        self.records = 0
        self.end = 0
        """After the last number that came or had to come."""
        self.lost = 0
        """Numbers that did not come."""
        self.doubled = 0
        """Records with a number that had come before."""

    def take(self, records: Iterable[Record]) -> None:
        for record in records:
            (number,) = _NUMBER.unpack_from(record.value)
            self.count(number)

    def count(self, number: int) -> None:
        """Take the record with this number."""
        self.records += 1
        if number < self.end:
            self.doubled += 1
        else:
            self.expect(number)
            self.end = number + 1

    def expect(self, end: int) -> None:
        """Count as lost what is below *end* and has not come."""
        self.lost += max(0, end - self.end)
        self.end = max(self.end, end)


def _say(**fields: object) -> None:
    sys.stdout.write(f"{json.dumps(fields)}\n")
    sys.stdout.flush()


class _Leading:
    def __init__(self, log: Log, term: Term, rate: float, size: int) -> None:
        self._log, self._term, self._rate, self._size = log, term, rate, size
        self._pending: deque[asyncio.Future[RecordId]] = deque()
        self._acked = log.last_offset + 1

    async def append(self) -> None:
        """Append for ever, each number at its time."""
        clock = asyncio.get_running_loop().time
        first = number = self._log.last_offset + 1
        began = reported = clock()
        while True:
            due = first + int((clock() - began) * self._rate)
            while number < due and len(self._pending) < PENDING_MAX:
                self._pending.append(self._log.append_async(numbered(number, self._size)))
                number += 1
            await self._take_acknowledged(wait=len(self._pending) >= PENDING_MAX)
            if clock() - reported >= _REPORT_S:
                reported = clock()
                _say(acked=self._acked, followers=self._term.followers)
            await asyncio.sleep(1 / min(self._rate, 1000))

    async def hand_over(self) -> None:
        await self._log.close()
        while self._pending:
            await self._take_acknowledged(wait=True)
        _say(acked=self._acked, followers=self._term.followers)
        await self._term.resign()

    async def _take_acknowledged(self, *, wait: bool) -> None:
        while self._pending and (wait or self._pending[0].done()):
            self._acked = (await self._pending.popleft()).offset + 1
            wait = False


async def lead(uri: str, name: str, rate: float, size: int, told: asyncio.Event) -> None:
    """Lead *name* until *told*; then hand it over."""
    async with connected(uri) as client:
        term = await campaign(
            client.store,
            name,
            candidate="measured leader",
            lease_s=load().session_timeout_s / 2,
            security=client.security,
        )
        log = await Log.open(name, term=term, create=False, client=client)
        leading = _Leading(log, term, rate, size)
        appending = asyncio.ensure_future(leading.append())
        waiting = asyncio.ensure_future(told.wait())
        await asyncio.wait({appending, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if appending.done():
            appending.result()  # raises why it ended
        appending.cancel()
        await asyncio.wait({appending})
        await leading.hand_over()


async def _main(uri: str, name: str, rate: float, size: int) -> None:
    told = asyncio.Event()
    leading = asyncio.ensure_future(lead(uri, name, rate, size, told))

    def hear() -> None:
        if os.read(sys.stdin.fileno(), 100):
            told.set()
        else:  # nobody is there any more who could tell us to end
            leading.cancel()

    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), hear)
    try:
        await leading
    except LogError as error:
        _say(failed=str(error))
    except asyncio.CancelledError:
        pass


if __name__ == "__main__":
    log_events.configure(logging.ERROR)
    asyncio.run(_main(os.environ[URI_VARIABLE], sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
