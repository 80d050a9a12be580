"""The handle of a reader: what it knows of its ledger, and the reads under way.

Each read drives a machine of its own (`protocol.read`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from ledger import metrics
from ledger.entry import payload_of
from ledger.environment import Credentials, Environment
from ledger.errors import (
    BookieUnavailable,
    EntryLost,
    EntryUnavailable,
    HandleClosed,
    KeyDiffers,
    LogError,
    NoSuchLedger,
)
from ledger.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from ledger.log_events import get_logger
from ledger.machine_loop import MachineLoop, read_metadata
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol import common
from ledger.protocol import read as protocol
from ledger.protocol.answers import Fault, Found, RepairHint, proven_lac, repair_hints, verified
from ledger.protocol.read import LedgerChanged
from ledger.quorum import Quorum, all_covered
from ledger.requests import LacAnswer, LacQuery, ReadQuery, Status

__all__ = ["Entry", "LedgerReader"]
WATCH_RETRY_S: Final = 0.5
"""Pause after the metadata store did not answer."""
ENSEMBLES_MAX: Final = 10
"""How many ensembles in a row are asked what they hold, if each was replaced before the answer."""
_log = get_logger(__name__)


class ReaderState:
    """Invariants: `last_add_confirmed` only grows as long as the ledger is not CLOSED; what is
    CLOSED stays so."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        self.hints: dict[tuple[BookieId, Fault], int] = {}
        """See `LedgerReader.repair_hints`."""
        self._ledger_id = ledger_id
        self._lac = NO_ENTRY

    @property
    def closed(self) -> bool:
        return self.metadata.state is LedgerState.CLOSED

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that may be read."""
        last_entry = self.metadata.last_entry
        return self._lac if last_entry is None else last_entry

    def learn(self, metadata: LedgerMetadata | None) -> None:
        if metadata is not None and not (self.closed and metadata.state is not LedgerState.CLOSED):
            self.metadata = metadata  # else a late reply: CLOSED is terminal

    def learn_confirmed(self, entry_id: int) -> None:
        self._lac = EntryId(max(self._lac, entry_id))

    def take_hint(self, hint: RepairHint) -> None:
        """Count *hint*; log the first one of its kind."""
        of = (hint.bookie, hint.fault)
        report = _log.debug if of in self.hints else _reporter(hint.fault)
        self.hints[of] = self.hints.get(of, 0) + hint.count
        metrics.REPAIR_HINTS.add(hint.fault.name.lower(), by=hint.count)
        report(
            "replica_wants_repair",
            ledger_id=self._ledger_id,
            bookie=hint.bookie,
            entry_id=hint.entry_id,
            fault=hint.fault.value,
            count=hint.count,
        )


def _reporter(fault: Fault) -> Callable[..., None]:
    """Return what the first hint of *fault* is logged by."""
    match fault:
        case Fault.MISSING:
            return _log.info  # it may still be on its way: the ack quorum did not wait for this one
        case Fault.DAMAGED:
            return _log.warning
        case _:
            assert_never(fault)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as read and verified."""

    entry_id: EntryId
    payload: memoryview
    last_add_confirmed: int
    length: int
    """Payload bytes of this entry and all before it."""
    frame: memoryview
    """The entry as bookies store it: header, payload, authentication code."""


