"""A storage in memory for tests of what stands above it, with a gate before each commit.

Tickets and journals are as in `bookie.journal.journals`: a ticket is durable with all before it.
"""

import threading
from collections.abc import Sequence

from bookie.storage.add_lookup import Prepared
from ledger.entry import parse_header
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    LacAnswer,
    ReadAnswer,
    ReadQuery,
    Status,
)
from tests.ledger.proofs import proof_of


class MemoryStorage:
    """Same calls as `bookie.storage.engine.BookieStorage`; nothing survives it."""

    def __init__(self, journals: int = 1) -> None:
        self.journals = journals
        self.gates = [threading.Event() for _ in range(journals)]
        """Commits of each journal wait for its gate; set from the start."""
        for gate in self.gates:
            gate.set()
        self.read_only = False
        self.full = False
        """Whether commits find no space."""
        self.commits_begun = self.commits = 0
        self.checkpoints = 0
        self.closed = False
        self.commit_error: Exception | None = None
        self.from_disk = False
        """Whether reads miss the memory."""
        self.ledgers: dict[int, dict[int, bytes]] = {}
        self.fenced: set[int] = set()
        self.cold: set[int] = set()
        """Ledgers whose headers have to be loaded before anything else is asked of them."""
        self.proofs: dict[int, tuple[int, bytes]] = {}
        self._ticket = 0
        self._pending: list[list[int]] = [[] for _ in range(journals)]
        self._lock = threading.Lock()

    @property
    def gate(self) -> threading.Event:
        """Of the one journal."""
        (gate,) = self.gates
        return gate

    def is_ordinary(self, run: AddRun) -> bool:
        return run.ledger_id in self.ledgers and run.ledger_id not in self.cold

    def is_new(self, ledger_id: int) -> bool:
        return ledger_id not in self.ledgers

    def needs_load(self, ledger_id: int) -> bool:
        return ledger_id in self.cold

    def load(self, ledger_id: int) -> None:
        self._warm(ledger_id)

    def needs_disk(self, run: AddRun) -> bool:
        return run.ledger_id in self.cold

    def _warm(self, ledger_id: int) -> None:
        assert threading.current_thread().name.startswith("bookie-read")
        self.cold.discard(ledger_id)

    def prepare(self, run: AddRun) -> Prepared:
        self._warm(run.ledger_id)
        return None

    def add(self, run: AddRun, prepared: Prepared = None) -> tuple[Status, int]:
        assert run.ledger_id not in self.cold, "the event loop would have to look at the disk"
        assert prepared is None
        if run.key == b"wrong":
            return Status.WRONG_KEY, 0
        if run.ledger_id in self.fenced and not run.recovery:
            return Status.FENCED, 0
        if self.read_only and not run.recovery:
            return Status.READ_ONLY, 0
        start = 0
        view = memoryview(run.frames)
        entries = self.ledgers.setdefault(run.ledger_id, {})
        for entry_id, length in zip(run.entries, run.lengths, strict=True):
            entries[entry_id] = bytes(view[start : start + length])
            self._learn(run.ledger_id, entries[entry_id])
            start += length
        return Status.OK, self._next_ticket(run.ledger_id)

    def fence(self, ledger_id: int, key: bytes) -> tuple[Status, int]:
        assert ledger_id not in self.cold, "the event loop would have to look at the disk"
        if key == b"wrong":
            return Status.WRONG_KEY, 0
        self.fenced.add(ledger_id)
        self.ledgers.setdefault(ledger_id, {})
        return Status.OK, self._next_ticket(ledger_id)

    def delete(self, ledger_ids: Sequence[int]) -> None:
        for ledger_id in ledger_ids:
            self.ledgers.pop(ledger_id, None)
            self.proofs.pop(ledger_id, None)

    def offer(self, ledger_ids: Sequence[int]) -> int:
        raise AssertionError("nobody evicts here")

    def evict(self, ledger_ids: Sequence[int], offer: int) -> None:
        raise AssertionError("nobody evicts here")

    def set_lac(self, run: AddRun) -> Status:
        self._learn(run.ledger_id, bytes(run.frames))
        return Status.OK

    @property
    def last_ticket(self) -> int:
        return self._ticket

    def has_pending(self, journal: int = 0) -> bool:
        return bool(self._pending[journal])

    def commit(self, journal: int = 0) -> int:
        queued = len(self._pending[journal])
        self.commits_begun += 1
        assert self.gates[journal].wait(60)
        if self.commit_error is not None:
            raise self.commit_error
        self.commits += 1
        with self._lock:
            if not self.full:
                del self._pending[journal][:queued]
            waiting = [tickets[0] for tickets in self._pending if tickets]
            return min(waiting, default=self._ticket + 1) - 1

    def read(self, query: ReadQuery) -> ReadAnswer:
        entries = self.ledgers.get(query.ledger_id)
        if entries is None:
            return ReadAnswer(Status.NO_SUCH_LEDGER)
        found = sorted(e for e in entries if query.first <= e <= query.last)
        frames = [entries[entry_id] for entry_id in found]
        return ReadAnswer(
            Status.OK,
            found,
            [len(frame) for frame in frames],
            b"".join(frames),
            considered=query.last,
            lac_proof=self._proof(query.ledger_id),
            fenced=query.ledger_id in self.fenced,
        )

    def read_recent(self, query: ReadQuery) -> ReadAnswer | None:
        return None if self.from_disk else self.read(query)

    def held(self, query: HeldQuery) -> HeldAnswer:
        """Each entry is a range of its own, in an answer of one range: the next one goes on."""
        assert threading.current_thread().name.startswith("bookie-read")
        entries = self.ledgers.get(query.ledger_id)
        if entries is None:
            return HeldAnswer(Status.NO_SUCH_LEDGER, considered=query.last, listed=query.last)
        found = sorted(e for e in entries if query.first <= e <= query.last)[:1]
        listed = found[0] if found else query.last
        return HeldAnswer(Status.OK, found, found, considered=listed, listed=listed)

    def lac(self, ledger_id: int, key: bytes) -> LacAnswer:
        if key == b"wrong":
            return LacAnswer(Status.WRONG_KEY)
        entries = self.ledgers.get(ledger_id)
        if entries is None:
            return LacAnswer(Status.NO_SUCH_LEDGER)
        return LacAnswer(
            Status.OK,
            lac_proof=self._proof(ledger_id),
            fenced=ledger_id in self.fenced,
            last_entry=max(entries, default=-1),
        )

    def checkpoint(self) -> None:
        self.checkpoints += 1

    def hurry(self) -> None:
        """There is nothing that could be left for later."""

    def close(self) -> None:
        self.closed = True

    def begin_again(self) -> None:
        """Serve another life of the bookie: what is here is what was durable."""
        self._ticket = 0
        self._pending = [[] for _ in range(self.journals)]

    def _learn(self, ledger_id: int, frame: bytes) -> None:
        header = parse_header(frame)
        lac = header.last_add_confirmed
        if lac > self.proofs.get(ledger_id, (-1, b""))[0]:
            self.proofs[ledger_id] = (lac, proof_of(frame))

    def _proof(self, ledger_id: int) -> bytes:
        return self.proofs.get(ledger_id, (-1, b""))[1]

    def _next_ticket(self, ledger_id: int) -> int:
        with self._lock:
            self._ticket += 1
            self._pending[ledger_id % self.journals].append(self._ticket)
            return self._ticket
