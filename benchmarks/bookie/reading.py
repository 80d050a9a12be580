"""A reader that is behind, as a process of its own: reads one ledger over and over.

    python -m benchmarks.bookie.reading ADDRESS INSTANCE IDENTITY LEDGER LAST ENTRY_BYTES SECONDS

Prints how many payload bytes a second it read and verified."""

import asyncio
import sys
import time
from typing import Final

from benchmarks.bookie.bench import BOOKIE
from benchmarks.runs import KEY
from ledger.entry import verify_frame
from ledger.ids import BookieIdentity
from ledger.requests import ReadQuery, Status
from ledger.transport.sockets import SocketTransport

_QUERY_BYTES: Final = 1024 * 1024
_QUERIES_OPEN: Final = 4


class Reader:
    """Asks for the entries 0..*last* in order, several queries at a time."""

    def __init__(
        self, address: str, meant: BookieIdentity, ledger_id: int, last: int, entry_bytes: int
    ) -> None:
        self._transport = SocketTransport(
            lambda _: address, timeout_s=60.0, connect_timeout_s=60.0, meant=lambda _: meant
        )
        self._ledger_id = ledger_id
        self._last = last
        self._step = max(1, _QUERY_BYTES // entry_bytes)
        self._next = 0
        self._read_bytes = 0

    async def run(self, seconds: float) -> float:
        """Return bytes a second."""
        started = time.perf_counter()
        end = started + seconds
        await asyncio.gather(*[self._read_on(end) for _ in range(_QUERIES_OPEN)])
        took = time.perf_counter() - started
        await self._transport.close()
        return self._read_bytes / took

    async def _read_on(self, end: float) -> None:
        while time.perf_counter() < end:
            first = self._next if self._next <= self._last else 0
            last = min(self._last, first + self._step - 1)
            self._next = last + 1
            query = ReadQuery(self._ledger_id, KEY, first, last, bytes_max=2 * _QUERY_BYTES)
            answer = await self._transport.read(BOOKIE, query)
            if answer.status is not Status.OK or len(answer.entries) != last - first + 1:
                raise SystemExit(f"entries {first}..{last}: {answer.status.name}")
            for entry_id, frame in answer.each():
                header = verify_frame(frame, self._ledger_id, entry_id)
                self._read_bytes += header.payload_bytes


def main() -> None:
    address, instance, identity, *numbers = sys.argv[1:]
    meant = BookieIdentity(instance, identity)
    ledger_id, last, entry_bytes = map(int, numbers[:3])

    async def read() -> float:
        return await Reader(address, meant, ledger_id, last, entry_bytes).run(float(numbers[3]))

    print(asyncio.run(read()))


if __name__ == "__main__":
    main()