class Read:
    """One call of `LedgerReader.read_some`."""

    def __init__(
        self,
        environment: Environment,
        credentials: Credentials,
        known: ReaderState,
        first: int,
        last: int | None,
        bytes_max: int,
        wait_s: float,
        *,
        unconfirmed: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._environment = environment
        self._credentials = credentials
        self._known = known
        self._first = first
        self._bytes_max = bytes_max
        self._entries: dict[int, Entry] = {}
        self._delivered: list[Entry] = []
        self._over: asyncio.Future[None] = loop.create_future()
        self._failures: list[str] = []
        self._machine = protocol.Reading(
            known.metadata,
            first=first,
            last=(1 << 62) if last is None else last,
            last_add_confirmed=known.last_add_confirmed,
            give_up_at=loop.time() + wait_s,
            avoid=environment.quarantined(),
            unconfirmed=unconfirmed,
        )
        self._run: MachineLoop[protocol.ReadingEvent, protocol.ReadingEffect] = MachineLoop(
            self._machine,
            self._execute,
            time_passed=common.TimePassed(),
            broken=self.fail,
        )

    async def finished(self) -> list[Entry]:
        self.post(protocol.ReadStarted())
        await self._over
        return self._delivered

    def post(self, event: protocol.ReadingEvent) -> None:
        self._run.post(event)

    def fail(self, error: BaseException) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def stop(self) -> None:
        """End it, and keep nothing of what was read: a machine and its driver know each other, so
        what they hold goes with the next search for garbage, which may be some time."""
        self._run.stop()
        self._entries, self._delivered = {}, []

    def _execute(self, effect: protocol.ReadingEffect) -> None:
        match effect:
            case protocol.SendRead():
                self._run.spawn(self._read(effect))
            case common.ReadMetadata():
                ledgers = self._environment.ledgers
                self._run.spawn(read_metadata(ledgers, self._credentials.ledger_id))
            case protocol.Deliver():
                self._learn()
                if not self._over.done():
                    ids: Sequence[int] = range(effect.first, effect.last + 1)
                    self._delivered = [self._entries[entry_id] for entry_id in ids]
                    self._over.set_result(None)
            case protocol.FailRead():
                self._learn()
                self.fail(self._error_of(effect.failure))
            case _:
                assert_never(effect)

    async def _read(self, effect: protocol.SendRead) -> protocol.ReadingEvent:
        query = ReadQuery(
            self._credentials.ledger_id,
            self._credentials.key,
            effect.first,
            effect.last,
            bytes_max=self._bytes_max,
            wait_ms=effect.wait_ms,
        )
        confirmed = self._known.last_add_confirmed
        answer = await self._environment.transport.read(effect.bookie, query)
        found = verified(answer, self._credentials.ledger_id, self._credentials.checks)
        self._report(effect, found, confirmed)
        for entry_id, header in found.headers.items():
            frame = found.frames[entry_id]
            self._entries[entry_id] = Entry(
                EntryId(entry_id),
                payload_of(frame, header),
                header.last_add_confirmed,
                header.length,
                frame,
            )
        if found.damaged is not None:
            metrics.DIGEST_MISMATCHES.add()
        elif found.status is not Status.OK:
            metrics.REFUSED_READS.add(found.status.name.lower())
        if found.damaged is not None or found.status is not Status.OK:
            self._failures.append(f"{effect.bookie}: {found.status.name}")
        return protocol.EntriesRead(
            effect.index,
            effect.attempt,
            found.status,
            tuple(found.headers),
            found.last_add_confirmed,
            found.fenced,
        )

    def _report(self, asked: protocol.SendRead, found: Found, confirmed: int) -> None:
        damaged = found.damaged is not None
        self._environment.reported(asked.bookie, Status.DAMAGED if damaged else found.status)
        hints = repair_hints(
            found,
            bookie=asked.bookie,
            index=asked.index,
            asked=range(asked.first, asked.last + 1),
            confirmed=confirmed,
            quorum=self._known.metadata.quorum,
        )
        metadata = self._known.metadata
        for hint in hints:
            self._known.take_hint(hint)
            # Else it may still be on its way, and repair has nothing to do with it.
            if metadata.settled_end(metadata.fragment_of(hint.entry_id)) is not None:
                self._environment.suspect(self._credentials.ledger_id, hint)

    def _learn(self) -> None:
        self._known.learn(self._machine.metadata)
        self._known.learn_confirmed(self._machine.last_add_confirmed)

    def _error_of(self, failure: protocol.ReadFailure) -> LogError:
        ledger_id = self._credentials.ledger_id
        reason = "; ".join(dict.fromkeys(self._failures)) or failure.value
        match failure:
            case protocol.ReadFailure.DELETED:
                return NoSuchLedger(ledger_id)
            case protocol.ReadFailure.WRONG_KEY:
                return KeyDiffers(ledger_id)
            case protocol.ReadFailure.ACCESS_DENIED:
                what = f"read ledger {ledger_id}"
                return self._environment.denied(what, "reader", self._known.metadata)
            case protocol.ReadFailure.LOST:
                return EntryLost(ledger_id, self._first, reason)
            case protocol.ReadFailure.UNAVAILABLE:
                return EntryUnavailable(ledger_id, self._first, reason)
            case _:
                assert_never(failure)


class LedgerReader:
    """Reads one ledger; never disturbs its writer. Safe to use for several reads at once."""

    def __init__(
        self,
        environment: Environment,
        credentials: Credentials,
        metadata: LedgerMetadata,
    ) -> None:
        self.ledger_id: LedgerId = credentials.ledger_id
        self._known = ReaderState(credentials.ledger_id, metadata)
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
    def custom(self) -> Mapping[str, bytes]:
        """Custom metadata of the ledger, as this reader knows them."""
        return self._known.metadata.custom

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
                if not isinstance(event, common.MetadataRead):
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
