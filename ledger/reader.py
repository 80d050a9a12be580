"""The handle of a reader: what it knows of its ledger, and the reads under way."""

import asyncio
from collections.abc import Mapping
from typing import Final

from ledger.environment import Credentials, Environment
from ledger.errors import (
    BookieUnavailable,
    EntryLost,
    HandleClosed,
    KeyDiffers,
    LogError,
    NoSuchLedger,
)
from ledger.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from ledger.known import Known
from ledger.machine_loop import read_metadata
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol import shared
from ledger.protocol.answers import Fault, proven_lac
from ledger.quorum import all_covered
from ledger.read import Entry, Read
from ledger.requests import LacQuery, Status

__all__ = ["Entry", "LedgerReader"]

WATCH_RETRY_S: Final = 0.5
"""Pause after the metadata store did not answer."""


class LedgerReader:
    """Reads one ledger; never disturbs its writer. Safe to use for several reads at once."""

    def __init__(
        self,
        environment: Environment,
        credentials: Credentials,
        metadata: LedgerMetadata,
    ) -> None:
        self.ledger_id: LedgerId = credentials.ledger_id
        self._known = Known(credentials.ledger_id, metadata)
        self._environment = environment
        self._credentials = credentials
        self._reads: dict[Read, None] = {}
        self._closed = False
        self._deleted = False
        self._watching: asyncio.Task[None] | None = None
        if metadata.state is not LedgerState.CLOSED:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    @property
    def metadata(self) -> LedgerMetadata:
        """As this reader knows it."""
        return self._known.metadata

    @property
    def closed(self) -> bool:
        """True iff the ledger is CLOSED: its end is known."""
        return self._known.closed

    @property
    def last_entry(self) -> EntryId | None:
        """The last entry; None unless the ledger is CLOSED."""
        return self.metadata.last_entry

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that may be read, as far as this reader knows."""
        return self._known.last_add_confirmed

    @property
    def repair_hints(self) -> Mapping[tuple[BookieId, Fault], int]:
        """Replicas found damaged or missing so far, by bookie: entries that another replica
        gave instead. Each first one is a warning in the log, too (rule 54). Of settled entries
        they are marked for repair, which looks for itself."""
        return self._known.hints

    async def read(self, first: int, last: int) -> list[Entry]:
        """Return entries first..last, all of them.

        Raises `EntryLost` if one is beyond the last add confirmed or no replica can give it,
        `EntryUnavailable` if not all replicas could be asked, and `NoSuchLedger`,
        `KeyDiffers`, `MetadataUnavailable`."""
        entries: list[Entry] = []
        while first <= last:
            some = await self.read_some(first, last=last)
            if not some:
                raise EntryLost(self.ledger_id, first, "it is not confirmed (yet)")
            entries += some
            first = some[-1].entry_id + 1
        return entries

    async def read_unconfirmed(self, first: int, last: int) -> list[Entry]:
        """Return what bookies hold of first..last without a gap, confirmed or not.

        Promises nothing beyond `last_add_confirmed`: such an entry was never acknowledged to
        anybody as far as this reader knows, a recovery may end the ledger before it, and then
        it never was part of it (rule 53). To be used by those who know that the ledger's
        writer is gone and decide by other means, or only look. A ledger that is CLOSED has
        no unconfirmed entries. Ends at the first entry that its bookies do not have. Raises
        `EntryUnavailable` if none of them answers, and as `read` does."""
        entries: list[Entry] = []
        while first <= last:
            some = await self._read_some(first, last, 1 << 20, 0.0, unconfirmed=True)
            if not some:
                break
            entries += some
            first = some[-1].entry_id + 1
        return entries

    async def read_some(
        self, first: int, *, last: int | None = None, bytes_max: int = 1 << 20, wait_s: float = 0.0
    ) -> list[Entry]:
        """Return confirmed entries from *first* on, in order, without a gap.

        At least one if there is one; about *bytes_max* at most. Waits up to *wait_s* for the
        first. Empty if time ran out, or if the ledger is CLOSED and ends before *first*."""
        return await self._read_some(first, last, bytes_max, wait_s)

    async def _read_some(
        self,
        first: int,
        last: int | None,
        bytes_max: int,
        wait_s: float,
        *,
        unconfirmed: bool = False,
    ) -> list[Entry]:
        if self._closed:
            raise HandleClosed(f"reader of ledger {self.ledger_id}")
        if self._deleted:  # the watch reports once, and not to the reads that begin later
            raise NoSuchLedger(self.ledger_id)
        if self.last_entry is not None and first > self.last_entry:
            return []
        read = Read(
            self._environment,
            self._credentials,
            self._known,
            first,
            last,
            bytes_max,
            wait_s,
            unconfirmed=unconfirmed,
        )
        self._reads[read] = None
        try:
            return await read.finished()
        finally:
            del self._reads[read]
            read.stop()

    async def read_last_add_confirmed(self) -> EntryId:
        """Ask the bookies for the last add confirmed; return the highest that is proven.

        Waits until every write set is covered, so a bookie that lags behind the others does
        not matter. Raises `BookieUnavailable` if too few answer, `KeyDiffers`, `AccessDenied`."""
        if self.last_entry is not None:
            return self.last_entry
        await self._ask_all()
        return self.last_add_confirmed

    async def read_last_stored(self) -> EntryId:
        """Return an entry above which none was acknowledged before this call.

        The highest one that bookies hold, confirmed or not; the last one iff CLOSED. It may
        never be acknowledged, and a recovery may end the ledger before it. Disturbs nobody.

        Story of why: an entry is acknowledged when an ack quorum of the fragment that was
        the last one then holds it. (A) The metadata is read after the call began, so its last
        fragment is that one or a later one. A later one begins above everything that was
        acknowledged before it (rule 19). (B) Bookies that cover every write set of it answer,
        so one of them is in each ack quorum.

        Raises `BookieUnavailable` if too few answer, `KeyDiffers`, `AccessDenied`,
        `NoSuchLedger`, `MetadataUnavailable`."""
        if self.last_entry is None:
            metadata, _ = await self._environment.ledgers.read(self.ledger_id, fresh=True)
            self._known.learn(metadata)
        if self.last_entry is not None:
            return self.last_entry
        before_fragment = self.metadata.last_fragment.first_entry - 1
        return EntryId(max(await self._ask_all(), before_fragment))

    def learn_confirmed(self, entry_id: int) -> None:
        """Let entries up to *entry_id* be read: the caller can prove that they are confirmed.

        For a ledger whose writer went on in another one, which shows that."""
        self._known.learn_confirmed(entry_id)

    async def _ask_all(self) -> int:
        """Ask bookies until each write set is covered; return the highest entry they hold."""
        bookies = self.metadata.last_fragment.bookies
        query = LacQuery(self.ledger_id, self._credentials.key)
        transport = self._environment.transport
        asking = {
            asyncio.ensure_future(transport.read_lac(bookie, query)): index
            for index, bookie in enumerate(bookies)
        }
        waiting, heard, stored = set(asking), dict[int, None](), int(NO_ENTRY)
        quorum = self.metadata.quorum
        met_stranger = was_denied = False
        try:
            while waiting and not all_covered(heard, quorum):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    answer = task.result()
                    met_stranger |= answer.status is Status.WRONG_KEY
                    was_denied |= answer.status is Status.ACCESS_DENIED
                    if answer.status in {Status.OK, Status.NO_SUCH_LEDGER}:
                        heard[asking[task]] = None
                        stored = max(stored, answer.last_entry)
                    mac = self._credentials.checks
                    proven = proven_lac(answer.lac_proof, self.ledger_id, mac)
                    self._known.learn_confirmed(proven)
        finally:
            for task in waiting:
                task.cancel()
        if not all_covered(heard, quorum):
            if met_stranger:
                raise KeyDiffers(self.ledger_id)
            if was_denied:
                what = f"read ledger {self.ledger_id}"
                raise self._environment.denied(what, "reader", self.metadata)
            silent = [bookie for index, bookie in enumerate(bookies) if index not in heard]
            raise BookieUnavailable(", ".join(silent), "no answer, and the others are too few")
        return stored

    async def refresh(self) -> LedgerMetadata:
        """Read the metadata again. Raises `NoSuchLedger`, `MetadataUnavailable`."""
        metadata, _ = await self._environment.ledgers.read(self.ledger_id)
        self._known.learn(metadata)
        return metadata

    async def close(self) -> None:
        """Stop watching; reads under way fail with `HandleClosed`."""
        self._closed = True
        for read in list(self._reads):
            read.fail(HandleClosed(f"reader of ledger {self.ledger_id}"))
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        """Wake the reads under way as soon as the ledger changes, closes or is deleted."""
        watch = self._environment.ledgers.watch(self.ledger_id)
        try:
            while True:  # first a look at what changed between the open and the watch
                event = await read_metadata(self._environment.ledgers, self.ledger_id)
                if not isinstance(event, shared.MetadataRead):
                    await asyncio.sleep(WATCH_RETRY_S)
                    continue
                self._known.learn(event.metadata)
                self._deleted |= event.metadata is None
                for read in list(self._reads):
                    read.post(event)
                if event.metadata is None or self.closed:
                    return
                await watch.changed()
        except LogError:
            return  # reads refresh the metadata themselves when they do not get on
        finally:
            watch.close()
