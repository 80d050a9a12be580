"""A client that writes a ledger through the production machine `ledger.protocol.writer`."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from ledger.entry import access_key, encode_frame, encode_lac
from ledger.errors import MetadataUnavailable
from ledger.ids import EntryId, LedgerId
from ledger.mark import written_without
from ledger.metadata import Fragment, LedgerMetadata
from ledger.protocol import common
from ledger.protocol import writer_events as protocol
from ledger.protocol.placement import degraded_ensemble
from ledger.protocol.writer import WriterPhase
from ledger.quorum import holds
from ledger.registry import AVAILABLE
from ledger.repair_marks import mark_ledger
from ledger.requests import AddRun, Status
from tests.ledger.protocol.event_writer import AddsStored, AppendRequested, Event, EventWriter
from tests.simulation.client import Client
from tests.simulation.oracle import DegradedChoice
from tests.simulation.store import drive

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

PASSWORD = b"simulated"
PENDING_MAX: Final = 64
"""Entries in flight; the workload holds back beyond this."""
NOT_CREATED: Final = LedgerId(-1)
CREATE_RETRY_S: Final = 0.1


class WritingClient(Client[Event, protocol.WriterEffect]):
    """Creates its ledger, then writes it."""

    machine: EventWriter

    def __init__(self, cluster: "Cluster", name: str) -> None:
        super().__init__(cluster, name, NOT_CREATED)
        self.failure: protocol.WriterFailure | None = None
        self.close_requested = False
        self._on_created: Callable[[WritingClient], None] = _ignore
        self._frames: dict[int, bytes] = {}

    @property
    def is_created(self) -> bool:
        """Whether this client knows that it has a ledger."""
        return self.ledger_id != NOT_CREATED

    def begin(self, on_created: "Callable[[WritingClient], None]") -> None:
        """Create the ledger, however often that takes; then call *on_created*."""
        self._on_created = on_created
        self._create()

    def _create(self) -> None:
        random, quorum = self.cluster.scheduler.random, self.cluster.quorum
        pool = self.pool()
        ensemble = self.cluster.choices.placement.ensemble(quorum, pool, random)
        is_degraded = ensemble is None
        if ensemble is None:
            placement = self.cluster.choices.placement
            ensemble = degraded_ensemble(placement, quorum, pool, random)
        if ensemble is None:
            self.host.after(CREATE_RETRY_S, self._create)
            return
        away = [bookie for bookie in ensemble if bookie not in pool.available]
        metadata = LedgerMetadata(
            quorum=quorum,
            fragments=(Fragment(EntryId(0), ensemble),),
            access_key=access_key(PASSWORD),
            creation_token=random.randbytes(16),
        )

        async def create() -> LedgerId | None:
            try:
                ledger_id = await self.ledgers.create(metadata)
                if away:
                    missing = written_without(away, EntryId(0), 0)
                    await mark_ledger(self.ledgers.store, ledger_id, missing)
                return ledger_id
            except MetadataUnavailable:
                return None

        def done(ledger_id: LedgerId | None) -> None:
            if ledger_id is None:
                self.mark("ledger_creation_unknown")
                self.host.after(CREATE_RETRY_S, self._create)
                return
            self.note(f"has created ledger {ledger_id}")
            self.mark("ledger_created")
            self.cluster.oracle.created(ledger_id, who=self.name)
            self.ledger_id = ledger_id
            if is_degraded:
                self.mark("degraded_ensemble")
                choice = DegradedChoice(
                    who=self.name,
                    quorum=quorum,
                    ensemble=ensemble,
                    available=pool.available,
                    known=pool.away,
                )
                self.cluster.oracle.placed_degraded(ledger_id, choice)
            else:
                self.placed(pool, quorum.ensemble, ensemble, ())
            self.machine = EventWriter(ledger_id, metadata, 0, self.cluster.choices.writer_config)
            self.run(self.machine, common.TimePassed())
            self.cluster.metadata.watch(self.host, AVAILABLE, self._list)
            self._list()
            self._on_created(self)

        drive(create(), done)

    def _list(self) -> None:
        bookies = self.cluster.bookies
        writable = {b: str(bookies[b].host.life) for b in self.cluster.metadata.available()}
        self.feed(protocol.BookiesListed(writable))

    @property
    def can_append(self) -> bool:
        pending = self.machine.last_add_pushed - self.machine.last_add_confirmed
        return not self.done and not self.close_requested and pending < PENDING_MAX

    def append(self, payloads: list[bytes]) -> None:
        """Add *payloads* as the next entries, as one batch."""
        length = self.machine.length
        first = self.machine.last_add_pushed + 1
        frames = []
        for offset, payload in enumerate(payloads):
            length += len(payload)
            frames.append(
                encode_frame(
                    ledger_id=self.ledger_id,
                    entry_id=first + offset,
                    last_add_confirmed=self.machine.last_add_confirmed,
                    length=length,
                    payload=payload,
                )
            )
        self._frames.update(enumerate(frames, first))
        self.cluster.oracle.appended(self.ledger_id, frames)
        self.feed(AppendRequested(len(payloads), sum(map(len, payloads))))

    def close(self) -> None:
        self.close_requested = True
        self.note("closes")
        self.feed(protocol.CloseRequested())

    def execute(self, effect: protocol.WriterEffect) -> None:
        match effect:
            case protocol.SendAdds():
                self._send_adds(effect)
            case protocol.PublishLac():
                self._publish_lac(effect)
            case protocol.ConfirmAdds():
                self._confirm(effect.last)
            case common.ChooseReplacements():
                self.mark("ensemble_change_wanted")
                if not self.machine.is_degraded:
                    self.mark("bookie_to_be_left")
                chosen = self.replacements(effect.indexes, effect.exclude, effect.ensemble)
                self.note(f"replaces {effect.indexes} by {chosen}")
                self.feed(common.ReplacementsChosen(chosen))
            case common.WriteMetadata() | common.ReadMetadata():
                self.carry_out(effect, self.feed)
            case protocol.MarkLacks():
                self._mark_lacks(effect)
            case protocol.FailWriter():
                self.note(f"fails: {effect.failure.value}")
                self.mark(f"writer_failed_{effect.failure.name.lower()}")
                self.failure, self.done = effect.failure, True
            case protocol.FinishClose():
                self.note("closed the ledger")
                self.mark("writer_closed")
                self.done = True
                self.cluster.oracle.concluded(self.ledger_id, effect.metadata, who=self.name)
            case _:
                assert_never(effect)

    def _mark_lacks(self, effect: protocol.MarkLacks) -> None:
        async def mark() -> protocol.WriterEvent:
            missing = written_without(effect.bookies, effect.fragment, 0, missed=effect.missed)
            try:
                await mark_ledger(self.ledgers.store, self.ledger_id, missing)
            except MetadataUnavailable:
                return protocol.MarkingFailed()
            return protocol.LacksMarked(effect)

        def done(event: protocol.WriterEvent) -> None:
            if isinstance(event, protocol.LacksMarked):
                self.mark("lacks_marked")
                self.cluster.oracle.marked(self.ledger_id, effect)
            self.feed(event)

        drive(mark(), done)

    def _send_adds(self, effect: protocol.SendAdds) -> None:
        quorum = self.machine.metadata.quorum
        entries = [
            entry
            for entry in range(effect.first, effect.last + 1)
            if holds(effect.index, entry, quorum)
        ]
        assert entries, f"{effect} names no entry that this bookie holds"
        frames = [self._frames[entry] for entry in entries]
        run = AddRun(
            ledger_id=self.ledger_id,
            key=access_key(PASSWORD),
            entries=entries,
            lengths=[len(frame) for frame in frames],
            frames=b"".join(frames),
        )
        self.add(effect.bookie, run, partial(self._answered, effect))

    def _answered(self, sent: protocol.SendAdds, status: Status) -> None:
        if status is Status.OK:
            self.feed(AddsStored(sent.index, sent.generation, sent.first, sent.last))
            return
        self.note(f"hears {status.name} from {sent.bookie}")
        self.reported(sent.bookie, status)
        whole = not self.machine.is_degraded
        self.feed(protocol.AddsRefused(sent.index, sent.generation, sent.first, sent.last, status))
        if (
            self.cluster.choices.writer_config.delay_ensemble_change
            and whole
            and self.machine.is_degraded
            and self.machine.phase is WriterPhase.OPEN
        ):
            self.note("goes on without it")
            self.mark("ensemble_change_delayed")

    def _publish_lac(self, effect: protocol.PublishLac) -> None:
        frame = encode_lac(
            ledger_id=self.ledger_id,
            last_add_confirmed=effect.last_add_confirmed,
            length=effect.length,
        )
        run = AddRun(
            ledger_id=self.ledger_id,
            key=access_key(PASSWORD),
            entries=[-1],
            lengths=[len(frame)],
            frames=frame,
            explicit_lac=True,
        )
        self.mark("explicit_lac")
        for bookie in effect.bookies:
            self.add(bookie, run, _ignore)

    def _confirm(self, last: int) -> None:
        first = self.cluster.oracle.ledger(self.ledger_id).acknowledged + 1
        self.note(f"acknowledges {first}..{last}")
        self.cluster.oracle.acknowledged(self.ledger_id, last, who=self.name)
        for entry in range(first, last + 1):
            del self._frames[entry]


def _ignore(_: object) -> None:
    """Nobody waits for it: an explicit LAC is a hint."""
