"""A writer of the hand-held world: `ledger.protocol.writer` with its frames."""

from functools import partial
from typing import TYPE_CHECKING, assert_never

from ledger.entry import encode_frame, encode_lac
from ledger.ids import LedgerId
from ledger.metadata import LedgerMetadata
from ledger.protocol import common
from ledger.protocol import writer_events as protocol
from ledger.quorum import holds
from ledger.requests import AddRun, Status
from tests.ledger.protocol.event_writer import AddsStored, AppendRequested, Event, EventWriter
from tests.simulation.scenarios.client import Client
from tests.simulation.scenarios.post import Kind

if TYPE_CHECKING:
    from tests.simulation.scenarios.world import World


class Writer(Client[Event, protocol.WriterEffect]):
    def __init__(
        self,
        world: "World",
        name: str,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        password: bytes,
    ) -> None:
        super().__init__(world, name, ledger_id, password)
        self.machine = EventWriter(ledger_id, metadata, 0)
        self.acknowledged: list[int] = []
        """Entries whose adds were resolved, in the order of delivery."""
        self.failure: protocol.WriterFailure | None = None
        self.closed: LedgerMetadata | None = None
        self._frames: dict[int, bytes] = {}
        self.use(self.machine, common.TimePassed())

    @property
    def pending(self) -> list[int]:
        """Entries whose adds nobody has answered: neither acknowledged nor failed."""
        if self.failure is not None:
            return []
        return list(range(len(self.acknowledged), self.machine.last_add_pushed + 1))

    def append(self, *payloads: str) -> None:
        """Add *payloads*, each as an entry of its own, and let all happen that is not held."""
        for payload in payloads:
            self.world.post.do(partial(self._append, payload.encode()))

    def close(self) -> None:
        self.world.post.do(lambda: self.feed(protocol.CloseRequested()))

    def _append(self, payload: bytes) -> None:
        entry_id = self.machine.last_add_pushed + 1
        frame = encode_frame(
            ledger_id=self.ledger_id,
            entry_id=entry_id,
            last_add_confirmed=self.machine.last_add_confirmed,
            length=self.machine.length + len(payload),
            payload=payload,
        )
        self._frames[entry_id] = frame
        self.world.oracle.appended(self.ledger_id, [frame])
        self.feed(AppendRequested(1, len(payload)))

    def execute(self, effect: protocol.WriterEffect) -> None:
        match effect:
            case protocol.SendAdds():
                self._send(effect)
            case protocol.PublishLac():
                self._publish(effect)
            case protocol.ConfirmAdds():
                self._confirm(effect.last)
            case common.ChooseReplacements():
                chosen = self.world.replacements(effect.indexes, effect.exclude)
                self.feed(common.ReplacementsChosen(chosen))
            case common.WriteMetadata():
                self.write_metadata(
                    effect.metadata,
                    effect.version,
                    written=lambda version: self.feed(common.MetadataWritten(version)),
                    read=self._metadata_read,
                    failed=lambda: self.feed(common.MetadataFailed()),
                )
            case common.ReadMetadata():
                self.read_metadata(
                    read=self._metadata_read,
                    failed=lambda: self.feed(common.MetadataFailed()),
                )
            case protocol.MarkLacks():
                self.feed(protocol.LacksMarked(effect))
            case protocol.FailWriter():
                self.failure = effect.failure
            case protocol.FinishClose():
                self.closed = effect.metadata
                self.world.oracle.concluded(self.ledger_id, effect.metadata, who=self.name)
            case _:
                assert_never(effect)

    def _metadata_read(self, metadata: LedgerMetadata | None, version: int) -> None:
        self.feed(common.MetadataRead(metadata, version))

    def _send(self, effect: protocol.SendAdds) -> None:
        quorum = self.machine.metadata.quorum
        entries = [
            entry
            for entry in range(effect.first, effect.last + 1)
            if holds(effect.index, entry, quorum)
        ]
        frames = [self._frames[entry] for entry in entries]
        run = AddRun(
            self.ledger_id, self.key, entries, [len(frame) for frame in frames], b"".join(frames)
        )

        def answered(status: Status) -> None:
            sent = effect.index, effect.generation, effect.first, effect.last
            if status is Status.OK:
                self.feed(AddsStored(*sent))
            else:
                self.feed(protocol.AddsRefused(*sent, status))

        self.ask_add(Kind.ADD, effect.bookie, run, answered)

    def _publish(self, effect: protocol.PublishLac) -> None:
        frame = encode_lac(
            ledger_id=self.ledger_id,
            last_add_confirmed=effect.last_add_confirmed,
            length=effect.length,
        )
        run = AddRun(self.ledger_id, self.key, (-1,), (len(frame),), frame, explicit_lac=True)
        for bookie in effect.bookies:
            self.ask_add(Kind.LAC, bookie, run, lambda _: None)

    def _confirm(self, last: int) -> None:
        self.world.oracle.acknowledged(self.ledger_id, last, who=self.name)
        for entry in range(len(self.acknowledged), last + 1):
            self.acknowledged.append(entry)
            del self._frames[entry]
