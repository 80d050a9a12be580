"""A simulated client of one ledger: a process with production's drivers, seen from outside.

Each client is a host of its own; a process that restarts is a new client. What the oracle has to
know is seen at the ports: at the metadata store, at the bookies, and where bookies are chosen. At
the address of a bookie another one of its name may answer; see `addresses`.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ledger.errors import BadVersion, MetadataUnavailable, NoSuchLedger
from ledger.ids import BookieId, LedgerId
from ledger.manager import LedgerStore
from ledger.metadata import LedgerMetadata
from ledger.metastore.port import CheckOp
from ledger.protocol.answers import proven_lac
from ledger.protocol.placement import Pool
from ledger.quorum import Quorum
from ledger.requests import AddRun, LacAnswer, LacQuery, ReadAnswer, ReadQuery, Status
from ledger.transport.handshake import Purpose
from tests.simulation.addresses import Listener, connects, meant
from tests.simulation.oracle import Choice, DegradedChoice
from tests.simulation.process import SimDirectory, SimEnvironment, SimProcess
from tests.simulation.transport import Adding, Asking, SimTransport

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

Answer = TypeVar("Answer")

PASSWORD: Final = b"simulated"
NOT_CREATED: Final = LedgerId(-1)
ANSWER_BYTES: Final = 1, 400, 4096, 1 << 20
"""How much one answer may hold, at random: many answers are only in part."""


class ClientProcess(SimProcess):
    """Of one ledger."""

    def __init__(self, cluster: "Cluster", name: str, ledger_id: LedgerId) -> None:
        self.ledger_id = ledger_id
        super().__init__(cluster, name)
        self.cluster = cluster
        self.done = False
        """True iff this client wants nothing more: finished or failed."""
        self.chosen: Choice | DegradedChoice | None = None
        """The bookies for a ledger that has no id yet."""
        cluster.loops.append(self.loop)

    def _make_ledgers(self) -> LedgerStore:
        return WatchedLedgers(self)

    def _make_transport(self) -> SimTransport:
        return ClientTransport(self)

    def _directory(self) -> SimDirectory:
        return ClientDirectory(self, self.store)

    def _make_environment(self, **parts: Any) -> SimEnvironment:
        return ClientEnvironment(self, **parts)

    def busy_streams(self) -> list[Any]:
        return [] if self.done else list(self.transport.busy_streams())

    def refused(self, bookie: BookieId, status: Status, handle: Callable[[], None]) -> None:
        """Hear by *handle* that *bookie* did not store what was sent."""
        self.note(f"hears {status.name} from {bookie}")
        handle()

    def placed(self, choice: Choice | DegradedChoice) -> None:
        """Report which bookies were chosen for the ledger, once it has an id."""
        if self.ledger_id == NOT_CREATED:
            self.chosen = choice
        elif isinstance(choice, Choice):
            self.cluster.oracle.placed(self.ledger_id, choice)
        else:
            self.cluster.oracle.placed_degraded(self.ledger_id, choice)

    def chose_degraded(self, choice: DegradedChoice) -> None:
        self.placed(choice)

    def wants_replacements(self) -> None:
        """Take note that members of an ensemble are about to be replaced."""


class ClientDirectory(SimDirectory):
    def away(self) -> tuple[str, ...]:
        return self._world.metadata.away()

    async def look_again(self) -> None:
        """It is always fresh; who asks the store has to reach it, though."""
        await self._store.sync()


class ClientEnvironment(SimEnvironment):
    """Reports what placement chose of what."""

    _process: ClientProcess

    def ensemble(self, quorum: Quorum) -> tuple[BookieId, ...] | None:
        pool = self._pool()
        ensemble = super().ensemble(quorum)
        if ensemble is not None:
            self._placed(pool, quorum.ensemble, ensemble, ())
        return ensemble

    def replacements(
        self,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        indexes: Sequence[int],
        exclude: Collection[BookieId],
    ) -> tuple[tuple[int, BookieId], ...]:
        process = self._process
        process.wants_replacements()
        if process.cluster.on_change is not None:
            process.cluster.on_change(process.ledger_id)
        pool = self._pool()
        picked = super().replacements(quorum, ensemble, indexes, exclude)
        if len(picked) < len(indexes):
            process.mark("partial_replacement" if picked else "no_replacement")
        chosen = ", ".join(f"{ensemble[index]} by {bookie}" for index, bookie in picked)
        process.note(f"replaces {chosen or 'nobody: no other bookie may be chosen'}")
        self._placed(pool, len(indexes), [bookie for _, bookie in picked], (*ensemble, *exclude))
        return picked

    def _placed(
        self, pool: Pool, wanted: int, chosen: Iterable[BookieId], exclude: tuple[BookieId, ...]
    ) -> None:
        choice = Choice(
            who=self._process.name,
            wanted=wanted,
            chosen=tuple(chosen),
            available=pool.available,
            exclude=exclude,
            avoid=tuple(pool.avoid),
        )
        if any(bookie in choice.avoid for bookie in choice.chosen):
            self._process.mark("quarantined_bookie_needed")
        elif any(bookie in choice.avoid for bookie in choice.free):
            self._process.mark("quarantined_bookie_avoided")
        if len({pool.racks.get(bookie) for bookie in choice.chosen}) > 1:
            self._process.mark("racks_mixed")
        self._process.placed(choice)


class WatchedLedgers(LedgerStore):
    """Tells what became of writes."""

    def __init__(self, process: ClientProcess) -> None:
        super().__init__(process.store, process.world.choices.layout.name)
        self._process = process

    async def write(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        version: int,
        *,
        only_if: CheckOp | None = None,
    ) -> int:
        process = self._process
        try:
            version = await super().write(ledger_id, metadata, version, only_if=only_if)
        except BadVersion:
            process.note("lost a metadata write to somebody else")
            process.mark("metadata_conflict")
            raise
        except NoSuchLedger:
            process.note("found the metadata gone")
            process.mark("metadata_gone")
            raise
        except MetadataUnavailable:
            process.note("does not know whether its metadata write happened")
            process.mark("metadata_write_unknown")
            raise
        process.note(f"wrote {describe(metadata)} as version {version}")
        return version


class ClientTransport(SimTransport):
    process: ClientProcess

    def __init__(self, process: ClientProcess) -> None:
        super().__init__(process)
        self._cluster = process.world

    def add(self, bookie: BookieId, run: AddRun, on_done: Callable[[Status], None]) -> None:
        if run.explicit_lac or run.recovery:
            self.process.mark("explicit_lac" if run.explicit_lac else "entry_written_back")

        def done(status: Status) -> None:
            if status is Status.OK or run.explicit_lac:
                on_done(status)
            else:
                self.process.refused(bookie, status, lambda: on_done(status))

        super().add(bookie, run, done)

    async def read(self, bookie: BookieId, query: ReadQuery) -> ReadAnswer:
        bytes_max = min(query.bytes_max, self._cluster.scheduler.random.choice(ANSWER_BYTES))
        answer = await super().read(bookie, replace(query, bytes_max=bytes_max))
        if query.wait_ms and answer.entries:
            self.process.mark("long_poll_woke_up")
        if query.repairs:  # of a recovery
            self.process.note(
                f"reads at {bookie} from {query.first}: {answer.status.name}, "
                f"{len(answer.entries)} entries, certain up to {answer.considered}"
            )
        return answer

    async def read_lac(self, bookie: BookieId, query: LacQuery) -> LacAnswer:
        answer = await super().read_lac(bookie, query)
        lac = proven_lac(answer.lac_proof, query.ledger_id, None)
        is_fenced = "it is fenced, " if answer.fenced else ""
        self.process.note(f"hears of {bookie}: {is_fenced}{answer.status.name}, LAC {lac}")
        self._cluster.oracle.saw_lac(query.ledger_id, lac, who=self.process.name)
        return answer

    # Who answers.

    def _target(self, bookie: BookieId) -> Listener:
        return self._cluster.at_address(bookie, self.process.name)

    def _adding(self, bookie: BookieId, target: Listener, run: AddRun) -> Adding:
        cluster, who = self._cluster, meant(self._cluster, bookie)

        def arrived(connection: int, reply: Callable[[Status], None]) -> None:
            if not target.serves or connects(cluster, target, Purpose.ADDS, bookie, who):
                target.add(run, connection, reply)
            else:
                reply(Status.UNREACHABLE)

        return arrived

    def _asking(
        self, bookie: BookieId, target: Listener, ask: Asking[Answer], unreachable: Answer
    ) -> Asking[Answer]:
        """A bookie that does not serve yet says nothing."""
        cluster, who = self._cluster, meant(self._cluster, bookie)

        def arrived(reply: Callable[[Answer], None]) -> None:
            if not target.serves or connects(cluster, target, Purpose.ASKS, bookie, who):
                ask(reply)
            else:
                reply(unreachable)

        return arrived


def describe(metadata: LedgerMetadata) -> str:
    """Return *metadata* in a few words, for the trace."""
    fragments = " ".join(f"{f.first_entry}:{'+'.join(f.bookies)}" for f in metadata.fragments)
    end = "" if metadata.last_entry is None else f" at {metadata.last_entry}"
    return f"{metadata.state.name}{end} [{fragments}]"
