"""A recoverer of the hand-held world: `ledger.protocol.recovery` with the frames it found."""

from typing import TYPE_CHECKING, assert_never

from ledger.ids import LedgerId
from ledger.metadata import LedgerMetadata
from ledger.protocol import common
from ledger.protocol import recovery_events as protocol
from ledger.protocol.answers import proven_lac, verified
from ledger.protocol.recovery import Recovery
from ledger.quorum import holds
from ledger.requests import AddRun, LacAnswer, LacQuery, ReadAnswer, ReadQuery, Status
from tests.simulation.scenarios.client import Client
from tests.simulation.scenarios.post import Kind

if TYPE_CHECKING:
    from tests.simulation.scenarios.world import World

NO_MAC = None


class Recoverer(Client[protocol.RecoveryEvent, protocol.RecoveryEffect]):
    def __init__(self, world: "World", name: str, ledger_id: LedgerId, password: bytes) -> None:
        super().__init__(world, name, ledger_id, password)
        self.failure: protocol.RecoveryFailure | None = None
        self.closed: LedgerMetadata | None = None
        """What it learned the ledger was closed as."""
        self.machine: Recovery | None = None
        self.read_bytes_max = 1 << 20
        self._frames: dict[int, bytes] = {}

    @property
    def closed_at(self) -> int | None:
        return None if self.closed is None else self.closed.last_entry

    def recover(self) -> None:
        """Recover the ledger, as far as nothing is held."""
        self.world.post.do(lambda: self.read_metadata(read=self._begin, failed=self.recover))

    def _begin(self, metadata: LedgerMetadata | None, version: int) -> None:
        assert metadata is not None, "nothing to recover"
        self.machine = Recovery(self.ledger_id, metadata, version)
        self.use(self.machine, common.TimePassed())
        self.feed(protocol.RecoveryStarted())

    def execute(self, effect: protocol.RecoveryEffect) -> None:
        match effect:
            case protocol.SendFence():
                query = LacQuery(self.ledger_id, self.key, fence=True)
                self.ask_lac(effect.bookie, query, lambda a: self._lac_read(effect, a))
            case protocol.SendRecoveryRead():
                fenced = ReadQuery(
                    self.ledger_id,
                    self.key,
                    effect.first,
                    effect.last,
                    self.read_bytes_max,
                    fence=effect.fence,
                )
                self.ask_read(
                    Kind.RECOVERY_READ,
                    effect.bookie,
                    fenced,
                    lambda a: self._entries_read(effect, a),
                )
            case protocol.ReadBase():
                base = ReadQuery(self.ledger_id, self.key, effect.entry_id, effect.entry_id)
                self.ask_read(
                    Kind.BASE_READ, effect.bookie, base, lambda a: self._base_read(effect, a)
                )
            case protocol.WriteBack():
                self._write_back(effect)
            case protocol.ForgetEntries():
                for entry in [entry for entry in self._frames if entry <= effect.last]:
                    del self._frames[entry]
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
            case protocol.FinishRecovery():
                self.closed = effect.metadata
                self.world.oracle.concluded(self.ledger_id, effect.metadata, who=self.name)
                self.die()  # as the driver, which stops the machine when it is done
            case protocol.FailRecovery():
                self.failure = effect.failure
                self.die()
            case _:
                assert_never(effect)

    def _metadata_read(self, metadata: LedgerMetadata | None, version: int) -> None:
        self.feed(common.MetadataRead(metadata, version))

    def _lac_read(self, asked: protocol.SendFence, answer: LacAnswer) -> None:
        lac = proven_lac(answer.lac_proof, self.ledger_id, NO_MAC)
        self.world.oracle.saw_lac(self.ledger_id, lac, who=self.name)
        self.feed(protocol.lac_read(asked, answer, lac))

    def _entries_read(self, asked: protocol.SendRecoveryRead, answer: ReadAnswer) -> None:
        found = verified(answer, self.ledger_id, NO_MAC)
        for entry, frame in found.frames.items():
            self._frames.setdefault(entry, bytes(frame))
        self.feed(protocol.entries_read(asked, found))

    def _base_read(self, asked: protocol.ReadBase, answer: ReadAnswer) -> None:
        header = verified(answer, self.ledger_id, NO_MAC).headers.get(asked.entry_id)
        self.feed(protocol.BaseRead(asked.index, None if header is None else header.length))

    def _write_back(self, effect: protocol.WriteBack) -> None:
        assert self.machine is not None
        quorum = self.machine.metadata.quorum
        entries = [
            entry
            for entry in range(effect.first, effect.last + 1)
            if holds(effect.index, entry, quorum)
        ]
        frames = [self._frames[entry] for entry in entries]
        run = AddRun(
            self.ledger_id,
            self.key,
            entries,
            [len(frame) for frame in frames],
            b"".join(frames),
            recovery=True,
        )

        def answered(status: Status) -> None:
            sent = effect.index, effect.generation, effect.first, effect.last
            if status is Status.OK:
                self.feed(protocol.WriteBackStored(*sent))
            else:
                self.feed(protocol.WriteBackRefused(*sent, status))

        self.ask_add(Kind.WRITE_BACK, effect.bookie, run, answered)
