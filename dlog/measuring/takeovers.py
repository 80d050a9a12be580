"""Ends leaders, one a round, and times how soon a warm standby has appended its first record.

The standby is this process, the leader one that is made for its round. The time runs from the
kill, or from the word to resign, to the acknowledgement of the standby's first append.

Invariants:
    the leader's process is ended when its round is, however that ends
    what the leader knew to be acknowledged is looked for in the standby's state after each round,
    and in the log itself after the last one
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Self

from dlog import metrics
from dlog.aio import Log, Standby
from dlog.measuring import How
from dlog.measuring.leader import Checked, numbered
from ledger.client import LedgerClient
from ledger.errors import RemoteError
from ledger.metastore.uri import URI_VARIABLE

ROUND_S_MAX: Final = 120.0
LOAD_S: Final = 1.0
"""A leader appends this long before it is ended."""
_POLL_S: Final = 0.01


class NotMeasured(RemoteError):
    def __init__(self, round_number: int, reason: str) -> None:
        super().__init__(
            f"round {round_number} could not be measured: {reason}. "
            "See what 'dlog status' says, and measure again."
        )
        self.round_number, self.reason = round_number, reason


@dataclass(frozen=True, slots=True)
class Load:
    """What a leader appends."""

    rate: float
    """Records a second."""
    record_bytes: int


@dataclass(frozen=True, slots=True)
class TimedTakeover:
    """One round."""

    took_s: float
    parts_s: Mapping[str, float]
    """What that is made of, in order."""


@dataclass(slots=True)
class Measured:
    takeovers: list[TimedTakeover] = field(default_factory=list)
    records: int = 0
    """Of all rounds."""
    lost: int = 0
    """Acknowledged records that are not there."""
    doubled: int = 0


async def measure(
    client: LedgerClient,
    uri: str,
    name: str,
    *,
    rounds: int,
    how: How,
    load: Load,
    lease_s: float,
    report: Callable[[int, TimedTakeover], None],
) -> Measured:
    """Measure on the log *name*, which is empty; call *report* after each round.

    Raises `NotMeasured`, and what following and opening a log raise."""
    state, measured = Checked(), Measured()
    standby = await Standby.open(
        name, state.take, create=False, lease_s=lease_s, candidate="measured standby", client=client
    )
    async with standby:
        for number in range(1, rounds + 1):
            try:
                async with asyncio.timeout(ROUND_S_MAX):
                    found = await _round(standby, state, uri, how, load, number)
            except TimeoutError:
                raise NotMeasured(number, f"it took more than {ROUND_S_MAX:g} s") from None
            measured.takeovers.append(found)
            report(number, found)
    stored = Checked()
    reader = await Log.tail(name, start="start", follow=False, client=client)
    async with reader:
        while batch := await reader.read_batch():
            stored.take(batch)
    stored.expect(state.end)
    measured.records = stored.records
    measured.lost = max(stored.lost, state.lost)
    measured.doubled = max(stored.doubled, state.doubled)
    return measured


async def _round(
    standby: Standby, state: Checked, uri: str, how: How, load: Load, number: int
) -> TimedTakeover:
    async with _Leader.started(standby.name, uri, load, number) as leader:
        await leader.appends(state.end)
        promoting = asyncio.create_task(standby.promote())
        try:
            await leader.is_followed(by=promoting)
            await leader.appends(leader.acked + int(load.rate * LOAD_S))
            before = _Parts.now()
            began = time.perf_counter()
            leader.end(how)
            log = await promoting
            promoted = time.perf_counter()
            own = log.last_offset + 1
            await log.append(numbered(own, load.record_bytes))
            ended = time.perf_counter()
        finally:
            promoting.cancel()
            await asyncio.gather(promoting, return_exceptions=True)
        state.expect(await leader.last_acked())
    state.count(own)
    parts = _Parts.now().since(before)
    parts = {"until_elected": promoted - began - sum(parts.values()), **parts}
    await standby.resign()
    return TimedTakeover(ended - began, {**parts, "first_append": ended - promoted})


@dataclass(frozen=True, slots=True)
class _Parts:
    """What this process has counted of its takeovers."""

    steps: Mapping[str, float]
    opening_s: float
    promotion_s: float

    @classmethod
    def now(cls) -> Self:
        steps = {part: spent_s for (part,), spent_s in metrics.TAKEOVER_PART_S.values.items()}
        return cls(steps, metrics.TAKEOVER_S.total, metrics.PROMOTION_S.total)

    def since(self, before: Self) -> dict[str, float]:
        """Return the parts of the one promotion in between, from the election on, in order."""
        parts = {part: spent - before.steps.get(part, 0.0) for part, spent in self.steps.items()}
        opening_s = self.opening_s - before.opening_s
        return {
            **parts,
            "rest_of_takeover": opening_s - sum(parts.values()),
            "apply_rest": self.promotion_s - before.promotion_s - opening_s,
        }


class _Leader:
    """The process that leads in one round."""

    def __init__(self, process: asyncio.subprocess.Process, number: int) -> None:
        self.acked = 0
        """Everything below is acknowledged, as far as it has said."""
        self._process, self._round = process, number
        self._followers = 0
        self._failed = ""
        self._hearing = asyncio.create_task(self._hear(), name="hearing a leader")

    @classmethod
    @asynccontextmanager
    async def started(cls, log: str, uri: str, load: Load, number: int) -> AsyncIterator[Self]:
        process = await asyncio.create_subprocess_exec(
            # -P: what lies in the working directory must not be taken for our packages.
            *(sys.executable, "-P", "-m", "dlog.measuring.leader", log),
            *(str(load.rate), str(load.record_bytes)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is ours to handle
            env={**os.environ, URI_VARIABLE: uri},  # it may have a password
        )
        leader = cls(process, number)
        try:
            yield leader
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            leader._hearing.cancel()
            await asyncio.wait({leader._hearing})

    async def appends(self, end: int) -> None:
        """Wait until everything below *end*, and something, is acknowledged."""
        await self._until(lambda: self.acked >= max(end, 1))

    async def is_followed(self, *, by: asyncio.Task[Log]) -> None:
        """Wait until a standby would learn at once if the process died, or *by* has ended."""
        await self._until(lambda: self._followers > 0 or by.done())
        if by.done():
            by.result()  # raises what ended it

    def end(self, how: How) -> None:
        """Begin to end it: this is when the time begins."""
        if how is How.KILL:
            self._process.kill()
        else:
            assert self._process.stdin is not None
            self._process.stdin.write(b"resign\n")

    async def last_acked(self) -> int:
        """Return `acked` once the process has ended and all that it said was heard."""
        await asyncio.wait({self._hearing})
        self._check()
        return self.acked

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._check()
            if self._hearing.done():
                raise NotMeasured(self._round, "the leader's process ended by itself")
            await asyncio.sleep(_POLL_S)

    def _check(self) -> None:
        if self._failed:
            raise NotMeasured(self._round, f"its leader failed: {self._failed}")

    async def _hear(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if not line.endswith(b"\n"):
                return  # it was killed in the middle of a word
            said = json.loads(line)
            self._failed = said.get("failed", "")
            self.acked = said.get("acked", self.acked)
            self._followers = said.get("followers", self._followers)
