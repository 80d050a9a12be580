"""What every handle of one client shares, and the choices that need randomness and time."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random
from typing import Final

from ledger.ids import BookieId, LedgerId
from ledger.manager import LedgerStore
from ledger.metadata import LedgerMetadata
from ledger.protocol.placement import choose_ensemble
from ledger.registry import BookieDirectory
from ledger.transport.port import BookieTransport

QUARANTINE_S: Final = 30.0
"""How long a bookie that failed is picked only if there is no other."""


@dataclass(slots=True)
class Environment:
    uri: str
    """Of the namespace, for messages."""
    ledgers: LedgerStore
    bookies: BookieDirectory
    transport: BookieTransport
    random: Random
    _quarantined: dict[BookieId, float] = field(default_factory=dict)

    def choose(
        self, count: int, *, exclude: Collection[BookieId] = ()
    ) -> tuple[BookieId, ...] | None:
        """Pick *count* writable bookies, or None if there are not enough."""
        now = asyncio.get_running_loop().time()
        self._quarantined = {b: until for b, until in self._quarantined.items() if until > now}
        return choose_ensemble(
            count,
            [
                BookieId(registration.bookie)
                for registration in self.bookies.available()
                if not registration.read_only
            ],
            self.random,
            exclude=exclude,
            avoid=self._quarantined,
        )

    def replacements(
        self, indexes: tuple[int, ...], exclude: tuple[BookieId, ...]
    ) -> tuple[tuple[int, BookieId], ...]:
        """Pick a bookie for each of *indexes*; nothing if there are not enough."""
        chosen = self.choose(len(indexes), exclude=exclude)
        return () if chosen is None else tuple(zip(indexes, chosen, strict=True))

    def quarantine(self, bookie: BookieId) -> None:
        """Remember that *bookie* just failed."""
        self._quarantined[bookie] = asyncio.get_running_loop().time() + QUARANTINE_S


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a ledger's password gives: the key for its bookies, and the one for its entries."""

    ledger_id: LedgerId
    key: bytes
    mac: bytes | None


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """Metadata with the version to compare it by."""

    metadata: LedgerMetadata
    version: int
