"""What every handle of one client shares: its ways to the world, and its choice of bookies."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random

from ledger.ids import BookieId, LedgerId
from ledger.manager import LedgerStore
from ledger.protocol.placement import PlacementPolicy, Pool, RackAwarePlacement
from ledger.protocol.quarantine import Quarantine
from ledger.protocol.writer import WriterConfig
from ledger.quorum import Quorum
from ledger.registry import BookieDirectory
from ledger.requests import Status
from ledger.transport.port import BookieTransport


@dataclass(slots=True)
class Environment:
    uri: str
    """Of the namespace, for messages."""
    ledgers: LedgerStore
    bookies: BookieDirectory
    transport: BookieTransport
    random: Random
    pending_bytes_max: int
    writing: WriterConfig = field(default_factory=WriterConfig)
    placement: PlacementPolicy = field(default_factory=RackAwarePlacement)
    quarantine: Quarantine = field(default_factory=Quarantine)

    def ensemble(self, quorum: Quorum) -> tuple[BookieId, ...] | None:
        """Choose the ensemble of a new ledger, or None if there are too few bookies."""
        return self.placement.ensemble(quorum, self._pool(), self.random)

    def replacements(
        self,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        indexes: Sequence[int],
        exclude: Collection[BookieId],
    ) -> tuple[tuple[int, BookieId], ...]:
        """Choose a bookie for each of *indexes*, as many as there are."""
        return self.placement.replacements(
            quorum, ensemble, indexes, self._pool(), self.random, exclude=exclude
        )

    def reported(self, bookie: BookieId, status: Status) -> None:
        """Take note of what *bookie* answered, or that it did not."""
        self.quarantine.reported(bookie, status, now=asyncio.get_running_loop().time())

    def quarantined(self) -> tuple[BookieId, ...]:
        return self.quarantine.quarantined(now=asyncio.get_running_loop().time())

    def _pool(self) -> Pool:
        writable = [r.bookie for r in self.bookies.available() if not r.read_only]
        return Pool(
            tuple(BookieId(bookie) for bookie in writable),
            avoid=self.quarantined(),
            racks={BookieId(bookie): rack for bookie, rack in self.bookies.racks().items()},
        )


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a ledger's password or secret gives: the key for its bookies, and the one for its
    entries."""

    ledger_id: LedgerId
    key: bytes = field(repr=False)
    mac: bytes | None = field(repr=False)
