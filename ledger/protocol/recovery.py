"""Recovery of one ledger: fence it, find its last entry, close it. Anyone may, at any time.

Steps (rules 38-50): CAS the state to IN_RECOVERY; fence the bookies of the last fragment
until every write set is covered; read forward from the highest LAC, writing every entry
found back, verbatim, to Qa bookies; at the first entry that is provably absent, CAS CLOSED.
Any doubt ends in an error and leaves the ledger IN_RECOVERY, for the next try.

Reads go to the ensemble as it was when recovery began, never to a bookie that this recovery
put in (rule 42), and each carries the fence flag (rule 32). Ensemble changes stay local
until the closing CAS records them (rule 46). Concurrent recoverers converge: the first
closing CAS wins and all others adopt what it wrote (rule 47).

The machine knows ids and lengths; the driver keeps the verified frames that it was told of
in `EntriesRead` and sends them as `WriteBack` names them.

Invariants (asserted by `check`):
    write-back is confirmed in order and never beyond what was found
    the end is decided only with coverage of explicit negatives at end + 1
    nothing is closed before everything found was written back
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, assert_never

from ledger.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol.acks import AckTracker
from ledger.protocol.answers import Found, fence_is_certain
from ledger.protocol.shared import (
    ChooseReplacements,
    MetadataEffect,
    MetadataEvent,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReadMetadata,
    ReplacementsChosen,
    TimePassed,
    WriteMetadata,
)
from ledger.quorum import all_covered, covered, write_set
from ledger.requests import LacAnswer, Status

READ_AHEAD_ENTRIES: Final = 256
"""How far beyond the first undecided entry a recovery read asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    attempts_max: int = 5
    """How often a request to a bookie, or a metadata operation, is tried."""
    retry_s: float = 0.2
    """Pause before trying again what failed."""
    busy_attempts_max: int = 200
    """How often a write-back is sent to a bookie that answers that it is too busy."""
    grace_s: float = 2.0
    """With Qw = Qa: how long a single "no" waits for the others to contradict it (rule 44)."""


# Events.


@dataclass(frozen=True, slots=True)
class RecoveryStarted:
    pass


@dataclass(frozen=True, slots=True)
class LacRead:
    """Answer to `SendFence`. *fenced*: the bookie said that its fence is durable."""

    index: int
    fenced: bool
    last_add_confirmed: int
    status: Status


@dataclass(frozen=True, slots=True)
class EntriesRead:
    """Answer to `SendRead`: verified entries with the length in their header, and how far
    the bookie's silence about an id is a promise that it is not there. No promise at all
    if *answered* is False: an error, a time-out, a refusal (rule 43)."""

    index: int
    first: int
    answered: bool
    found: Mapping[int, int] = field(default_factory=dict)
    """id -> cumulative length"""
    considered: int = -1


@dataclass(frozen=True, slots=True)
class BaseRead:
    """Answer to `ReadBase`: cumulative length at that entry, or None if this bookie failed."""

    index: int
    length: int | None


@dataclass(frozen=True, slots=True)
class WriteBackStored:
    index: int
    generation: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class WriteBackRefused:
    index: int
    generation: int
    first: int
    last: int
    status: Status


RecoveryEvent = (
    RecoveryStarted
    | LacRead
    | EntriesRead
    | BaseRead
    | WriteBackStored
    | WriteBackRefused
    | ReplacementsChosen
    | MetadataEvent
    | TimePassed
)


# Effects.


@dataclass(frozen=True, slots=True)
class SendFence:
    """Read the LAC with the fence flag."""

    index: int
    bookie: BookieId


@dataclass(frozen=True, slots=True)
class SendRead:
    """Read first..last with the fence flag."""

    index: int
    bookie: BookieId
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ReadBase:
    """Read entry *entry_id*, which is confirmed, only for the length in its header."""

    index: int
    bookie: BookieId
    entry_id: int


@dataclass(frozen=True, slots=True)
class WriteBack:
    """Send those of first..last that *index* holds as recovery adds, their bytes unchanged."""

    index: int
    bookie: BookieId
    generation: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ForgetEntries:
    """Frames up to *last* are not needed any more."""

    last: int


@dataclass(frozen=True, slots=True)
class FinishRecovery:
    """The ledger is CLOSED, by this recovery or by somebody else."""

    metadata: LedgerMetadata
    version: int


class Failure(Enum):
    NOT_COVERED = "too few of its bookies confirmed the fence"
    UNDECIDED = "too few of its bookies answered to know whether an entry exists"
    BASE_UNREADABLE = "its last confirmed entry could not be read from any replica"
    NOT_ENOUGH_BOOKIES = "too few bookies took the entries that were written back"
    WRONG_KEY = "the bookies refuse the password"
    DELETED = "the ledger was deleted"
    METADATA_UNAVAILABLE = "the metadata store did not answer"


