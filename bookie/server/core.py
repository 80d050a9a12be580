"""The handling of each request by a bookie, apart from threads, sockets and time.

`BookieCore` turns requests into calls of the storage and says what an answer must wait for.
It is driven; the driver (`bookie.server.service`, and the simulator) does as follows, all on one
thread:

    adds    `session()` per client stream. Per batch: where `storage.needs_disk(run)` for any of
            its runs, which it never does for a run that `storage.is_ordinary`, call
            `storage.prepare(run)` for all, where blocking is allowed; then
            `session.offer(batch, runs, prepared)`. Then let a
            thread per journal call `storage.commit(journal)` until
            `storage.has_pending(journal)` is false, and hand each result to `committed()`;
            then send `session.acks()` of every session.
    reads   `read(query)`, `read_lac(query)` and `read_held(query)` are procedures, which return
            the answer (`ledger.protocol.procedure`). Close one if its client is gone.
    wakes   after `offer`, and after any step of a procedure, `take_changed()` names ledgers
            whose `UntilChanged` actions are answered with True.

Invariants:
    no add is acknowledged before the ticket that the storage gave for it is durable (rule 59)
    the answers of a session leave in the order of its batches
    a fencing request gets no answer, not even a "no", before its fence is durable (rules 32, 33)
    no list is given before all that is in it is durable: repair relies on it (rule 86)
    a waiting reader gets no entry above the last add confirmed that is known here (rule 53)
    what is queued is bounded; recovery has a share of its own (rule 90)
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final, NamedTuple, Protocol

from bookie.server.limits import CoreLimits
from bookie.storage.add_lookup import Prepared
from ledger.entry import parse_header
from ledger.errors import BadMessage
from ledger.ids import NO_ENTRY
from ledger.protocol.procedure import Action, Steps
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)

HELD_WAIT_S: Final = 3.0
"""How long a list waits for the journals: less than who asked waits for an answer."""
_NOT_TAKEN: Final = (Status.NO_SUCH_LEDGER, Status.TOO_MANY_REQUESTS, Status.ACCESS_DENIED)
"""Nobody vouches for the ledger, or for whom it is from."""


class Storage(Protocol):
    """What the core and its driver need of `bookie.storage.engine.BookieStorage`."""

    def is_ordinary(self, run: AddRun) -> bool: ...
    def is_new(self, ledger_id: int) -> bool: ...
    def needs_load(self, ledger_id: int) -> bool: ...
    def load(self, ledger_id: int) -> None: ...
    def needs_disk(self, run: AddRun) -> bool: ...
    def prepare(self, run: AddRun) -> Prepared: ...
    def add(self, run: AddRun, prepared: Prepared = None) -> tuple[Status, int]: ...
    def fence(self, ledger_id: int, key: bytes) -> tuple[Status, int]: ...
    def set_lac(self, run: AddRun) -> Status: ...
    @property
    def journals(self) -> int: ...
    @property
    def last_ticket(self) -> int: ...
    def has_pending(self, journal: int = 0) -> bool: ...
    def commit(self, journal: int = 0) -> int: ...
    @property
    def read_only(self) -> bool: ...
    def read(self, query: ReadQuery) -> ReadAnswer: ...
    def read_recent(self, query: ReadQuery) -> ReadAnswer | None: ...
    def held(self, query: HeldQuery) -> HeldAnswer: ...
    def lac(self, ledger_id: int, key: bytes) -> LacAnswer: ...
    def checkpoint(self) -> None: ...
    def hurry(self) -> None: ...
    def delete(self, ledger_ids: Sequence[int]) -> None: ...
    def offer(self, ledger_ids: Sequence[int]) -> int: ...
    def evict(self, ledger_ids: Sequence[int], offer: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class UntilDurable(Action[bool]):
    """Answer: True once `core.durable` is at least *ticket*, or False after *wait_s*."""

    ticket: int
    wait_s: float | None = None
    """None: it waits for ever."""


@dataclass(frozen=True, slots=True)
class UntilChanged(Action[bool]):
    """Answer: True when `take_changed` names *ledger_id*; False when the query's `wait_ms` since
    its arrival are over, or the bookie stops."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class Load(Action[None]):
    """Answered after `storage.load(ledger_id)`, called where blocking is allowed."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class ReadDisk(Action[ReadAnswer]):
    """Answer: that of `storage.read(query)`, called where blocking is allowed."""

    query: ReadQuery


@dataclass(frozen=True, slots=True)
class ListDisk(Action[HeldAnswer]):
    """Answer: that of `storage.held(query)`, called where blocking is allowed."""

    query: HeldQuery


class Ack(NamedTuple):
    """Batches first..last are durable, or (statuses given) the one batch was answered so."""

    first: int
    last: int
    statuses: tuple[Status, ...] = ()


class BookieCore:
    """See the module's docstring."""

    def __init__(self, storage: Storage, limits: CoreLimits | None = None) -> None:
        self.storage = storage
        self.limits = limits or CoreLimits()
        self.durable = 0
        self._queued_bytes = {False: 0, True: 0}  # by: is it recovery
        self._charges: deque[tuple[int, int, bool]] = deque()
        self._disk_reads = self._fencing_reads = self._waiting_reads = self._held_reads = 0
        self.waiting: dict[int, int] = {}
        """How many reads wait for what is confirmed, by ledger."""
        self.changed: dict[int, None] = {}
        """Ledgers whose waiting reads must look again."""
        self.taken = 0
        """Runs that were taken."""
        self.refused = Counter[Status]()
        """Runs that were not, by their answer."""
        self.added_entries = self.added_bytes = self.recovery_entries = self.fences = 0
        """Of runs that were taken; of them, those of recovery. Ledgers that were fenced."""

    @property
    def queued_bytes(self) -> int:
        """Of frames that are accepted and not durable yet."""
        return sum(self._queued_bytes.values())

    @property
    def waiting_reads(self) -> int:
        """Reads that wait for something to be confirmed, or look at it just now."""
        return self._waiting_reads

    @property
    def disk_reads(self) -> int:
        """Reads that are at the disks, or wait for a thread that goes there."""
        return self._disk_reads

    @property
    def adds(self) -> Counter[Status]:
        """Runs, by their answer."""
        return Counter({**self.refused, Status.OK: self.taken} if self.taken else self.refused)

    def session(self) -> "AddSession":
        """Return the state of one client's stream of adds."""
        return AddSession(self)

    def committed(self, durable: int) -> None:
        """Take note that every ticket up to *durable* is on disk."""
        self.durable = max(self.durable, durable)
        while self._charges and self._charges[0][0] <= self.durable:
            _, size_bytes, recovery = self._charges.popleft()
            self._queued_bytes[recovery] -= size_bytes

    def deleted(self, ledger_ids: Iterable[int]) -> None:
        """Take note that the storage has forgotten these ledgers: who waits for them is
        woken (rule 37)."""
        for ledger_id in ledger_ids:
            self._touch(ledger_id)

    def take_changed(self) -> tuple[int, ...]:
        """Return the ledgers whose waiting reads must look again, each once."""
        changed = tuple(self.changed)
        self.changed.clear()
        return changed

    def add(self, run: AddRun, prepared: Prepared = None) -> tuple[Status, int]:
        """Hand one run to the storage; return its status and the ticket that must be durable
        before the answer. For `AddSession`, and drivers that have no batches."""
        if isinstance(prepared, Status) and prepared in _NOT_TAKEN:
            self.refused[prepared] += 1
            return prepared, 0
        recovery, size_bytes, limits = run.recovery, len(run.frames), self.limits
        queued_bytes = self._queued_bytes[recovery]
        bytes_max = limits.recovery_adds_bytes_max if recovery else limits.adds_bytes_max
        if run.explicit_lac:
            status, ticket = self.storage.set_lac(run), 0
        elif queued_bytes and queued_bytes + size_bytes > bytes_max:
            status, ticket = Status.TOO_MANY_REQUESTS, 0
        else:
            status, ticket = self.storage.add(run, prepared)
            if status is Status.OK and ticket > self.durable:
                self._queued_bytes[recovery] += size_bytes
                # A repeated add may get an earlier ticket than the run before it had.
                ticket_charged = max(ticket, self._charges[-1][0]) if self._charges else ticket
                self._charges.append((ticket_charged, size_bytes, recovery))
        if status is not Status.OK:
            self.refused[status] += 1
            return status, ticket
        count = len(run.entries)
        self.taken += 1
        self.added_entries += count
        self.added_bytes += size_bytes
        if recovery:
            self.recovery_entries += count
        if run.ledger_id in self.waiting:
            self.changed[run.ledger_id] = None
        return status, ticket

    def read(self, query: ReadQuery) -> Steps[ReadAnswer]:
        """Answer a read."""
        if query.first < 0 or query.last < query.first:
            return ReadAnswer(Status.BAD_REQUEST)
        query = replace(query, bytes_max=min(query.bytes_max, self.limits.read_bytes_max))
        if query.fence:
            refused = yield from self._fence(query.ledger_id, query.key)
            if refused is not None:
                return ReadAnswer(refused)
        if query.wait_ms > 0:
            lac = yield from self._wait_confirmed(query)
            if isinstance(lac, ReadAnswer):
                return lac
            query = replace(query, last=min(query.last, lac))
        answer = self.storage.read_recent(query)
        if answer is None:
            answer = yield from self._read_disk(query)
        return answer

    def read_lac(self, query: LacQuery) -> Steps[LacAnswer]:
        """Answer a query for the last add confirmed."""
        if query.fence:
            refused = yield from self._fence(query.ledger_id, query.key)
            if refused is not None:
                return LacAnswer(refused)
        yield from self._load(query.ledger_id)
        return self.storage.lac(query.ledger_id, query.key)

    def read_held(self, query: HeldQuery) -> Steps[HeldAnswer]:
        """Answer which entries are held durably. Counts as a read from disk.

        What is in memory alone would be lost with the process, and a repair that was told of it
        has nothing to do. If the journals do not get on, it is TOO_MANY_REQUESTS."""
        if query.first < 0 or query.last < query.first:
            return HeldAnswer(Status.BAD_REQUEST)
        ranges_max = max(1, min(query.ranges_max, self.limits.held_ranges_max))
        query = replace(query, ranges_max=ranges_max)
        full = self._held_reads >= self.limits.held_reads_max
        if full or self._disk_reads >= self.limits.disk_reads_max:
            return HeldAnswer(Status.TOO_MANY_REQUESTS)
        self._disk_reads += 1
        self._held_reads += 1
        try:
            answer = yield from ListDisk(query)
            ticket = self.storage.last_ticket
            if ticket > self.durable and not (yield from UntilDurable(ticket, HELD_WAIT_S)):
                return HeldAnswer(Status.TOO_MANY_REQUESTS)
        finally:
            self._disk_reads -= 1
            self._held_reads -= 1
        return answer

    def _fence(self, ledger_id: int, key: bytes) -> Steps[Status | None]:
        """Fence and wait until that is durable. Return None, or why it was not done."""
        if self._fencing_reads >= self.limits.fencing_reads_max:
            return Status.TOO_MANY_REQUESTS
        yield from self._load(ledger_id)
        status, ticket = self.storage.fence(ledger_id, key)
        if status is not Status.OK:
            return status
        self._touch(ledger_id)
        self.fences += 1
        self._fencing_reads += 1
        try:
            if ticket > self.durable:
                yield from UntilDurable(ticket)
        finally:
            self._fencing_reads -= 1
        assert ticket <= self.durable, "a fence was to be answered before it was durable"
        return None

    def _load(self, ledger_id: int) -> Steps[None]:
        if self.storage.needs_load(ledger_id):
            yield from Load(ledger_id)

    def _wait_confirmed(self, query: ReadQuery) -> Steps[int | ReadAnswer]:
        """Wait for a confirmed entry from *first* on. Return the LAC, or the final answer.

        A ledger never heard of may still get its first entry; one that was here and is gone
        was deleted."""
        if self._waiting_reads >= self.limits.waiting_reads_max:
            return ReadAnswer(Status.TOO_MANY_REQUESTS)
        ledger_id = query.ledger_id
        self.waiting[ledger_id] = self.waiting.get(ledger_id, 0) + 1
        self._waiting_reads += 1
        try:
            seen = False
            while True:
                yield from self._load(ledger_id)
                answer = self.storage.lac(ledger_id, query.key)
                lac = _last_add_confirmed(answer)
                if answer.status in {Status.OK, Status.UNKNOWN}:
                    if lac >= query.first:
                        return lac
                    # In limbo it learns nothing more of the ledger: others do.
                    over = answer.fenced or answer.status is Status.UNKNOWN
                    seen = True
                else:
                    over = seen or answer.status is not Status.NO_SUCH_LEDGER
                if over or not (yield from UntilChanged(ledger_id)):
                    break
        finally:
            self._waiting_reads -= 1
            self.waiting[ledger_id] -= 1
            if not self.waiting[ledger_id]:
                del self.waiting[ledger_id]
        return ReadAnswer(
            answer.status,
            considered=query.first - 1,
            lac_proof=answer.lac_proof,
            fenced=answer.fenced,
        )

    def _read_disk(self, query: ReadQuery) -> Steps[ReadAnswer]:
        # Fencing reads were counted in: those of recovery never find the share used up.
        if not query.fence and self._disk_reads >= self.limits.disk_reads_max:
            return ReadAnswer(Status.TOO_MANY_REQUESTS)
        self._disk_reads += not query.fence
        try:
            answer = yield from ReadDisk(query)
        finally:
            self._disk_reads -= not query.fence
        return answer

    def _touch(self, ledger_id: int) -> None:
        if ledger_id in self.waiting:
            self.changed[ledger_id] = None


