"""Keeps clients to the quotas of the metadata store, by delays; `token_buckets` counts.

Quotas are read when they change. While the store is out of reach, or holds what this program does
not understand, the last that were read stay in force, and ledgers of which nothing is known yet
cost nothing: a quota must not stop what it is to slow down.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from bookie.server.authorizer import Door
from bookie.server.node_watch import follow
from bookie.server.owners import Owners
from bookie.server.token_buckets import NS, Drawer, Treasury
from ledger.errors import DamagedMetadata
from ledger.ledger_owner import RENAMED_PATH
from ledger.log_events import get_logger
from ledger.manager import LedgerStore
from ledger.metastore.paths import INSTANCE
from ledger.metastore.port import MetadataStore
from ledger.requests import AddRun
from ledger.security.names import Identity
from ledger.security.quota_nodes import read_quotas
from ledger.security.quotas import QUOTAS

HOLD_NS_MAX: Final = 60 * NS
"""So long a connection is not read from; debts that are longer stay, and count with the next."""
READ_S_MAX: Final = 2.0
"""So long a question waits; with the 0.5 s to read, less than the 5 s after which a client gives up
on a silent bookie. Then it is told to ask again later."""

_log = get_logger(__name__)


class Delays:
    """See the module's docstring. `start`, then `run`; belongs to one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerStore,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.treasury = Treasury()
        self.clock_ns = clock_ns
        self._store = store
        self._owners = Owners(self.treasury, ledgers)

    async def start(self) -> None:
        """Read the quotas. Raises `MetadataUnavailable`."""
        await self._read()

    async def run(self) -> None:
        """Keep to the quotas as they change; until cancelled."""
        await follow(self._store, (QUOTAS, RENAMED_PATH, INSTANCE), self._changed)

    def pace(self, identity: Identity | None, door: Door | None) -> "Delaying":
        """Return what a connection of *identity*, None: not known, is held up by. *door*: what
        knows its role; None: roles are not checked."""
        return Delaying(self, Drawer(self.treasury, str(identity) if identity else ""), door)

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


class Delaying:
    """What one connection is held up by."""

    __slots__ = ("_delays", "_door", "_drawer", "treasury")

    def __init__(self, delays: Delays, drawer: Drawer, door: Door | None) -> None:
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
