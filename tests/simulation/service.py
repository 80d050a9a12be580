"""Request handling of a simulated bookie, driven one step at a time.

`bookie.server.core` is driven as `bookie.server.service` does it: a commit of the journal is a step
of its own, some time after what caused it, and a crash may come between any two.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from bookie.journal.format import JournalMark
from bookie.server.core import (
    AddSession,
    BookieCore,
    ListDisk,
    Load,
    ReadDisk,
    UntilChanged,
    UntilDurable,
)
from bookie.storage.engine import BookieStorage
from ledger.errors import StorageError
from ledger.protocol import procedure
from ledger.protocol.procedure import Steps
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
from tests.simulation.kernel.host import Host
from tests.simulation.kernel.scheduler import Action

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

Answer = TypeVar("Answer", ReadAnswer, LacAnswer, HeldAnswer)

DISK_READ_S: Final = (0.0001, 0.002)
NO_SPACE_RETRY_S: Final = 0.2


class SimService:
    """Of one life of a bookie."""

    def __init__(self, cluster: "Cluster", host: Host, storage: BookieStorage) -> None:
        self.host = host
        self.storage = storage
        self.synced = JournalMark(0, 0)
        """Up to here a later record of the journal says that it was synced."""
        self._cluster = cluster
        self._core = BookieCore(storage)
        self._sessions: dict[int, _Session] = {}
        self._committing = self._retrying = False
        self._until_durable: deque[tuple[int, Action]] = deque()
        self._until_changed: dict[int, list[Action]] = {}

    # Requests, as they arrive.

    def add(self, run: AddRun, connection: int, answer: Callable[[Status], None]) -> None:
        """Take *run* as the next batch of *connection*."""
        session = self._sessions.get(connection)
        if session is None:
            session = self._sessions[connection] = _Session(self._core.session())
        session.batches += 1
        session.replies.append(answer)
        session.state.offer(session.batches, (run,))
        self.after_work()

    def read(self, query: ReadQuery, answer: Callable[[ReadAnswer], None]) -> None:
        failed = ReadAnswer(Status.IO_ERROR)
        _Request(self, self._core.read(query), answer, failed, query.wait_ms / 1000).resume(None)

    def read_lac(self, query: LacQuery, answer: Callable[[LacAnswer], None]) -> None:
        failed = LacAnswer(Status.IO_ERROR)
        _Request(self, self._core.read_lac(query), answer, failed, 0.0).resume(None)

    def read_held(self, query: HeldQuery, answer: Callable[[HeldAnswer], None]) -> None:
        failed = HeldAnswer(Status.IO_ERROR)
        _Request(self, self._core.read_held(query), answer, failed, 0.0).resume(None)

    def deleted(self, ledger_ids: Sequence[int]) -> None:
        """Take note that the storage has forgotten these ledgers."""
        self._core.deleted(ledger_ids)
        self.after_work()

    # Work between requests.

    def until_durable(self, ticket: int, resume: Action) -> None:
        if ticket <= self._core.durable:
            resume()
        else:
            self._until_durable.append((ticket, resume))

    def until_changed(self, ledger_id: int, resume: Action) -> None:
        self._until_changed.setdefault(ledger_id, []).append(resume)

    def from_disk(self, read: Action) -> None:
        self._later(DISK_READ_S, read)

    def after_work(self) -> None:
        """Do what a request or a step of one has made possible."""
        self.storage.check_ordinary()
        if self.storage.has_pending() and not self._committing:
            self._committing = True
            self._later(self._cluster.fsync_s, self._commit)
        elif self.storage.troubles and not self._retrying:
            self._retrying = True
            self.host.after(NO_SPACE_RETRY_S, self._retry)
        for session in self._sessions.values():
            session.answer()
        for ledger_id in self._core.take_changed():
            for resume in self._until_changed.pop(ledger_id, ()):
                self.host.after(0.0, resume)

    def _retry(self) -> None:
        """See whether there is space again, also with nothing to write, as
        `bookie.server.service`."""
        self._retrying = False
        if self.storage.troubles and not self._committing:
            self._commit()

    def _commit(self) -> None:
        self._committing = False
        before = self.storage._journals.positions()[0]
        self._core.committed(self.storage.commit())
        if self.storage._journals.positions()[0] != before:  # else it only looked for space
            self.synced = before
        self._cluster.scheduler.mark("journal_committed")
        durable = self._core.durable
        waiting, self._until_durable = self._until_durable, deque()
        for ticket, resume in waiting:
            self.until_durable(ticket, resume)
        assert all(ticket > durable for ticket, _ in self._until_durable)
        self.after_work()

    def _later(self, range_s: tuple[float, float], action: Action) -> None:
        self.host.after(self._cluster.scheduler.random.uniform(*range_s), action)


class _Session:
    """One client's connection: what `bookie.server.service` keeps per stream of adds."""

    def __init__(self, state: AddSession) -> None:
        self.state = state
        self.batches = 0
        self.replies: deque[Callable[[Status], None]] = deque()

    def answer(self) -> None:
        for ack in self.state.acks():
            for _ in range(ack.first, ack.last + 1):
                self.replies.popleft()(ack.statuses[0] if ack.statuses else Status.OK)


