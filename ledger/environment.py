"""What every handle of one client shares: its ways to the world, its choice of bookies, and how
frames are put into runs, none of them larger than a message may be.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from ledger.entry import Digest, MacKey, WithoutKey, access_key, mac_key
from ledger.errors import AccessDenied
from ledger.ids import BookieId, LedgerId
from ledger.ledger_owner import belonging
from ledger.manager import LedgerStore
from ledger.metadata import LedgerMetadata
from ledger.protocol.answers import RepairHint
from ledger.protocol.placement import (
    PlacementPolicy,
    Pool,
    Quarantine,
    RackAwarePlacement,
    degraded_ensemble,
)
from ledger.protocol.writer import WriterConfig
from ledger.quorum import Quorum
from ledger.registry import BookieDirectory
from ledger.requests import AddRun, Status
from ledger.security.certificates import Security, own_name
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
    security: Security | None = None
    """What connections of this process are secured with; None: nothing."""
    writing: WriterConfig = field(default_factory=WriterConfig)
    placement: PlacementPolicy = field(default_factory=RackAwarePlacement)
    quarantine: Quarantine = field(default_factory=Quarantine)
    suspect: Callable[[LedgerId, RepairHint], None] = lambda _ledger_id, _hint: None
    """Called by readers with replicas of settled entries that are not as they should be."""
    doubt: Callable[[LedgerId, Sequence[BookieId]], None] = lambda _ledger_id, _bookies: None
    """Called by recoveries with members of a CLOSED ledger that may lack settled entries."""

    def ensemble(self, quorum: Quorum) -> tuple[BookieId, ...] | None:
        """Choose the ensemble of a new ledger, or None if there are too few bookies."""
        return self.placement.ensemble(quorum, self._pool(), self.random)

    def degraded_ensemble(self, quorum: Quorum) -> tuple[BookieId, ...] | None:
        """Choose an ensemble that names bookies which are away; None if that is no help, or no
        need."""
        return degraded_ensemble(self.placement, quorum, self._pool(), self.random)

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

    def better(
        self, quorum: Quorum, ensemble: Sequence[BookieId], exclude: Collection[BookieId] = ()
    ) -> tuple[tuple[int, BookieId], ...]:
        """Choose which bookies of *ensemble* to exchange for a better placement, by index."""
        return self.placement.better(quorum, ensemble, self._pool(), self.random, exclude=exclude)

    def registered(self) -> frozenset[BookieId]:
        """Return who is registered, read-only bookies too."""
        return frozenset(BookieId(found.bookie) for found in self.bookies.available())

    def writable(self) -> dict[BookieId, str]:
        """Return who is registered and takes adds, and as which start of its process."""
        return {
            BookieId(found.bookie): found.incarnation
            for found in self.bookies.available()
            if not found.read_only
        }

    def denied(self, what: str, role: str, metadata: LedgerMetadata) -> AccessDenied:
        """Return the error for what bookies did not allow with the ledger of *metadata*."""
        found = belonging(metadata.custom)
        where = f" of log {found.log!r}" if found else ", which belongs to no log"
        logs = found.log if found else "*"
        return AccessDenied(own_name(self.security), role, what + where, logs=logs)

    def reported(self, bookie: BookieId, status: Status) -> None:
        """Take note of what *bookie* answered, or that it did not."""
        self.quarantine.reported(bookie, status, now=asyncio.get_running_loop().time())

    def quarantined(self) -> tuple[BookieId, ...]:
        return self.quarantine.quarantined(now=asyncio.get_running_loop().time())

    def _pool(self) -> Pool:
        writable = tuple(map(BookieId, self.bookies.writable()))
        return Pool(
            writable,
            avoid=self.quarantined(),
            racks={BookieId(bookie): rack for bookie, rack in self.bookies.racks().items()},
            away=tuple(
                bookie for bookie in map(BookieId, self.bookies.away()) if bookie not in writable
            ),
        )


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a ledger's password or secret gives: the key for its bookies, and the one for its
    entries."""

    ledger_id: LedgerId
    key: bytes = field(repr=False)
    mac: bytes | None = field(repr=False)
    """What new entries are authenticated with."""
    without_mac: WithoutKey | None = None
    """Set if the ledger's entries have a code whose key is not known here."""

    @property
    def checks(self) -> MacKey:
        """What frames of bookies are checked with."""
        return self.without_mac or self.mac


def repair_credentials(ledger_id: LedgerId, metadata: LedgerMetadata) -> Credentials:
    """Return what whoever can read *metadata* can do for the ledger without its password: read it,
    fence it, and copy its entries as they are.

    Of a ledger with a secret that is all its users can do. Of one with a password, frames are
    checked as `ledger.entry.verify_whole` does."""
    if access_key(metadata.secret) != metadata.access_key:
        unknown = WithoutKey(metadata.digest)
        return Credentials(ledger_id, metadata.access_key, None, without_mac=unknown)
    mac = mac_key(metadata.secret) if metadata.digest is Digest.HMAC_SHA256 else None
    return Credentials(ledger_id, metadata.access_key, mac)


def runs_of(
    ids: Sequence[int],
    frames: Mapping[int, bytes],
    credentials: Credentials,
    *,
    bytes_max: int,
    recovery: bool = False,
) -> list[AddRun]:
    """Return *ids* in runs, each cut behind the entry with which it reaches *bytes_max*."""
    runs, start, size = list[AddRun](), 0, 0
    for number, entry_id in enumerate(ids, 1):
        size += len(frames[entry_id])
        if size >= bytes_max or number == len(ids):
            runs.append(_run(ids[start:number], frames, credentials, recovery=recovery))
            start, size = number, 0
    return runs


def with_ranges(runs: Sequence[AddRun], first: int, last: int) -> Iterator[tuple[AddRun, int, int]]:
    """Yield each of *runs*, which are all that one bookie holds of first..last, with the part of
    it that its answer is about: ids between a run's own are of other bookies."""
    for number, run in enumerate(runs, 1):
        upto = last if number == len(runs) else run.entries[-1]
        yield run, first, upto
        first = upto + 1


def _run(
    ids: Sequence[int], frames: Mapping[int, bytes], credentials: Credentials, *, recovery: bool
) -> AddRun:
    together = [frames[entry_id] for entry_id in ids]
    return AddRun(
        ledger_id=credentials.ledger_id,
        key=credentials.key,
        entries=ids,
        lengths=[len(frame) for frame in together],
        frames=together[0] if len(together) == 1 else b"".join(together),
        recovery=recovery,
    )