@dataclass(frozen=True, slots=True)
class FailRecovery:
    failure: Failure


RecoveryEffect = (
    SendFence
    | SendRead
    | ReadBase
    | WriteBack
    | ForgetEntries
    | ChooseReplacements
    | MetadataEffect
    | FinishRecovery
    | FailRecovery
)


class Phase(Enum):
    NEW = "new"
    MARKING = "writing IN_RECOVERY"
    FENCING = "fencing"
    READING = "reading and writing back"
    CLOSING = "writing CLOSED"
    DONE = "done"
    FAILED = "failed"


class Recovery:
    def __init__(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        version: int,
        config: RecoveryConfig | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.version = version
        self.phase = Phase.NEW
        self.last_found = NO_ENTRY
        """Highest entry that is known to belong to the ledger."""
        self._config = config or RecoveryConfig()
        self._quorum = metadata.quorum
        self._attempts: dict[tuple[str, int], int] = {}
        self._retries: list[tuple[float, RecoveryEffect]] = []
        self._metadata_tries = 0
        self._metadata_retry_at: float | None = None
        # Fencing.
        self._ensemble = metadata.last_fragment.bookies
        self._fenced: dict[int, int] = {}
        """index -> LAC it proved"""
        # Reading: all about the first undecided entry, last_found + 1.
        self._reading: dict[int, int] = {}
        """index -> first id of the read under way"""
        self._found: dict[int, int] = {}
        """Found at or above the first undecided entry: id -> cumulative length."""
        self._considered: dict[int, int] = {}
        """index -> how far its silence is a promise"""
        self._gave_up: dict[int, None] = {}
        self._grace_until: float | None = None
        self._end_found = False
        self._base: int = NO_ENTRY
        self._length: int | None = None
        self._base_failed: dict[int, None] = {}
        # Writing back.
        self._acks: AckTracker | None = None
        self._failed: dict[int, Status] = {}
        self._gone: dict[BookieId, None] = {}
        self._choosing = False
        self._local: LedgerMetadata | None = None
        """The ledger with the ensemble changes of this recovery, written only by the close."""
        self._closing: LedgerMetadata | None = None

    def deadline(self) -> float | None:
        if self.phase in {Phase.DONE, Phase.FAILED}:
            return None
        times = [at for at, _ in self._retries]
        if self._metadata_retry_at is not None:
            times.append(self._metadata_retry_at)
        if self._grace_until is not None:
            times.append(self._grace_until)
        return min(times, default=None)

    def step(self, event: RecoveryEvent, *, now: float) -> list[RecoveryEffect]:
        """Apply *event*; return what the driver must do, in order."""
        if self.phase in {Phase.DONE, Phase.FAILED}:
            return []
        effects: list[RecoveryEffect]
        match event:
            case RecoveryStarted():
                effects = self._adopt(self.metadata, self.version)
            case LacRead():
                effects = self._lac_read(event, now)
            case EntriesRead():
                effects = self._entries_read(event, now)
            case BaseRead():
                effects = self._base_read(event, now)
            case WriteBackStored():
                effects = self._write_back_stored(event)
            case WriteBackRefused():
                effects = self._write_back_refused(event, now)
            case ReplacementsChosen():
                effects = self._replacements_chosen(event)
            case MetadataWritten():
                effects = self._metadata_written(event.version)
            case MetadataRead():
                effects = self._metadata_read(event)
            case MetadataFailed():
                effects = self._metadata_failed(now)
            case TimePassed():
                effects = self._time_passed(now)
            case _:
                assert_never(event)
        self.check()
        return effects

    def check(self) -> None:
        if self._acks is not None:
            assert self._acks.confirmed <= self.last_found
        if self.phase is Phase.CLOSING:
            assert self._acks is not None
            assert self._end_found
            assert self._acks.confirmed == self.last_found
            assert self._length is not None

    # Metadata: IN_RECOVERY first, CLOSED last.

    def _adopt(self, metadata: LedgerMetadata, version: int) -> list[RecoveryEffect]:
        """Go on from what is stored, whoever wrote it."""
        self.metadata, self.version = metadata, version
        if metadata.state is LedgerState.CLOSED:
            self.phase = Phase.DONE
            return [FinishRecovery(metadata, version)]
        if self.phase is Phase.CLOSING:
            return self._close()
        if metadata.state is LedgerState.OPEN:
            self.phase = Phase.MARKING
            return [WriteMetadata(metadata.in_recovery(), version)]
        return self._begin_fencing()

    def _metadata_written(self, version: int) -> list[RecoveryEffect]:
        if self.phase is Phase.MARKING:
            self.metadata, self.version = self.metadata.in_recovery(), version
            return self._begin_fencing()
        if self.phase is Phase.CLOSING and self._closing is not None:
            self.phase = Phase.DONE
            return [FinishRecovery(self._closing, version)]
        return []

    def _metadata_read(self, event: MetadataRead) -> list[RecoveryEffect]:
        if event.metadata is None:
            return self._fail(Failure.DELETED)
        if self.phase in {Phase.MARKING, Phase.CLOSING}:
            return self._adopt(event.metadata, event.version)
        if event.metadata.state is LedgerState.CLOSED:
            return self._adopt(event.metadata, event.version)
        return []

    def _metadata_failed(self, now: float) -> list[RecoveryEffect]:
        self._metadata_tries += 1
        if self._metadata_tries >= self._config.attempts_max:
            return self._fail(Failure.METADATA_UNAVAILABLE)
        self._metadata_retry_at = now + self._config.retry_s
        return []

    # Fencing.

    def _begin_fencing(self) -> list[RecoveryEffect]:
        self.phase = Phase.FENCING
        self._ensemble = self.metadata.last_fragment.bookies
        return [SendFence(index, bookie) for index, bookie in enumerate(self._ensemble)]

    def _lac_read(self, event: LacRead, now: float) -> list[RecoveryEffect]:
        if self.phase not in {Phase.FENCING, Phase.READING}:
            return []
        if event.status is Status.WRONG_KEY:
            return self._fail(Failure.WRONG_KEY)
        if not event.fenced:
            if self.phase is Phase.READING:
                return []  # covered without it; its reads fence it if it comes back
            again = SendFence(event.index, self._ensemble[event.index])
            return self._retry("fence", event.index, again, now, Failure.NOT_COVERED)
        self._fenced[event.index] = event.last_add_confirmed
        if self.phase is Phase.READING or not all_covered(self._fenced, self._quorum):
            return []
        return self._begin_reading()

    # Reading forward.

    def _begin_reading(self) -> list[RecoveryEffect]:
        self.phase = Phase.READING
        self._retries.clear()
        fragment = self.metadata.last_fragment
        lac = max(self._fenced.values())
        # Never below the last fragment: the earlier ones are immutable (rule 41).
        self._base = max(lac, fragment.first_entry - 1)
        self.last_found = EntryId(self._base)
        self._acks = AckTracker(self._quorum, self._ensemble, confirmed=self._base)
        self._local = self.metadata
        effects = self._read_ahead()
        if self._base == NO_ENTRY:
            self._length = 0
            return effects
        return effects + self._base_reads()

    def _base_reads(self) -> list[RecoveryEffect]:
        bookies = self.metadata.fragment_of(self._base).bookies
        return [
            ReadBase(index, bookies[index], self._base)
            for index in write_set(self._base, self._quorum)
        ]

    def _read_ahead(self) -> list[RecoveryEffect]:
        """Ask every bookie that is idle for what it knows from the first undecided entry on."""
        effects: list[RecoveryEffect] = []
        undecided = self.last_found + 1
        for index, bookie in enumerate(self._ensemble):
            known = self._considered.get(index, undecided - 1)
            if index in self._reading or index in self._gave_up or known >= undecided:
                continue
            self._reading[index] = undecided
            last = undecided + READ_AHEAD_ENTRIES - 1
            effects.append(SendRead(index, bookie, undecided, last))
        return effects

    def _entries_read(self, event: EntriesRead, now: float) -> list[RecoveryEffect]:
        if self.phase is not Phase.READING or self._reading.get(event.index) != event.first:
            return []
        del self._reading[event.index]
        for entry_id, length in event.found.items():
            if entry_id > self.last_found:
                self._found[entry_id] = length
        if event.answered and event.considered >= event.first:
            self._considered[event.index] = max(
                event.considered, self._considered.get(event.index, -1)
            )
            self._attempts.pop(("read", event.index), None)
            return self._decide(now)
        if self._end_found:
            return []
        if self._count_attempt("read", event.index):
            bookie = self._ensemble[event.index]
            last = event.first + READ_AHEAD_ENTRIES - 1
            again = SendRead(event.index, bookie, event.first, last)
            self._reading[event.index] = event.first
            self._retries.append((now + self._config.retry_s, again))
        else:
            self._gave_up[event.index] = None
        return self._decide(now)

    def _decide(self, now: float) -> list[RecoveryEffect]:
        """Decide entries in order: found, absent, or not known yet (rule 43)."""
        effects: list[RecoveryEffect] = []
        first = self.last_found + 1
        while not self._end_found and self.last_found + 1 in self._found:
            self.last_found = EntryId(self.last_found + 1)
            self._length = self._found.pop(self.last_found)
            self._grace_until = None
        if self.last_found >= first:
            effects += self._write_back(range(len(self._ensemble)), first)
        if not self._end_found:
            effects += self._decide_end(now)
        return effects + self._try_close()

    def _decide_end(self, now: float) -> list[RecoveryEffect]:
        undecided = self.last_found + 1
        negatives = {
            index for index, considered in self._considered.items() if considered >= undecided
        }
        if not covered(negatives, undecided, self._quorum):
            if self._is_stuck(undecided):
                return self._fail(Failure.UNDECIDED)
            return self._read_ahead()
        silent = [
            index
            for index in write_set(undecided, self._quorum)
            if index not in negatives and index not in self._gave_up
        ]
        if self._quorum.coverage == 1 and silent:
            # One bookie that forgot must not end the ledger while others may know better.
            if self._grace_until is None:
                self._grace_until = now + self._config.grace_s
            if now < self._grace_until:
                return self._read_ahead()
        self._grace_until = None
        self._end_found = True
        self._retries = [each for each in self._retries if not isinstance(each[1], SendRead)]
        return []

    def _is_stuck(self, undecided: int) -> bool:
        """Return True iff nobody of the write set is left who could still decide."""
        return all(
            index in self._gave_up or self._considered.get(index, -1) >= undecided
            for index in write_set(undecided, self._quorum)
        )

    def _base_read(self, event: BaseRead, now: float) -> list[RecoveryEffect]:
        if self.phase is not Phase.READING or self._length is not None:
            return []
        if event.length is not None:
            self._length = event.length
            return self._try_close()
        bookie = self.metadata.fragment_of(self._base).bookies[event.index]
        if self._count_attempt("base", event.index):
            again = ReadBase(event.index, bookie, self._base)
            self._retries.append((now + self._config.retry_s, again))
            return []
        self._base_failed[event.index] = None
        if len(self._base_failed) < self._quorum.write or not self._end_found:
            return []
        return self._fail(Failure.BASE_UNREADABLE)

    # Writing back.

    def _write_back(self, indexes: range | list[int], first: int) -> list[RecoveryEffect]:
        assert self._acks is not None
        effects: list[RecoveryEffect] = []
        for index in indexes:
            slot = self._acks.slots[index]
            if not slot.down and self._acks.wants(index, first, self.last_found):
                effects.append(
                    WriteBack(index, slot.bookie, slot.generation, first, self.last_found)
                )
        return effects

    def _write_back_again(self, sent: WriteBack) -> list[RecoveryEffect]:
        """Send to a bookie that was busy what is still needed of it."""
        assert self._acks is not None
        first = max(sent.first, self._acks.confirmed + 1)
        slot = self._acks.slots[sent.index]
        current = self._acks.is_current(sent.index, sent.generation)
        if not current or slot.down or not self._acks.wants(sent.index, first, sent.last):
            return []
        return [WriteBack(sent.index, slot.bookie, slot.generation, first, sent.last)]

    def _write_back_stored(self, event: WriteBackStored) -> list[RecoveryEffect]:
        if self._acks is None:
            return []
        self._acks.stored(event.index, event.generation, event.first, event.last)
        return self._advance()

    def _advance(self) -> list[RecoveryEffect]:
        assert self._acks is not None
        if self._choosing:
            return []  # as for the writer: nothing is confirmed while the ensemble changes
        before = self._acks.confirmed
        if self._acks.advance(self.last_found) == before:
            return []
        return [ForgetEntries(self._acks.confirmed), *self._try_close()]

    def _write_back_refused(self, event: WriteBackRefused, now: float) -> list[RecoveryEffect]:
        if self._acks is None or not self._acks.is_current(event.index, event.generation):
            return []
        slot = self._acks.slots[event.index]
        if slot.down:
            return []
        busy = event.status is Status.TOO_MANY_REQUESTS
        if busy and self._count_attempt("busy", event.index, self._config.busy_attempts_max):
            again = WriteBack(event.index, slot.bookie, event.generation, event.first, event.last)
            self._retries.append((now + self._config.retry_s, again))
            return []
        slot.down = True
        self._failed[event.index] = event.status
        self._gone[slot.bookie] = None
        return [] if self._choosing else [self._choose()]

    def _choose(self) -> ChooseReplacements:
        assert self._acks is not None
        self._choosing = True
        exclude = dict.fromkeys((*self._acks.bookies, *self._ensemble, *self._gone))
        indexes = tuple(sorted(self._failed))
        return ChooseReplacements(indexes, tuple(exclude), self._acks.bookies)

    def _replacements_chosen(self, event: ReplacementsChosen) -> list[RecoveryEffect]:
        if self._acks is None or not self._choosing:
            return []
        self._choosing = False
        if not event.bookies:
            if not self._acks.quorum_is_up():
                return self._fail(Failure.NOT_ENOUGH_BOOKIES)  # never close short (rule 26)
            return self._advance()
        replaced = []
        for index, bookie in event.bookies:
            self._acks.replace(index, bookie)
            self._failed.pop(index, None)
            replaced.append(index)
        assert self._local is not None
        begin = EntryId(self._acks.confirmed + 1)
        self._local = self._local.with_ensemble(begin, self._acks.bookies)
        effects: list[RecoveryEffect] = []
        if self.last_found > self._acks.confirmed:
            effects += self._write_back(replaced, self._acks.confirmed + 1)
        if self._failed:
            return [*effects, self._choose()]
        return effects + self._advance()

    # The end.

    def _try_close(self) -> list[RecoveryEffect]:
        if not self._end_found or self._acks is None or self._choosing:
            return []
        if self.phase is not Phase.READING or self._acks.confirmed < self.last_found:
            return []
        if self._length is None:
            if len(self._base_failed) >= self._quorum.write:
                return self._fail(Failure.BASE_UNREADABLE)
            return []
        return self._close()

    def _close(self) -> list[RecoveryEffect]:
        """Write CLOSED, keeping what re-replication did to older fragments meanwhile."""
        assert self._length is not None
        assert self._local is not None
        self.phase = Phase.CLOSING
        older = len(self.metadata.fragments) - 1
        fragments = self.metadata.fragments[:older] + self._local.fragments[older:]
        merged = replace(self.metadata, fragments=fragments)
        self._closing = merged.closed(self.last_found, self._length)
        return [WriteMetadata(self._closing, self.version)]

    # Trying again.

    def _count_attempt(self, kind: str, index: int, most: int | None = None) -> bool:
        """Return True iff one more try is allowed."""
        tries = self._attempts.get((kind, index), 0) + 1
        self._attempts[kind, index] = tries
        return tries < (self._config.attempts_max if most is None else most)

    def _retry(
        self, kind: str, index: int, effect: RecoveryEffect, now: float, failure: Failure
    ) -> list[RecoveryEffect]:
        if self._count_attempt(kind, index):
            self._retries.append((now + self._config.retry_s, effect))
            return []
        self._gave_up[index] = None
        left = [i for i in range(self._quorum.ensemble) if i not in self._gave_up]
        if all_covered(left, self._quorum):
            return []
        return self._fail(failure)

    def _time_passed(self, now: float) -> list[RecoveryEffect]:
        due = [effect for at, effect in self._retries if at <= now]
        self._retries = [(at, effect) for at, effect in self._retries if at > now]
        effects: list[RecoveryEffect] = []
        for effect in due:
            if isinstance(effect, WriteBack):
                effects += self._write_back_again(effect)
            else:
                effects.append(effect)
        if self._metadata_retry_at is not None and now >= self._metadata_retry_at:
            self._metadata_retry_at = None
            effects.append(ReadMetadata())
        if self._grace_until is not None and now >= self._grace_until:
            effects += self._decide(now)
        return effects

    def _fail(self, failure: Failure) -> list[RecoveryEffect]:
        self.phase = Phase.FAILED
        self._retries.clear()
        self._grace_until = None
        self._metadata_retry_at = None
        return [FailRecovery(failure)]


def lac_read(asked: SendFence, answer: LacAnswer, proven: int) -> LacRead:
    """Return the event that *answer* means; *proven* is the LAC that its proof carries."""
    return LacRead(asked.index, fence_is_certain(answer), proven, answer.status)


def entries_read(asked: SendRead, found: Found) -> EntriesRead:
    """Return the event that a verified answer means.

    Only a bookie that says that its fence is durable has answered at all (rules 33, 40); then
    its never having heard of the ledger is a promise about every entry."""
    return EntriesRead(
        asked.index,
        asked.first,
        answered=found.fenced and found.status in {Status.OK, Status.NO_SUCH_LEDGER},
        found={entry_id: header.length for entry_id, header in found.headers.items()},
        considered=asked.last if found.status is Status.NO_SUCH_LEDGER else found.considered,
    )