class _Request(Generic[Answer]):
    """One read under way: its steps, resumed when what they wait for has happened."""

    def __init__(
        self,
        service: "SimService",
        steps: Steps[Answer],
        answer: Callable[[Answer], None],
        failed: Answer,
        wait_s: float,
    ) -> None:
        self._service = service
        self._steps: Steps[Answer] = steps
        self._answer: Callable[[Answer], None] = answer
        self._failed: Answer = failed
        self._wait_until = service.host.scheduler.now + wait_s
        self._waits = 0

    def resume(self, outcome: object) -> None:
        """Take the next step; a disk that cannot read is an error, as in
        `bookie.server.service`."""
        self._waits += 1
        try:
            need = self._steps.send(outcome)
        except StopIteration as stop:
            self._answer(stop.value)
        except (StorageError, OSError):
            self._answer(self._failed)
        else:
            self._wait_for(need)
        self._service.after_work()

    def _wait_for(self, need: procedure.Action[Any]) -> None:
        match need:
            case UntilDurable(ticket, wait_s):
                wait = self._waits
                self._service.until_durable(ticket, partial(self._wake, wait, outcome=True))
                if wait_s is not None:
                    self._service.host.after(wait_s, partial(self._wake, wait, outcome=False))
            case UntilChanged(ledger_id):
                wait = self._waits
                left_s = max(0.0, self._wait_until - self._service.host.scheduler.now)
                self._service.until_changed(ledger_id, partial(self._wake, wait, outcome=True))
                self._service.host.after(left_s, partial(self._wake, wait, outcome=False))
            case Load(ledger_id):
                self._service.from_disk(partial(self._load, ledger_id))
            case ReadDisk(query):
                self._service.from_disk(partial(self._read_disk, query))
            case ListDisk(query):
                self._service.from_disk(partial(self._list, query))
            case _:
                raise AssertionError(f"nothing here does {need}")

    def _load(self, ledger_id: int) -> None:
        try:
            self._service.storage.load(ledger_id)
        except (StorageError, OSError):
            self._answer(self._failed)
        else:
            self.resume(None)

    def _read_disk(self, query: ReadQuery) -> None:
        try:
            answer = self._service.storage.read(query)
        except (StorageError, OSError):
            answer = ReadAnswer(Status.IO_ERROR)
        self.resume(answer)

    def _list(self, query: HeldQuery) -> None:
        try:
            answer = self._service.storage.held(query)
        except (StorageError, OSError):
            answer = HeldAnswer(Status.IO_ERROR)
        self.resume(answer)

    def _wake(self, wait: int, *, outcome: bool) -> None:
        """Resume the wait number *wait*, unless it is over."""
        if wait == self._waits:
            self.resume(outcome)
