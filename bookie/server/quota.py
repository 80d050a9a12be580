"""Keeps clients to the quotas of the metadata store, by delays.

Quotas are read when they change. While the store is out of reach, or holds what this program does
not understand, the last that were read stay in force, and ledgers of which nothing is known yet
cost nothing: a quota must not stop what it is to slow down.

What is counted is pure (`ledger.security.quotas`): times are given, in nanoseconds.

A bookie sees of a log what its share of the write sets makes. So what is appended counts as what
the log's ensemble gets for it together: E/Qw of its size (`docs/decisions.md`).
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from bookie.server.authorizer import ConnectionAuthorizer
from bookie.server.metadata_lookups import Owned, Owners
from ledger.errors import DamagedMetadata
from ledger.ledger_owner import RENAMED_PATH
from ledger.log_events import get_logger
from ledger.manager import LedgerStore
from ledger.metastore.ops import INSTANCE
from ledger.metastore.port import MetadataStore
from ledger.requests import AddRun
from ledger.security.documents import follow, read_quotas
from ledger.security.names import Identity
from ledger.security.quotas import NS, QUOTAS, QuotaBuckets, QuotaTable

LEDGERS_MAX: Final = 65_536
"""Of which it is remembered what counts for them."""
PLACES_MAX: Final = 4096
"""Ledgers of one connection, the same."""
HOLD_NS_MAX: Final = 60 * NS
"""So long a connection is not read from; debts that are longer stay, and count with the next."""
READ_S_MAX: Final = 2.0
"""So long a question waits; with the 0.5 s to read, less than the 5 s after which a client gives up
on a silent bookie. Then it is told to ask again later."""
_log = get_logger(__name__)


class QuotaManager(QuotaTable):
    """The quotas of a bookie, and which log each ledger belongs to."""

    def __init__(self) -> None:
        super().__init__()
        self.names = 0
        """Counts how often logs may have got other names."""
        self._owned: dict[int, Owned] = {}

    def learn_names(self) -> None:
        """Take note that a log may have another name."""
        self.names += 1
        self.generation += 1
        self._owned.clear()

    def learn_owned(self, ledger_id: int, owned: Owned, *, names: int) -> None:
        """Take note of what was found out after *names* was read here."""
        if names != self.names:
            return
        if len(self._owned) >= LEDGERS_MAX:
            del self._owned[next(iter(self._owned))]
        self._owned[ledger_id] = owned

    def owned(self, ledger_id: int) -> Owned | None:
        return self._owned.get(ledger_id)


class QuotaSession:
    """What one connection draws."""

    def __init__(self, treasury: QuotaManager, identity: str) -> None:
        """*identity*: empty if it is not known."""
        self.treasury, self._identity = treasury, identity
        self._places: dict[int, tuple[Owned, tuple[QuotaBuckets, ...]]] = {}
        self._generation = -1

    def unknown(self, ledger_ids: Iterable[int]) -> list[int]:
        """Return those of which has to be found out whose they are."""
        return [one for one in dict.fromkeys(ledger_ids) if self._place(one) is None]

    def append(self, runs: Sequence[AddRun], now_ns: int) -> int:
        """Draw what is appended; return how long nothing more is to be taken, in ns. What is not
        known costs nothing."""
        wait_ns, by = 0, None
        for run in runs:
            place = self._place(run.ledger_id)
            if place is None:
                continue
            (_, ensemble, write_quorum), purses = place
            for purse in purses:
                for bucket, amount in (
                    (purse.append_bytes, len(run.frames)),
                    (purse.append_entries, len(run.entries)),
                ):
                    if bucket is not None:
                        bucket.draw(-(-amount * ensemble // write_quorum), now_ns)
                        if (needed_ns := bucket.wait_ns(now_ns)) > wait_ns:
                            wait_ns, by = needed_ns, purse
        if by is not None:
            self.delayed(by, wait_ns)
        return wait_ns

    def ask(self, ledger_id: int, now_ns: int, wait_ns_max: int) -> tuple[int, QuotaBuckets | None]:
        """Return how long a question waits for what was drawn before, and for which quota. It is
        drawn itself unless that is more than *wait_ns_max*: who has to come again pays then."""
        wait_ns, by = 0, None
        place = self._place(ledger_id)
        purses = () if place is None else place[1]
        for purse in purses:
            for bucket in (purse.read_bytes, purse.read_requests):
                if bucket is not None and (needed_ns := bucket.wait_ns(now_ns)) > wait_ns:
                    wait_ns, by = needed_ns, purse
        if wait_ns <= wait_ns_max:
            for purse in purses:
                if purse.read_requests is not None:
                    purse.read_requests.draw(1, now_ns)
        return wait_ns, by

    def read(self, ledger_id: int, size_bytes: int, now_ns: int) -> None:
        """Draw what is answered."""
        place = self._place(ledger_id)
        for purse in () if place is None else place[1]:
            if purse.read_bytes is not None:
                purse.read_bytes.draw(size_bytes, now_ns)

    def delayed(self, purse: QuotaBuckets, wait_ns: int) -> None:
        self.treasury.delayed_ns[str(purse.quota)] += wait_ns

    def _place(self, ledger_id: int) -> tuple[Owned, tuple[QuotaBuckets, ...]] | None:
        treasury = self.treasury
        if self._generation != treasury.generation:
            self._places.clear()
            self._generation = treasury.generation
        place = self._places.get(ledger_id)
        if place is None:
            owned = treasury.owned(ledger_id)
            if owned is None:
                return None
            if len(self._places) >= PLACES_MAX:
                self._places.clear()
            place = self._places[ledger_id] = owned, treasury.purses(self._identity, owned.log)
        return place


class QuotaThrottle:
    """See the module's docstring. `start`, then `run`; belongs to one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerStore,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.treasury = QuotaManager()
        self.clock_ns = clock_ns
        self._store = store
        self._owners = Owners(self.treasury, ledgers)

    async def start(self) -> None:
        """Read the quotas. Raises `MetadataUnavailable`."""
        await self._read()

    async def run(self) -> None:
        """Keep to the quotas as they change; until cancelled."""
        await follow(self._store, (QUOTAS, RENAMED_PATH, INSTANCE), self._changed)

    def pace(
        self, identity: Identity | None, door: ConnectionAuthorizer | None
    ) -> "ConnectionThrottle":
        """Return what a connection of *identity*, None: not known, is held up by. *door*: what
        knows its role; None: roles are not checked."""
        return ConnectionThrottle(
            self, QuotaSession(self.treasury, str(identity) if identity else ""), door
        )

    async def learn(self, ledger_ids: Iterable[int]) -> None:
        await asyncio.gather(*map(self._owners.learn, ledger_ids))

    async def _changed(self, paths: Collection[str]) -> None:
        if RENAMED_PATH in paths or INSTANCE in paths:  # from a level on, owner nodes count
            self.treasury.learn_names()
        await self._read()

    async def _read(self) -> None:
        try:
            quotas = await read_quotas(self._store)
        except DamagedMetadata as error:
            in_force = len(self.treasury.quotas.quotas)
            _log.error("quotas_not_read", reason=str(error), quotas_in_force=in_force)
            return
        if quotas != self.treasury.quotas:
            self.treasury.learn_quotas(quotas)
            _log.info(
                "quotas_changed",
                by=quotas.changed_by,
                at_ms=quotas.changed_ms,
                quotas=len(quotas.quotas),
            )