WATCHED_BATCHES: Final = 64
"""So many batches of a client a read that waited is remembered for."""


class AddSession:
    """The batches of one client that are not answered yet, in order."""

    def __init__(self, core: BookieCore) -> None:
        self._core = core
        self._last_batch = 0
        self.watched_batches = 0
        """So many more batches count as watched: a read waits for a ledger of this client, or has
        lately, as a tail that got something asks again in a moment."""
        self.open: deque[tuple[int, int, tuple[Status, ...]]] = deque()
        """Batches that are not answered yet: number, ticket, and statuses unless all is good."""

    @property
    def ready(self) -> bool:
        """Whether `acks` has something to say."""
        return bool(self.open) and self.open[0][1] <= self._core.durable

    def offer(self, batch: int, runs: Sequence[AddRun], prepared: Sequence[Prepared] = ()) -> int:
        """Take batch number *batch*, which follows the last one; return the ticket that must be
        durable before it is answered. Raises `BadMessage`.

        *prepared* is what `storage.prepare` said of each run, if any needed it."""
        if batch != self._last_batch + 1:
            raise BadMessage("AddBatch", f"batch {batch} came after {self._last_batch}")
        self._last_batch = batch
        waiting = self._core.waiting
        if waiting and any(run.ledger_id in waiting for run in runs):
            self.watched_batches = WATCHED_BATCHES
        elif self.watched_batches:
            self.watched_batches -= 1
        ticket, statuses = 0, []
        for run, ready in zip_longest(runs, prepared):
            status, ticket_of_run = self._core.add(run, ready)
            statuses.append(status)
            ticket = max(ticket, ticket_of_run)
        is_good = statuses.count(Status.OK) == len(statuses)
        self.open.append((batch, ticket, () if is_good else tuple(statuses)))
        return ticket

    def acks(self) -> list[Ack]:
        """Return the answers that may leave now; a run of good batches is one ack."""
        acks: list[Ack] = []
        is_good = False
        while self.open and self.open[0][1] <= self._core.durable:
            batch, _, statuses = self.open.popleft()
            if is_good and not statuses:
                acks[-1] = Ack(acks[-1].first, batch)
            else:
                acks.append(Ack(batch, batch, statuses))
            is_good = not statuses
        return acks


def _last_add_confirmed(answer: LacAnswer) -> int:
    return parse_header(answer.lac_proof).last_add_confirmed if answer.lac_proof else NO_ENTRY
