"""A client that recovers a ledger through the machine `ledger.protocol.recovery`."""

from functools import partial
from typing import TYPE_CHECKING, assert_never

from ledger.entry import access_key
from ledger.ids import LedgerId
from ledger.metadata import LedgerMetadata
from ledger.protocol import common
from ledger.protocol import recovery_events as protocol
from ledger.protocol.answers import proven_lac, verified
from ledger.protocol.recovery import Recovery
from ledger.quorum import holds
from ledger.requests import AddRun, LacAnswer, LacQuery, ReadAnswer, ReadQuery, Status
from tests.simulation.client import Client
from tests.simulation.writing import PASSWORD

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class RecoveringClient(Client[protocol.RecoveryEvent, protocol.RecoveryEffect]):
    def __init__(self, cluster: "Cluster", name: str, ledger_id: LedgerId) -> None:
        super().__init__(cluster, name, ledger_id)
        self.failure: protocol.RecoveryFailure | None = None
        self.closed: LedgerMetadata | None = None
        self._frames: dict[int, bytes] = {}
        self._quorum = cluster.quorum

    def begin(self) -> None:
        """Read the metadata, as long as it takes, then recover."""
        self.read_metadata(read=self._found, failed=self.begin)

    def _found(self, metadata: LedgerMetadata | None, version: int) -> None:
        if metadata is None:
            self.done = True
            return
        self.note(f"recovers from version {version}")
        attempts_max = self.cluster.scheduler.random.choice((2, 5))
        config = protocol.RecoveryConfig(attempts_max=attempts_max)
        machine = Recovery(self.ledger_id, metadata, version, config)
        self.run(machine, common.TimePassed())
        self.feed(protocol.RecoveryStarted())

    def execute(self, effect: protocol.RecoveryEffect) -> None:
        match effect:
            case protocol.SendFence():
                query = LacQuery(self.ledger_id, access_key(PASSWORD), fence=True)
                self.read_lac(effect.bookie, query, partial(self._lac_read, effect))
            case protocol.SendRecoveryRead():
                fenced_read = ReadQuery(
                    self.ledger_id,
                    access_key(PASSWORD),
                    effect.first,
                    effect.last,
                    self.bytes_max(),
                    fence=effect.fence,
                )
                self.read(effect.bookie, fenced_read, partial(self._entries_read, effect))
            case protocol.ReadBase():
                base = ReadQuery(
                    self.ledger_id, access_key(PASSWORD), effect.entry_id, effect.entry_id
                )
                self.read(effect.bookie, base, partial(self._base_read, effect))
            case protocol.WriteBack():
                self._write_back(effect)
            case protocol.ForgetEntries():
                for entry in [entry for entry in self._frames if entry <= effect.last]:
                    del self._frames[entry]
            case common.ChooseReplacements():
                self.mark("recovery_ensemble_change")
                chosen = self.replacements(effect.indexes, effect.exclude, effect.ensemble)
                self.note(f"replaces {effect.indexes} by {chosen}")
                self.feed(common.ReplacementsChosen(chosen))
            case common.WriteMetadata() | common.ReadMetadata():
                self.carry_out(effect, self.feed)
            case protocol.FinishRecovery():
                self._finish(effect.metadata)
            case protocol.FailRecovery():
                self.note(f"gives up: {effect.failure.value}")
                self.mark(f"recovery_failed_{effect.failure.name.lower()}")
                self.failure, self.done = effect.failure, True
            case _:
                assert_never(effect)

    def _lac_read(self, asked: protocol.SendFence, answer: LacAnswer) -> None:
        lac = proven_lac(answer.lac_proof, self.ledger_id, None)
        heard = protocol.lac_read(asked, answer, lac)
        self.note(f"hears of {asked.bookie} {answer.status.name} fenced={heard.fenced} LAC {lac}")
        self.cluster.oracle.saw_lac(self.ledger_id, lac, who=self.name)
        self.feed(heard)

    def _entries_read(self, asked: protocol.SendRecoveryRead, answer: ReadAnswer) -> None:
        self.reported(asked.bookie, answer.status)
        found = verified(answer, self.ledger_id, None)
        for entry, frame in found.frames.items():
            self._frames.setdefault(entry, bytes(frame))
        self.note(
            f"reads at {asked.bookie} from {asked.first}: {answer.status.name} "
            f"{len(found.frames)} entries, certain up to {found.considered}"
        )
        self.feed(protocol.entries_read(asked, found))

    def _base_read(self, asked: protocol.ReadBase, answer: ReadAnswer) -> None:
        header = verified(answer, self.ledger_id, None).headers.get(asked.entry_id)
        self.feed(protocol.BaseRead(asked.index, None if header is None else header.length))

    def _write_back(self, effect: protocol.WriteBack) -> None:
        entries = [
            entry
            for entry in range(effect.first, effect.last + 1)
            if holds(effect.index, entry, self._quorum)
        ]
        frames = [self._frames[entry] for entry in entries]
        run = AddRun(
            ledger_id=self.ledger_id,
            key=access_key(PASSWORD),
            entries=entries,
            lengths=[len(frame) for frame in frames],
            frames=b"".join(frames),
            recovery=True,
        )
        self.mark("entry_written_back")
        self.add(effect.bookie, run, partial(self._written_back, effect))

    def _written_back(self, sent: protocol.WriteBack, status: Status) -> None:
        self.reported(sent.bookie, status)
        if status is Status.OK:
            event: protocol.RecoveryEvent = protocol.WriteBackStored(
                sent.index, sent.generation, sent.first, sent.last
            )
        else:
            event = protocol.WriteBackRefused(
                sent.index, sent.generation, sent.first, sent.last, status
            )
        self.feed(event)

    def _finish(self, metadata: LedgerMetadata) -> None:
        self.note(f"knows the end: {metadata.last_entry}")
        self.mark("recovered")
        self.done, self.closed = True, metadata
        self.cluster.oracle.concluded(self.ledger_id, metadata, who=self.name)