class ConnectionThrottle:
    """What one connection is held up by."""

    __slots__ = ("_delays", "_door", "_drawer", "treasury")

    def __init__(
        self, delays: QuotaThrottle, drawer: QuotaSession, door: ConnectionAuthorizer | None
    ) -> None:
        self._delays, self._drawer, self._door = delays, drawer, door
        self.treasury = delays.treasury
        """Ask it first whether there are any quotas."""

    def knows(self, runs: Sequence[AddRun]) -> bool:
        """Return whether it is known what adds of *runs* cost; else call `learn`."""
        return not self._drawer.unknown(run.ledger_id for run in self._counted(runs))

    async def learn(self, runs: Sequence[AddRun]) -> None:
        await self._delays.learn(self._drawer.unknown(run.ledger_id for run in self._counted(runs)))

    def append(self, runs: Sequence[AddRun]) -> float:
        """Count what is appended; return for how many seconds the connection is not read from."""
        wait_ns = self._drawer.append(self._counted(runs), self._delays.clock_ns())
        return min(wait_ns, HOLD_NS_MAX) / NS

    @property
    def is_exempt(self) -> bool:
        """Whether what the client calls repair is repair: its role says so. Where roles are not
        checked, nobody is known, and the flag has to do."""
        return self._door is None or self._door.repairs()

    def _counted(self, runs: Sequence[AddRun]) -> Sequence[AddRun]:
        """Return the runs that quotas count: a flag alone takes nothing out."""
        if any(run.recovery for run in runs) and self.is_exempt:
            return [run for run in runs if not run.recovery]
        return runs

    async def ask(self, ledger_id: int) -> bool:
        """Count a question, and wait until it may be answered; return whether it may."""
        await self._delays.learn(self._drawer.unknown([ledger_id]))
        most_ns = int(READ_S_MAX * NS)
        wait_ns, purse = self._drawer.ask(ledger_id, self._delays.clock_ns(), most_ns)
        if purse is None:
            return True
        waits_ns = min(wait_ns, most_ns)
        self._drawer.delayed(purse, waits_ns)
        await asyncio.sleep(waits_ns / NS)
        return wait_ns <= most_ns

    def answered(self, ledger_id: int, size_bytes: int) -> None:
        """Count what is answered."""
        self._drawer.read(ledger_id, size_bytes, self._delays.clock_ns())
