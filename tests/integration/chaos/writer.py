"""A candidate: stands by, and while it leads appends records and tells which were acknowledged.

A record is ``<life>:<sequence>``: which process, and its how many-th append. Told on standard
output as JSON lines, what is appended before it is, and each answer with its time; asked on
standard input to resign, to truncate, to finish.

Call: python -m tests.integration.chaos.writer URI LIFE HOST
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Final

from dlog.aio import Log, Standby
from dlog.errors import AppendOutcomeUnknown, NotPromoted
from dlog.position import Record, RecordId
from ledger.errors import LogError

LOG: Final = "chaos"
LEASE_S: Final = 2.0
PENDING_MAX: Final = 200
PAUSE_S: Final = 0.02
EXPECTING: Final = 0.05
"""How probably an append is meant for a certain offset, mostly the one that it should get."""
RESOLVED_S: Final = 60.0
"""In which every append must be answered after leadership ended."""


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **fields}), flush=True)


def _say_refused(sequence: int, error: BaseException) -> None:
    say(
        "refused",
        sequence=sequence,
        error=type(error).__name__,
        unknown=not isinstance(error, LogError) or error.outcome_unknown,
        offset=error.offset if isinstance(error, AppendOutcomeUnknown) else None,
    )


class Candidate:
    def __init__(self, uri: str, life: str, host: str) -> None:
        self._uri, self._life, self._host = uri, life, host
        self._sequence = 0
        self._random = Random(life)
        self._finishing = asyncio.Event()
        self._resigning = False
        self._truncations: asyncio.Queue[int] = asyncio.Queue()
        self._acknowledged: list[tuple[int, int, float]] = []
        """Sequence, offset and time of answers that were not told yet."""
        self._next_offset = 0

    async def run(self) -> None:
        hearing = asyncio.create_task(self._hear())
        while not self._finishing.is_set():
            try:
                await self._stand_by()
            except LogError as error:
                say("trouble", error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.2)
        say("finished")
        hearing.cancel()

    async def _hear(self) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while line := await reader.readline():
            match line.decode().split():
                case ["resign"]:
                    self._resigning = True
                case ["truncate", before]:
                    self._truncations.put_nowait(int(before))
                case ["finish"]:
                    self._finishing.set()
                case words:
                    raise AssertionError(f"nobody says {words}")

    async def _stand_by(self) -> None:
        self._next_offset = 0
        standby = await Standby.open(
            LOG,
            self._apply,
            uri=self._uri,
            candidate=self._life,
            lease_s=LEASE_S,
            lifeline_host=self._host,
        )
        try:
            while not self._finishing.is_set() and not standby.lost.is_set():
                asked = time.monotonic()
                promoting = asyncio.create_task(standby.promote())
                finishing = asyncio.create_task(self._finishing.wait())
                await asyncio.wait({promoting, finishing}, return_when=asyncio.FIRST_COMPLETED)
                finishing.cancel()
                if not promoting.done():
                    promoting.cancel()
                    await asyncio.wait({promoting})
                    return
                await self._lead(standby, promoting.result(), asked)
        finally:
            with suppress(LogError):
                await standby.close()

    def _apply(self, batch: Sequence[Record]) -> None:
        for record in batch:
            if self._next_offset and record.offset != self._next_offset:
                say("broken", what=f"standby got {record.offset}, {self._next_offset} was next")
            self._next_offset = record.offset + 1

    async def _lead(self, standby: Standby, log: Log, asked: float) -> None:
        if self._next_offset not in (0, log.last_offset + 1):
            say("broken", what=f"leads from {self._next_offset}, the log ends at {log.last_offset}")
        self._resigning = False
        say("leading", epoch=log.epoch, last_offset=log.last_offset, asked=asked)
        pending: set[asyncio.Future[RecordId]] = set()
        truncating = asyncio.create_task(self._truncate(log))
        try:
            while standby.is_leader and not self._resigning and not self._finishing.is_set():
                room = PENDING_MAX - len(pending)
                self._append_some(log, pending, min(self._random.choice((1, 2, 10)), room))
                await asyncio.sleep(PAUSE_S)
            if standby.is_leader:
                with suppress(NotPromoted):
                    await standby.resign()
                self._next_offset = log.last_offset + 1
            else:  # by its own clock; why, it is told a moment later
                async with asyncio.timeout(RESOLVED_S):
                    await standby.lost.wait()
        except LogError as error:
            say("trouble", error=f"{type(error).__name__}: {error}")
        finally:
            truncating.cancel()
            say("led", reason=standby.lost_reason)
            if pending:
                _, late = await asyncio.wait(pending, timeout=RESOLVED_S)
                if late:
                    say("broken", what=f"{len(late)} appends were never answered")

    def _append_some(self, log: Log, pending: set[asyncio.Future[RecordId]], count: int) -> None:
        first = self._sequence
        self._sequence += count
        next_offset = log.last_offset + 1 + len(pending)
        expected = {
            sequence: next_offset + sequence - first + self._random.choice((0, 0, 0, 1))
            for sequence in range(first, first + count)
            if self._random.random() < EXPECTING
        }
        appends = [(sequence, expected.get(sequence)) for sequence in range(first, first + count)]
        say("appending", epoch=log.epoch, appends=appends)
        for sequence, offset in appends:
            self._append(log, pending, sequence, offset)

    def _append(
        self,
        log: Log,
        pending: set[asyncio.Future[RecordId]],
        sequence: int,
        expected: int | None,
    ) -> None:
        epoch = log.epoch
        try:
            future = log.append_async(f"{self._life}:{sequence}".encode(), expected_offset=expected)
        except LogError as error:
            _say_refused(sequence, error)
            return
        pending.add(future)

        def answered(done: asyncio.Future[RecordId]) -> None:
            pending.discard(done)
            error = done.exception()
            if error is not None:
                _say_refused(sequence, error)
                return
            if not self._acknowledged:
                asyncio.get_running_loop().call_soon(self._tell, epoch)
            self._acknowledged.append((sequence, done.result().offset, time.monotonic()))

        future.add_done_callback(answered)

    def _tell(self, epoch: int) -> None:
        answers, self._acknowledged = self._acknowledged, []
        say("acknowledged", epoch=epoch, answers=answers)

    async def _truncate(self, log: Log) -> None:
        while True:
            before = await self._truncations.get()
            try:
                await log.truncate(before=before)
                say("truncated", before=before)
            except LogError as error:
                say("trouble", error=f"truncate: {type(error).__name__}: {error}")


if __name__ == "__main__":
    asyncio.run(Candidate(*sys.argv[1:]).run())
