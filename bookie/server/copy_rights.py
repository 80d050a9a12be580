"""Which copies a bookie takes from a client that may repair a ledger, and not add to it.

Repair copies what is settled: acknowledged, and final. Its lock, in the metadata store, names the
certificate that copies and the bookies that get copies. A copy is taken if both agree with it, so
a certificate of the role `bookie` alone adds nothing to any log, and neither does one beside
somebody else's repair. To recover a ledger that is not CLOSED takes the right to add.

Invariants:
    no entry is taken above the settled end of its fragment, nor below 0
    no entry is taken that the fragment's ensemble gives to other members than this bookie
    nothing is taken unless the ledger's lock names the client, and this bookie as its target
    no last add confirmed is taken: a bookie holds a stripe, and cannot know that it is true
"""

import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bookie.server.owners import Lookups
from ledger.ids import LedgerId
from ledger.manager import LedgerStore
from ledger.mark_nodes import LOCKS, RepairLock, read_lock
from ledger.metadata import LedgerMetadata
from ledger.quorum import holds
from ledger.requests import AddRun, Status


@dataclass(frozen=True, slots=True)
class CopyEvidence:
    """What the metadata store says of a ledger and its repair."""

    metadata: LedgerMetadata
    lock: RepairLock | None

    def why_not(self, run: AddRun, bookie: str, who: str) -> str:
        """Return why *bookie* does not take *run* of *who*; empty if it does."""
        if run.explicit_lac:
            return "only who may append says what is confirmed"
        lock = self.lock
        if lock is None:
            return "nobody repairs the ledger"
        if who not in lock.identities:
            return f"the ledger is repaired by {lock.worker}, with another certificate"
        if bookie not in lock.targets:
            return f"the repair does not copy to bookie {bookie}"
        return self._why_not_settled(run, bookie)

    def _why_not_settled(self, run: AddRun, bookie: str) -> str:
        metadata = self.metadata
        firsts = [fragment.first_entry for fragment in metadata.fragments]
        ends = [metadata.settled_end(fragment) for fragment in metadata.fragments]
        members = [
            fragment.bookies.index(bookie) if bookie in fragment.bookies else None
            for fragment in metadata.fragments
        ]
        for entry_id in run.entries:
            at = bisect_right(firsts, entry_id) - 1
            end = ends[at] if at >= 0 else None
            if end is None or entry_id > end:
                return f"entry {entry_id} is not settled"
            index = members[at]
            if index is not None and not holds(index, entry_id, metadata.quorum):
                return f"entry {entry_id} belongs to other members of its ensemble"
        return ""


class CopyRights:
    """Asks the metadata store for `CopyEvidence`, with each message: repair copies much with one,
    and a lock that is gone must count at once."""

    def __init__(
        self,
        ledgers: LedgerStore,
        bookie: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bookie = bookie
        self._ledgers = ledgers
        self._lookups = Lookups(clock=clock)

    async def evidence(self, ledger_id: int) -> CopyEvidence | Status:
        """Return `NO_SUCH_LEDGER` if there is no such ledger, `TOO_MANY_REQUESTS` if the store
        does not answer."""
        return await self._lookups.run(partial(self._read, LedgerId(ledger_id)))

    async def _read(self, ledger_id: LedgerId) -> CopyEvidence:
        store = self._ledgers.store
        await store.sync(LOCKS)  # the lock was written just before the first copy
        found = await read_lock(store, ledger_id)
        metadata, _ = await self._ledgers.read(ledger_id)
        return CopyEvidence(metadata, None if found is None else found[0])
