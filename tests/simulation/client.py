"""A simulated client: a host that runs one production machine and executes its effects.

It stands where `ledger.machine_loop` and the drivers around it stand in production, and
decides as little: effects go out in order, what happened comes back as events, one at a time,
also when an effect is answered at once. Each client is a host of its own; a process that
restarts is a new client.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from ledger.errors import BadVersion, MetadataError, NoSuchNode
from ledger.ids import BookieId, LedgerId
from ledger.metadata import LedgerMetadata
from ledger.protocol.placement import choose_ensemble
from ledger.requests import AddRun, LacAnswer, LacQuery, ReadAnswer, ReadQuery, Status
from tests.simulation.host import Host
from tests.simulation.network import Stream
from tests.simulation.scheduler import Timer

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

Event = TypeVar("Event")
Effect = TypeVar("Effect")
EventIn_contra = TypeVar("EventIn_contra", contravariant=True)
EffectOut_co = TypeVar("EffectOut_co", covariant=True)

ADD_TIMEOUT_S: Final = 1.0
READ_TIMEOUT_S: Final = 1.0
QUARANTINE_S: Final = 30.0


class Machine(Protocol[EventIn_contra, EffectOut_co]):
    def step(self, event: EventIn_contra, *, now: float) -> Sequence[EffectOut_co]: ...

    def deadline(self) -> float | None: ...


class Client(Generic[Event, Effect]):
    """Feeds events to a machine and calls `execute` for each effect."""

    def __init__(self, cluster: "Cluster", name: str, ledger_id: LedgerId) -> None:
        self.cluster = cluster
        self.name = name
        self.ledger_id = ledger_id
        self.host = Host(cluster.scheduler, name)
        self.done = False
        """True iff this client wants nothing more: finished or failed."""
        self._streams: dict[BookieId, Stream[Status]] = {}
        self._quarantined: dict[BookieId, float] = {}
        self._inbox: deque[Event] = deque()
        self._stepping = False
        self._alarm: Timer | None = None
        self._machine: Machine[Event, Effect] | None = None
        self._time_passed: Event | None = None

    def run(self, machine: Machine[Event, Effect], time_passed: Event) -> None:
        """Use *machine* from now on; *time_passed* is its event for a reached deadline."""
        self._machine, self._time_passed = machine, time_passed

    def feed(self, event: Event) -> None:
        """Give *event* to the machine, behind those before it; execute what it says."""
        self._inbox.append(event)
        if self._stepping or self._machine is None:
            return
        self._stepping = True
        while self._inbox:
            for effect in self._machine.step(self._inbox.popleft(), now=self.host.clock()):
                self.execute(effect)
        self._stepping = False
        self._arm()

    def execute(self, effect: Effect) -> None:
        raise NotImplementedError

    def note(self, what: str) -> None:
        self.cluster.scheduler.note(self.name, what)

    def mark(self, thing: str) -> None:
        self.cluster.scheduler.mark(thing)

    def _arm(self) -> None:
        """Call again when the machine's deadline is reached by this host's own clock."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        deadline = None if self.done or self._machine is None else self._machine.deadline()
        if deadline is not None:
            self._alarm = self.host.at_clock(deadline, self._ring)

    def _ring(self) -> None:
        assert self._time_passed is not None
        self.feed(self._time_passed)

    # Bookies.

    def add(self, bookie: BookieId, run: AddRun, on_done: Callable[[Status], None]) -> None:
        """Send *run* in order with the others to *bookie*."""
        stream = self._streams.get(bookie)
        target = self.cluster.bookies[bookie]
        if stream is None:
            stream = Stream(self.cluster.network, self.host, target.host, timeout_s=ADD_TIMEOUT_S)
            self._streams[bookie] = stream
        run = replace(run, frames=self.cluster.network.carry(run.frames))
        stream.request(
            partial(target.add, run),
            lambda status: on_done(Status.UNREACHABLE if status is None else status),
        )

    def read(
        self, bookie: BookieId, query: ReadQuery, on_done: Callable[[ReadAnswer], None]
    ) -> None:
        target = self.cluster.bookies[bookie]
        self.cluster.network.request(
            self.host,
            target.host,
            partial(target.read, query),
            lambda answer: on_done(self._heard(answer)),
            timeout_s=READ_TIMEOUT_S + query.wait_ms / 1000,
        )

    def _heard(self, answer: ReadAnswer | None) -> ReadAnswer:
        if answer is None:
            return ReadAnswer(Status.UNREACHABLE)
        return replace(answer, frames=self.cluster.network.carry(answer.frames))

    def busy_streams(self) -> list[Stream[Status]]:
        """Return the connections on which adds wait for an answer."""
        return [] if self.done else [s for s in self._streams.values() if s.is_busy]

    def bytes_max(self) -> int:
        """Draw how much one answer may hold, so that many answers are only in part."""
        return self.cluster.scheduler.random.choice((1, 400, 4096, 1 << 20))

    def read_lac(
        self, bookie: BookieId, query: LacQuery, on_done: Callable[[LacAnswer], None]
    ) -> None:
        target = self.cluster.bookies[bookie]
        self.cluster.network.request(
            self.host,
            target.host,
            partial(target.read_lac, query),
            lambda answer: on_done(answer or LacAnswer(Status.UNREACHABLE)),
            timeout_s=READ_TIMEOUT_S,
        )

    def replacements(
        self, indexes: Sequence[int], exclude: Sequence[BookieId]
    ) -> tuple[tuple[int, BookieId], ...]:
        """Pick a bookie that is registered for each index, or none at all."""
        now = self.host.clock()
        self._quarantined = {b: until for b, until in self._quarantined.items() if until > now}
        chosen = choose_ensemble(
            len(indexes),
            self.cluster.metadata.available(),
            self.cluster.scheduler.random,
            exclude=exclude,
            avoid=self._quarantined,
        )
        if chosen is None:
            self.mark("no_replacement")
        return tuple(zip(indexes, chosen or (), strict=bool(chosen)))

    def quarantine(self, bookie: BookieId) -> None:
        """Prefer other bookies for a while."""
        self._quarantined[bookie] = self.host.clock() + QUARANTINE_S

    # Metadata of the ledger.

    def write_metadata(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        written: Callable[[int], None],
        read: Callable[[LedgerMetadata | None, int], None],
        failed: Callable[[], None],
    ) -> None:
        """CAS; on a conflict read and report that, as the driver does."""

        def done(outcome: int | MetadataError) -> None:
            if isinstance(outcome, int):
                self.note(f"wrote {describe(metadata)} as version {outcome}")
                written(outcome)
            elif isinstance(outcome, BadVersion):
                self.note("lost a metadata write to somebody else")
                self.mark("metadata_conflict")
                self.read_metadata(read=read, failed=failed)
            elif isinstance(outcome, NoSuchNode):
                read(None, -1)
            else:
                self.note("does not know whether its metadata write happened")
                self.mark("metadata_write_unknown")
                failed()

        self.cluster.metadata.set_ledger(self.host, self.ledger_id, metadata, version, done)

    def read_metadata(
        self,
        *,
        read: Callable[[LedgerMetadata | None, int], None],
        failed: Callable[[], None],
    ) -> None:
        def done(outcome: tuple[LedgerMetadata, int] | MetadataError) -> None:
            if isinstance(outcome, tuple):
                read(*outcome)
            elif isinstance(outcome, NoSuchNode):
                read(None, -1)
            else:
                failed()

        self.cluster.metadata.get_ledger(self.host, self.ledger_id, done)


def describe(metadata: LedgerMetadata) -> str:
    """Return *metadata* in a few words, for the trace."""
    fragments = " ".join(f"{f.first_entry}:{'+'.join(f.bookies)}" for f in metadata.fragments)
    end = "" if metadata.last_entry is None else f" at {metadata.last_entry}"
    return f"{metadata.state.name}{end} [{fragments}]"
