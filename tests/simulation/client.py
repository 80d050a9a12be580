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
from typing import TYPE_CHECKING, Final, Generic, TypeVar, assert_never

from ledger import machine_loop
from ledger.ids import BookieId, LedgerId
from ledger.machine_loop import Machine
from ledger.manager import LedgerStore
from ledger.metadata import LedgerMetadata
from ledger.protocol.common import (
    MetadataEffect,
    MetadataEvent,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    WriteMetadata,
)
from ledger.protocol.placement import Pool, Quarantine
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
from ledger.transport.handshake import Purpose
from tests.simulation.addresses import Listener, connects, meant
from tests.simulation.kernel.host import Host
from tests.simulation.kernel.network import Stream
from tests.simulation.kernel.scheduler import Action, Timer
from tests.simulation.oracle import Choice
from tests.simulation.store import SimStore, drive

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

Event = TypeVar("Event")
Effect = TypeVar("Effect")
Answer = TypeVar("Answer", ReadAnswer, LacAnswer, HeldAnswer)

ADD_TIMEOUT_S: Final = 1.0
READ_TIMEOUT_S: Final = 1.0
UNREAD: Final = ReadAnswer(Status.UNREACHABLE)


class Client(Generic[Event, Effect]):
    """Feeds events to a machine and calls `execute` for each effect."""

    def __init__(self, cluster: "Cluster", name: str, ledger_id: LedgerId) -> None:
        self.cluster = cluster
        self.name = name
        self.ledger_id = ledger_id
        self.host = Host(cluster.scheduler, name)
        self.ledgers = LedgerStore(
            SimStore(cluster.metadata, self.host), cluster.choices.layout.name
        )
        self.quarantine = Quarantine(cluster.choices.quarantine)
        self.done = False
        """True iff this client wants nothing more: finished or failed."""
        self._streams: dict[BookieId, Stream[Status]] = {}
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
        target = self.cluster.at_address(bookie, self.name)
        if stream is None or not stream.leads_to(target.host):
            before = stream
            stream = Stream(self.cluster.network, self.host, target.host, timeout_s=ADD_TIMEOUT_S)
            self._streams[bookie] = stream
            if before is not None:
                before.reset()
        run = replace(run, frames=self.cluster.network.carry(run.frames))
        who = meant(self.cluster, bookie)

        def handle(connection: int, reply: Callable[[Status], None]) -> None:
            if not target.serves or connects(self.cluster, target, Purpose.ADDS, bookie, who):
                target.add(run, connection, reply)
            else:
                reply(Status.UNREACHABLE)

        stream.request(
            handle,
            lambda status: on_done(Status.UNREACHABLE if status is None else status),
        )

    def read(
        self, bookie: BookieId, query: ReadQuery, on_done: Callable[[ReadAnswer], None]
    ) -> None:
        target = self.cluster.at_address(bookie, self.name)
        self.cluster.network.request(
            self.host,
            target.host,
            self._asked(bookie, target, partial(target.read, query), UNREAD),
            lambda answer: on_done(self._heard(answer)),
            timeout_s=READ_TIMEOUT_S + query.wait_ms / 1000,
        )

    def _asked(
        self,
        bookie: BookieId,
        target: Listener,
        handle: "Callable[[Callable[[Answer], None]], None]",
        unreachable: "Answer",
    ) -> "Callable[[Callable[[Answer], None]], None]":
        """Return what *target* does with a question to *bookie* that arrives: *handle*, if the
        handshake of both ends says so. A bookie that does not serve yet says nothing."""
        who = meant(self.cluster, bookie)

        def arrived(reply: Callable[[Answer], None]) -> None:
            if not target.serves or connects(self.cluster, target, Purpose.ASKS, bookie, who):
                handle(reply)
            else:
                reply(unreachable)

        return arrived

    def _heard(self, answer: ReadAnswer | None) -> ReadAnswer:
        if answer is None:
            return UNREAD
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
        target, unread = self.cluster.at_address(bookie, self.name), LacAnswer(Status.UNREACHABLE)
        self.cluster.network.request(
            self.host,
            target.host,
            self._asked(bookie, target, partial(target.read_lac, query), unread),
            lambda answer: on_done(answer or unread),
            timeout_s=READ_TIMEOUT_S,
        )

    def read_held(
        self, bookie: BookieId, query: HeldQuery, on_done: Callable[[HeldAnswer], None]
    ) -> None:
        target, unread = self.cluster.at_address(bookie, self.name), HeldAnswer(Status.UNREACHABLE)
        self.cluster.network.request(
            self.host,
            target.host,
            self._asked(bookie, target, partial(target.read_held, query), unread),
            lambda answer: on_done(answer or unread),
            timeout_s=READ_TIMEOUT_S,
        )

    def reported(self, bookie: BookieId, status: Status) -> None:
        """Take note of what *bookie* answered, as `ledger.environment` does."""
        self.quarantine.reported(bookie, status, now=self.host.clock())

    def pool(self) -> Pool:
        """Return what placement may choose from now."""
        return Pool(
            self.cluster.metadata.available(),
            avoid=self.quarantine.quarantined(now=self.host.clock()),
            racks=self.cluster.racks,
            away=self.cluster.metadata.away(),
        )

    def replacements(
        self, indexes: Sequence[int], exclude: Sequence[BookieId], ensemble: Sequence[BookieId]
    ) -> tuple[tuple[int, BookieId], ...]:
        """Pick a bookie that is registered for each index, as many as there are."""
        if self.cluster.on_change is not None:
            self.cluster.on_change(self.ledger_id)
        pool = self.pool()
        picked = self.cluster.choices.placement.replacements(
            self.cluster.quorum,
            ensemble,
            indexes,
            pool,
            self.cluster.scheduler.random,
            exclude=exclude,
        )
        if len(picked) < len(indexes):
            self.mark("partial_replacement" if picked else "no_replacement")
        self.placed(pool, len(indexes), tuple(b for _, b in picked), (*ensemble, *exclude))
        return picked

    def placed(
        self,
        pool: Pool,
        wanted: int,
        chosen: tuple[BookieId, ...],
        exclude: tuple[BookieId, ...],
    ) -> None:
        """Report what placement chose of *pool*."""
        choice = Choice(
            who=self.name,
            wanted=wanted,
            chosen=chosen,
            available=pool.available,
            exclude=exclude,
            avoid=tuple(pool.avoid),
        )
        if any(bookie in choice.avoid for bookie in chosen):
            self.mark("quarantined_bookie_needed")
        elif any(bookie in choice.avoid for bookie in choice.free):
            self.mark("quarantined_bookie_avoided")
        if len({pool.racks.get(bookie) for bookie in chosen}) > 1:
            self.mark("racks_mixed")
        self.cluster.oracle.placed(self.ledger_id, choice)

    # Metadata of the ledger.

    def carry_out(self, effect: MetadataEffect, on_event: Callable[[MetadataEvent], None]) -> None:
        """Do what *effect* says by the production code; give *on_event* what came of it."""
        steps = machine_loop.carry_out(effect, self.ledgers, self.ledger_id)
        drive(steps, partial(self._carried_out, effect, on_event))

    def _carried_out(
        self,
        effect: MetadataEffect,
        on_event: Callable[[MetadataEvent], None],
        event: MetadataEvent,
    ) -> None:
        if isinstance(effect, WriteMetadata):
            match event:
                case MetadataWritten(version):
                    self.note(f"wrote {describe(effect.metadata)} as version {version}")
                case MetadataRead(metadata):
                    self.note("lost a metadata write to somebody else")
                    self.mark("metadata_conflict" if metadata else "metadata_gone")
                case MetadataFailed():
                    self.note("does not know whether its metadata write happened")
                    self.mark("metadata_write_unknown")
                case _:
                    assert_never(event)
        on_event(event)

    def read_metadata(
        self,
        *,
        read: Callable[[LedgerMetadata | None, int], None],
        failed: Callable[[], None],
    ) -> None:
        def done(event: MetadataRead | MetadataFailed) -> None:
            if isinstance(event, MetadataRead):
                read(event.metadata, event.version)
            else:
                failed()

        drive(machine_loop.read_metadata(self.ledgers, self.ledger_id), done)

    def watch_metadata(self, changed: Action) -> None:
        """Call *changed* after each change of the ledger's metadata."""

        async def follow() -> None:
            watch = self.ledgers.watch(self.ledger_id)
            while True:
                await watch.changed()
                changed()

        drive(follow(), _ignore)


def _ignore(_outcome: object) -> None:
    """Nobody waits for it."""


def describe(metadata: LedgerMetadata) -> str:
    """Return *metadata* in a few words, for the trace."""
    fragments = " ".join(f"{f.first_entry}:{'+'.join(f.bookies)}" for f in metadata.fragments)
    end = "" if metadata.last_entry is None else f" at {metadata.last_entry}"
    return f"{metadata.state.name}{end} [{fragments}]"
