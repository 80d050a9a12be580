"""The handle of a reader: what it knows of its ledger, and the reads under way."""

import asyncio
from collections.abc import Mapping, Sequence
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
from ledger.machine_loop import read_metadata
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol import common_events
from ledger.protocol.answers import Fault, proven_lac
from ledger.protocol.read import LedgerChanged
from ledger.quorum import Quorum, all_covered
from ledger.read import Entry, Read
from ledger.reader_state import Known
from ledger.requests import LacAnswer, LacQuery, Status

__all__ = ["Entry", "LedgerReader"]

WATCH_RETRY_S: Final = 0.5
"""Pause after the metadata store did not answer."""
ENSEMBLES_MAX: Final = 10
"""How many ensembles in a row are asked what they hold, if each was replaced before the answer."""


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
        not matter. A lower bound: it says nothing of the entries above.

        Raises `BookieUnavailable` if too few answer, `KeyDiffers`, `AccessDenied`."""
        if self.last_entry is not None:
            return self.last_entry
        self._check(await self._ask_all(self.metadata.last_fragment.bookies))
        return self.last_add_confirmed

    async def read_last_stored(self) -> EntryId:
        """Return an entry above which none was acknowledged before this call.

        The highest one that bookies hold, confirmed or not; the last one iff CLOSED. It may
        never be acknowledged, and a recovery may end the ledger before it. Disturbs nobody.

        Story of why: an entry is acknowledged when an ack quorum of the fragment that was
        the last one then holds it. (A) Bookies that cover every write set of a fragment answer
        after the call began. (B) The metadata are read after the last answer. Only if that
        fragment is still the last one, and the ledger not CLOSED, the answers count. Then every
        member was named from the acknowledgement to the answer, so none had evicted the entry,
        and one of those that answered is in its ack quorum. What was acknowledged in an earlier
        fragment is below this one (rule 19).

        Raises `BookieUnavailable` if too few answer, `KeyDiffers`, `AccessDenied`,
        `NoSuchLedger`, `MetadataUnavailable`."""
        for _ in range(ENSEMBLES_MAX):
            if self.last_entry is not None:
                return self.last_entry
            asked = self.metadata.last_fragment
            answers = await self._ask_all(asked.bookies)
            metadata, _ = await self._environment.ledgers.read(self.ledger_id, fresh=True)
            self._known.learn(metadata)
            if metadata.last_entry is None and metadata.last_fragment == asked:
                self._check(answers)
                return EntryId(max(answers.last_entry, asked.first_entry - 1))
        names = ", ".join(self.metadata.last_fragment.bookies)
        raise BookieUnavailable(names, f"the ensemble changed {ENSEMBLES_MAX} times in a row")

    def learn_confirmed(self, entry_id: int) -> None:
        """Let entries up to *entry_id* be read: the caller can prove that they are confirmed.

        For a ledger whose writer went on in another one, which shows that."""
        self._known.learn_confirmed(entry_id)

    async def _ask_all(self, bookies: Sequence[BookieId]) -> "_Answers":
        """Ask *bookies*, the members of one fragment, until each write set is covered, or all have
        answered."""
        query = LacQuery(self.ledger_id, self._credentials.key)
        transport = self._environment.transport
        asking = {
            asyncio.ensure_future(transport.read_lac(bookie, query)): index
            for index, bookie in enumerate(bookies)
        }
        waiting, answers = set(asking), _Answers(bookies, self.metadata.quorum)
        try:
            while waiting and not answers.cover_all:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    answer = task.result()
                    answers.heard(asking[task], answer)
                    mac = self._credentials.checks
                    proven = proven_lac(answer.lac_proof, self.ledger_id, mac)
                    self._known.learn_confirmed(proven)
        finally:
            for task in waiting:
                task.cancel()
        return answers

    def _check(self, answers: "_Answers") -> None:
        """Raise why *answers* do not cover every write set, unless they do."""
        if answers.cover_all:
            return
        if answers.met_stranger:
            raise KeyDiffers(self.ledger_id)
        if answers.was_denied:
            what = f"read ledger {self.ledger_id}"
            raise self._environment.denied(what, "reader", self.metadata)
        names = ", ".join(answers.silent)
        raise BookieUnavailable(names, "no answer, and the others are too few")

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
                if not isinstance(event, common_events.MetadataRead):
                    await asyncio.sleep(WATCH_RETRY_S)
                    continue
                self._known.learn(event.metadata)
                self._deleted |= event.metadata is None
                for read in list(self._reads):
                    read.post(LedgerChanged(event.metadata))
                if event.metadata is None or self.closed:
                    return
                await watch.changed()
        except LogError:
            return  # reads refresh the metadata themselves when they do not get on
        finally:
            watch.close()


class _Answers:
    """What members of one fragment said that they hold."""

    def __init__(self, bookies: Sequence[BookieId], quorum: Quorum) -> None:
        self.last_entry = int(NO_ENTRY)
        """The highest one that any of them holds."""
        self.met_stranger = self.was_denied = False
        self._bookies, self._quorum = bookies, quorum
        self._heard: dict[int, None] = {}

    def heard(self, index: int, answer: LacAnswer) -> None:
        self.met_stranger |= answer.status is Status.WRONG_KEY
        self.was_denied |= answer.status is Status.ACCESS_DENIED
        if answer.status in {Status.OK, Status.NO_SUCH_LEDGER}:
            self._heard[index] = None
            self.last_entry = max(self.last_entry, answer.last_entry)

    @property
    def cover_all(self) -> bool:
        return all_covered(self._heard, self._quorum)

    @property
    def silent(self) -> list[BookieId]:
        return [each for index, each in enumerate(self._bookies) if index not in self._heard]
