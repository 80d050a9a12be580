"""The add window of one session: what is queued, what is in flight, who waits for an answer.

Pure and deterministic: the session's driver does the sending and knows the time. Runs leave
in the order they came, packed into batches of whole runs; answers come in that order too.

Invariants (asserted by `AddWindow.check`):
    every run that was offered and accepted is answered exactly once, in order: the batches in
        flight are the last ones that were taken
    in flight: at most `flight_batches_max` batches; no more are taken at `flight_bytes_max`
    queued and in flight: at most `pending_bytes_max`, or a single larger run
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ledger.errors import BadMessage
from ledger.protocol.common import CHECKS
from ledger.requests import AddRun, Status

OnDone = Callable[[Status], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    batch_bytes_max: int = 512 * 1024
    """A batch is closed here; one larger run still travels, alone."""
    flight_batches_max: int = 64
    flight_bytes_max: int = 8 * 1024 * 1024
    """Enough for the bookie to write one group while the next one travels."""
    pending_bytes_max: int = 64 * 1024 * 1024
    """More is refused with TOO_MANY_REQUESTS: the bookie is slower than its writers."""


class _OpenRun(NamedTuple):
    run: AddRun
    on_done: OnDone
    size_bytes: int
    offered_at: float


class _Flight(NamedTuple):
    batch: int
    runs: list[_OpenRun]
    size_bytes: int


class AddWindow:
    """See the module's docstring. One window lives as long as its stream."""

    def __init__(self, limits: WindowLimits) -> None:
        self._limits = limits
        self._queued: deque[_OpenRun] = deque()
        self._flights: deque[_Flight] = deque()
        self._next_batch = 1
        self._flight_bytes = 0
        self._pending_bytes = 0
        self.is_empty = True
        """Whether no run is queued or in flight."""

    def begin(self, run: AddRun, on_done: OnDone, size_bytes: int, *, now: float) -> int:
        """Take *run* at once, alone in its batch; return the number of that. Requires that it is
        empty, and *size_bytes* up to those of a batch."""
        assert self.is_empty
        batch = self._next_batch
        self._next_batch = batch + 1
        self._flights.append(_Flight(batch, [_OpenRun(run, on_done, size_bytes, now)], size_bytes))
        self._flight_bytes = self._pending_bytes = size_bytes
        self.is_empty = False
        return batch

    def offer(self, run: AddRun, on_done: OnDone, size_bytes: int, *, now: float) -> bool:
        """Queue *run*, which takes *size_bytes* of a message; return False if there is no room,
        then *on_done* is not kept."""
        if self._pending_bytes and (
            self._pending_bytes + size_bytes > self._limits.pending_bytes_max
        ):
            return False
        self._queued.append(_OpenRun(run, on_done, size_bytes, now))
        self._pending_bytes += size_bytes
        self.is_empty = False
        return True

    def take(self) -> tuple[int, list[AddRun]] | None:
        """Return the next batch to send and its number, or None if there is nothing to send
        now: nothing is queued, or enough is in flight."""
        limits = self._limits
        if (
            not self._queued
            or len(self._flights) >= limits.flight_batches_max
            or self._flight_bytes >= limits.flight_bytes_max
        ):
            return None
        open_run = self._queued.popleft()
        runs, taken = [open_run.run], [open_run]
        size_bytes = open_run.size_bytes
        while self._queued and size_bytes + self._queued[0].size_bytes <= limits.batch_bytes_max:
            open_run = self._queued.popleft()
            size_bytes += open_run.size_bytes
            runs.append(open_run.run)
            taken.append(open_run)
        batch = self._next_batch
        self._next_batch = batch + 1
        self._flights.append(_Flight(batch, taken, size_bytes))
        self._flight_bytes += size_bytes
        return batch, runs

    def acked(self, first: int, last: int, statuses: list[Status]) -> list[tuple[OnDone, Status]]:
        """Return whom to call, in order, for an ack of the batches first..last.

        Raises `BadMessage` if these are not the oldest in flight, or the statuses do not fit."""
        count = last - first + 1
        if count < 1 or count > len(self._flights) or self._flights[0].batch != first:
            raise BadMessage("AddAck", f"batches {first}..{last} are not the oldest in flight")
        if statuses and (count != 1 or len(statuses) != len(self._flights[0].runs)):
            raise BadMessage("AddAck", f"{len(statuses)} statuses do not fit its batches")
        done: list[tuple[OnDone, Status]] = []
        for _ in range(count):
            flight = self._flights.popleft()
            self._flight_bytes -= flight.size_bytes
            self._pending_bytes -= flight.size_bytes
            for at, open_run in enumerate(flight.runs):
                done.append((open_run.on_done, statuses[at] if statuses else Status.OK))
        self.is_empty = not self._flights and not self._queued
        assert 0 <= self._flight_bytes <= self._pending_bytes
        if CHECKS.costly:
            self.check()
        return done

    def drain(self) -> list[OnDone]:
        """Empty the window; return everybody who still waits, in order."""
        waiting = [open_run.on_done for flight in self._flights for open_run in flight.runs]
        waiting += [open_run.on_done for open_run in self._queued]
        self._flights.clear()
        self._queued.clear()
        self._flight_bytes = self._pending_bytes = 0
        self.is_empty = True
        return waiting

    @property
    def has_queued(self) -> bool:
        """Whether runs wait to be taken."""
        return bool(self._queued)

    def oldest_at(self) -> float | None:
        """Return when the oldest open run was offered, or None if none is open."""
        if self._flights:
            return self._flights[0].runs[0].offered_at
        return self._queued[0].offered_at if self._queued else None

    def check(self) -> None:
        assert self.is_empty == (not self._flights and not self._queued)
        assert self._flight_bytes == sum(flight.size_bytes for flight in self._flights)
        assert self._flight_bytes <= self._pending_bytes
        assert len(self._flights) <= self._limits.flight_batches_max
        first = self._next_batch - len(self._flights)
        assert not self._flights or self._flights[0].batch == first
        assert not self._flights or self._flights[-1].batch == self._next_batch - 1
        assert self._pending_bytes <= self._limits.pending_bytes_max or self._open_runs() <= 1

    def _open_runs(self) -> int:
        return len(self._queued) + sum(len(flight.runs) for flight in self._flights)
