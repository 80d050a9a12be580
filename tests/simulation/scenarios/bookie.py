"""A bookie of the hand-held world: production request handling on production storage.

Its disk is the simulated one. The journal commits at once, unless the test holds `JOURNAL`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bookie.server.core import (
    BookieCore,
    ListDisk,
    Load,
    ReadDisk,
    UntilChanged,
    UntilDurable,
)
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
from ledger.entry import access_key, encode_frame
from ledger.errors import StorageError
from ledger.ids import BookieId
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
from tests.simulation.disk import Loss, SimDisk
from tests.simulation.scenarios.post import Action, Kind, Message

if TYPE_CHECKING:
    from tests.simulation.scenarios.world import World

Answer = TypeVar("Answer", ReadAnswer, LacAnswer)
Outcome = TypeVar("Outcome", ReadAnswer, LacAnswer, HeldAnswer)

SMALL: Final = StorageConfig(
    journal_preallocate_bytes=4096, memtable_bytes_max=1 << 20, recent_bytes_max=0
)


@dataclass(slots=True, eq=False)
class _Poll:
    """A read that waits for its ledger to change."""

    ledger_id: int
    until: float
    resume: Callable[[object], None]


class HandBookie:
    def __init__(self, world: "World", name: BookieId, config: StorageConfig) -> None:
        self.name = name
        self.disk = SimDisk(0)
        self.up = True
        self.registered = True
        """Iff clients may pick it for an ensemble."""
        self.can_fence = True
        """False: a bookie from before fencing, which answers as if nobody had asked for it."""
        self._world = world
        self._config = config
        self._life = 0
        self._entropy = Random(name).randbytes
        self._open()

    def _open(self) -> None:
        self.storage = BookieStorage.open(self.disk, self._config, entropy=self._entropy)
        self.core = BookieCore(self.storage)
        self._session = self.core.session()
        self._batches = 0
        self._replies: deque[Callable[[Status], None]] = deque()
        self._until_durable: list[tuple[int, Action]] = []
        self._polls: list[_Poll] = []
        self._committing = False

    def crash(self) -> None:
        """Lose power; what was not synced is lost."""
        self.up = False
        self._life += 1
        self.disk.crash(Loss.LOST)

    def restart(self) -> None:
        assert not self.up, f"{self.name} is up"
        self.up = True
        self._open()
        self._check_promises()

    def lose_disk(self) -> None:
        """Crash and come back with an empty disk."""
        self.crash()
        self.disk = SimDisk(0)
        self.up = True
        self._open()

    def checkpoint(self) -> None:
        self.storage.checkpoint()

    def fill(self) -> None:
        """Give it other ledgers to keep until it takes no more."""
        payload, ledger_id = bytes(1000), 1000
        status = Status.OK
        while status is Status.OK:
            ledger_id += 1
            frame = encode_frame(
                ledger_id=ledger_id, entry_id=0, last_add_confirmed=-1, length=1000, payload=payload
            )
            run = AddRun(ledger_id, access_key(b""), (0,), (len(frame),), frame)
            status, _ = self.storage.add(run)
        assert status is Status.TOO_MANY_REQUESTS

    # Requests.

    def add(self, run: AddRun, reply: Callable[[Status], None]) -> None:
        oracle = self._world.oracle
        fenced = self.name in oracle.ledger(run.ledger_id).fenced

        def answer(status: Status) -> None:
            if status is Status.OK and not run.explicit_lac:
                oracle.stored(self.name, run.ledger_id, run.entries)
                if fenced and not run.recovery:
                    oracle.ledger(run.ledger_id).broken_fences.append(
                        f"{self.name} took {list(run.entries)} though it is fenced"
                    )
            reply(status)

        self._batches += 1
        self._replies.append(answer)
        self._session.offer(self._batches, (run,))
        self._after_work()

    def read(self, query: ReadQuery, reply: Callable[[ReadAnswer], None]) -> None:
        until = self._world.now + query.wait_ms / 1000
        query = replace(query, fence=query.fence and self.can_fence)
        self._resume(self.core.read(query), None, self._answer(query, reply), until)

    def read_lac(self, query: LacQuery, reply: Callable[[LacAnswer], None]) -> None:
        query = replace(query, fence=query.fence and self.can_fence)
        self._resume(self.core.read_lac(query), None, self._answer(query, reply), 0.0)

    def read_held(self, query: HeldQuery, reply: Callable[[HeldAnswer], None]) -> None:
        self._resume(self.core.read_held(query), None, reply, 0.0)

    def _answer(
        self, query: ReadQuery | LacQuery, reply: Callable[[Answer], None]
    ) -> Callable[[Answer], None]:
        def answer(given: Answer) -> None:
            if query.fence and given.fenced:
                self._world.oracle.ledger(query.ledger_id).fenced[self.name] = None
            reply(given)

        return answer

    def _resume(
        self,
        steps: Steps[Outcome],
        outcome: object,
        answer: Callable[[Outcome], None],
        until: float,
    ) -> None:
        try:
            need = steps.send(outcome)
        except StopIteration as stop:
            answer(stop.value)
        else:
            self._wait_for(need, lambda given: self._resume(steps, given, answer, until), until)
        self._after_work()

    def _wait_for(
        self, need: procedure.Action[Any], resume: Callable[[object], None], until: float
    ) -> None:
        match need:
            case UntilDurable(ticket):
                self._until_durable.append((ticket, lambda: resume(True)))
            case UntilChanged(ledger_id):
                self._polls.append(_Poll(ledger_id, until, resume))
            case Load(ledger_id):
                self.storage.load(ledger_id)
                resume(None)
            case ReadDisk(query):
                resume(self._read_disk(query))
            case ListDisk(query):
                resume(self.storage.held(query))
            case _:
                raise AssertionError(f"nothing here does {need}")

    def _read_disk(self, query: ReadQuery) -> ReadAnswer:
        try:
            return self.storage.read(query)
        except (StorageError, OSError):
            return ReadAnswer(Status.IO_ERROR)

    def deadline(self) -> float | None:
        """Return when the first long poll is over."""
        return min((poll.until for poll in self._polls), default=None) if self.up else None

    def time_passed(self) -> None:
        over = [poll for poll in self._polls if poll.until <= self._world.now]
        self._polls = [poll for poll in self._polls if poll not in over]
        for poll in over:
            poll.resume(False)

    # Work between requests.

    def _after_work(self) -> None:
        if self.storage.has_pending() and not self._committing:
            self._committing = True
            life = self._life
            self._world.post.send(
                Message(
                    Kind.JOURNAL,
                    self.name,
                    self.name,
                    range(0),
                    False,
                    lambda: self._commit() if life == self._life else None,
                    lambda: None,
                )
            )
        for ack in self._session.acks():
            for _ in range(ack.first, ack.last + 1):
                self._replies.popleft()(ack.statuses[0] if ack.statuses else Status.OK)
        changed = self.core.take_changed()
        woken = [poll for poll in self._polls if poll.ledger_id in changed]
        self._polls = [poll for poll in self._polls if poll not in woken]
        for poll in woken:
            poll.resume(True)

    def _commit(self) -> None:
        self._committing = False
        self.core.committed(self.storage.commit())
        waiting, self._until_durable = self._until_durable, []
        for ticket, resume in waiting:
            if ticket <= self.core.durable:
                resume()
            else:
                self._until_durable.append((ticket, resume))
        self._after_work()

    # What it has.

    def entries(self, ledger_id: int, password: bytes = b"") -> list[int]:
        """Return the ids of all entries that are here."""
        answer = self.storage.read(ReadQuery(ledger_id, access_key(password), 0, 1 << 40, 1 << 30))
        return list(answer.entries)

    def frame(self, ledger_id: int, entry_id: int) -> bytes:
        query = ReadQuery(ledger_id, access_key(b""), entry_id, entry_id)
        return bytes(self.storage.read(query).frames)

    def is_fenced(self, ledger_id: int, password: bytes = b"") -> bool:
        return self.storage.lac(ledger_id, access_key(password)).fenced

    def _check_promises(self) -> None:
        """After a restart everything that was ever promised must be here."""
        for ledger_id, history in self._world.oracle.ledgers.items():
            self._world.oracle.ledger(ledger_id)
            if self.name in history.fenced and not self.is_fenced(ledger_id):
                history.broken_fences.append(f"{self.name} forgot its fence in a restart")
            held = self.entries(ledger_id)
            lost = [e for e, at in history.copies.items() if self.name in at and e not in held]
            if lost:
                history.broken_promises.append(f"{self.name} lost {lost} in a restart")
