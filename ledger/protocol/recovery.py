"""Recovery of one ledger: fence it, find its last entry, close it. Anyone may, at any time.

Steps (rules 38-50): CAS the state to IN_RECOVERY; fence the bookies of the last fragment
until every write set is covered (`Fencing`); read forward from the highest LAC (`EndSearch`),
writing every entry found back, verbatim, to Qa bookies (`WriteBacks`); at the first entry that
is provably absent, CAS CLOSED. Any doubt ends in an error and leaves the ledger IN_RECOVERY,
for the next try.

Reads go to the ensemble as it was when recovery began, never to a bookie that this recovery
put in (rule 42), and each carries the fence flag (rule 32). Ensemble changes stay local
until the closing CAS records them (rule 46). Concurrent recoverers converge: the first
closing CAS wins and all others adopt what it wrote (rule 47).

The machine knows ids and lengths; the driver keeps the verified frames that it reported in
`RecoveryEntriesRead` and sends them as `WriteBack` names them.

Invariants (asserted by `check`):
    write-back is confirmed in order and never beyond what was found
    nothing is closed before the end was found, its length known and all written back
"""

from dataclasses import replace
from enum import Enum
from typing import assert_never

from ledger.ids import NO_ENTRY, EntryId, LedgerId
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol.common import (
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReadMetadata,
    ReplacementsChosen,
    Retries,
    TimePassed,
    WriteMetadata,
)
from ledger.protocol.recovery_events import (
    BaseRead,
    FailRecovery,
    FinishRecovery,
    LacRead,
    RecoveryConfig,
    RecoveryEffect,
    RecoveryEntriesRead,
    RecoveryEvent,
    RecoveryFailure,
    RecoveryStarted,
    Request,
    TailEvent,
    WriteBack,
    WriteBackRefused,
    WriteBackStored,
)
from ledger.protocol.recovery_phases import EndSearch, Fencing, WriteBacks


class RecoveryPhase(Enum):
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
        self.phase = RecoveryPhase.NEW
        self._config = config or RecoveryConfig()
        self._retries = Retries[Request](self._config.retry_s)
        self._metadata_tries = 0
        self._metadata_retry_at: float | None = None
        self._fencing: Fencing | None = None
        self._search: EndSearch | None = None
        self._copies: WriteBacks | None = None
        self._closing: LedgerMetadata | None = None

    @property
    def last_found(self) -> EntryId:
        """Highest entry that is known to belong to the ledger."""
        return NO_ENTRY if self._search is None else self._search.last_found

    def deadline(self) -> float | None:
        if self.phase in {RecoveryPhase.DONE, RecoveryPhase.FAILED}:
            return None
        grace_until = None if self._search is None else self._search.grace_until
        times = (self._retries.deadline(), self._metadata_retry_at, grace_until)
        return min((at for at in times if at is not None), default=None)

    def step(self, event: RecoveryEvent, *, now: float) -> list[RecoveryEffect]:
        """Apply *event*; return what the driver must do, in order."""
        if self.phase in {RecoveryPhase.DONE, RecoveryPhase.FAILED}:
            return []
        effects: list[RecoveryEffect]
        match event:
            case RecoveryStarted():
                effects = self._adopt(self.metadata, self.version)
            case LacRead():
                effects = self._lac_read(event, now)
            case MetadataWritten():
                effects = self._metadata_written(event.version)
            case MetadataRead():
                effects = self._metadata_read(event)
            case MetadataFailed():
                effects = self._metadata_failed(now)
            case TimePassed():
                effects = self._time_passed(now)
            case _:
                effects = self._read_on(event, now)
        self.check()
        return effects

    def check(self) -> None:
        if self._search is None or self._copies is None:
            assert self.phase not in {RecoveryPhase.READING, RecoveryPhase.CLOSING}
            return
        assert self._copies.confirmed <= self._search.last_found
        if self.phase is RecoveryPhase.CLOSING:
            assert self._search.end_found
            assert self._search.length is not None
            assert self._copies.confirmed == self._search.last_found

    # Metadata: IN_RECOVERY first, CLOSED last.

    def _adopt(self, metadata: LedgerMetadata, version: int) -> list[RecoveryEffect]:
        """Go on from what is stored, whoever wrote it."""
        self.metadata, self.version = metadata, version
        if metadata.state is LedgerState.CLOSED:
            return self._finish(metadata, version)
        if self.phase is RecoveryPhase.CLOSING:
            return self._close()
        if metadata.state is LedgerState.OPEN:
            self.phase = RecoveryPhase.MARKING
            return [WriteMetadata(metadata.in_recovery(), version)]
        return self._begin_fencing()

    def _metadata_written(self, version: int) -> list[RecoveryEffect]:
        if self.phase is RecoveryPhase.MARKING:
            self.metadata, self.version = self.metadata.in_recovery(), version
            return self._begin_fencing()
        if self.phase is RecoveryPhase.CLOSING and self._closing is not None:
            return self._finish(self._closing, version)
        return []

    def _metadata_read(self, event: MetadataRead) -> list[RecoveryEffect]:
        if event.metadata is None:
            return self._fail(RecoveryFailure.DELETED)
        if self.phase in {RecoveryPhase.MARKING, RecoveryPhase.CLOSING}:
            return self._adopt(event.metadata, event.version)
        return []

    def _metadata_failed(self, now: float) -> list[RecoveryEffect]:
        self._metadata_tries += 1
        if self._metadata_tries >= self._config.attempts_max:
            return self._fail(RecoveryFailure.METADATA_UNAVAILABLE)
        self._metadata_retry_at = now + self._config.retry_s
        return []

    # Fencing.

    def _begin_fencing(self) -> list[RecoveryEffect]:
        self.phase = RecoveryPhase.FENCING
        self._fencing = Fencing(
            self.metadata.last_fragment.bookies,
            self.metadata.quorum,
            self._retries,
            self._config.attempts_max,
        )
        return [*self._fencing.start()]

    def _lac_read(self, event: LacRead, now: float) -> list[RecoveryEffect]:
        if self._fencing is None or self.phase is RecoveryPhase.CLOSING:
            return []
        if self.phase is RecoveryPhase.READING:
            return []  # covered without it; its reads fence it if it comes back
        self._fencing.heard(event, now)
        if self._fencing.is_hopeless:
            if self._fencing.was_denied:
                return self._fail(RecoveryFailure.ACCESS_DENIED)
            stranger = self._fencing.met_stranger
            return self._fail(
                RecoveryFailure.WRONG_KEY if stranger else RecoveryFailure.NOT_COVERED
            )
        return self._begin_reading(self._fencing) if self._fencing.is_covered else []

    # Reading forward, and writing back what is found, both at once.

    def _begin_reading(self, fencing: Fencing) -> list[RecoveryEffect]:
        self.phase = RecoveryPhase.READING
        self._retries.forget()
        # Never below the last fragment: the earlier ones are immutable (rule 41).
        base = max(fencing.last_add_confirmed, self.metadata.last_fragment.first_entry - 1)
        self._search = EndSearch(self.metadata, base, fencing.gave_up, self._retries, self._config)
        self._copies = WriteBacks(self.metadata, base, self._retries, self._config)
        return self._search.start()

    def _read_on(self, event: TailEvent, now: float) -> list[RecoveryEffect]:
        if self.phase is not RecoveryPhase.READING or self._search is None or self._copies is None:
            return []  # closing: all is confirmed, only the CAS decides what the ledger is
        effects: list[RecoveryEffect] = []
        match event:
            case RecoveryEntriesRead():
                if self._search.heard(event, now):
                    effects = self._decide(self._search, self._copies, now)
            case BaseRead():
                self._search.heard_base(event, now)
            case WriteBackStored():
                effects = self._copies.stored(event)
            case WriteBackRefused():
                effects = self._copies.refused(event, now)
            case ReplacementsChosen():
                effects = self._copies.chosen(event)
            case _:
                assert_never(event)
        return effects + self._try_close(self._search, self._copies)

    def _decide(self, search: EndSearch, copies: WriteBacks, now: float) -> list[RecoveryEffect]:
        """Decide entries in order: found, absent, or not known yet (rule 43)."""
        effects: list[RecoveryEffect] = []
        first = search.last_found + 1
        if search.take_found():
            effects += copies.send(first, search.last_found)
        if search.end_found:
            return effects
        if search.is_stuck:
            return effects + self._fail(RecoveryFailure.UNDECIDED)
        return effects + search.decide_end(now)

    # The end.

    def _try_close(self, search: EndSearch, copies: WriteBacks) -> list[RecoveryEffect]:
        if copies.is_short:
            denied = copies.was_denied
            return self._fail(
                RecoveryFailure.ACCESS_DENIED if denied else RecoveryFailure.NOT_ENOUGH_BOOKIES
            )
        if self.phase is not RecoveryPhase.READING or not (
            search.end_found and copies.all_confirmed
        ):
            return []
        if search.base_is_unreadable:
            return self._fail_for_base(search.base)
        return [] if search.length is None else self._close()

    def _close(self) -> list[RecoveryEffect]:
        """Write CLOSED, keeping what re-replication did to older fragments meanwhile."""
        assert self._search is not None
        assert self._search.length is not None
        assert self._copies is not None
        self.phase = RecoveryPhase.CLOSING
        older = len(self.metadata.fragments) - 1
        fragments = self.metadata.fragments[:older] + self._copies.metadata.fragments[older:]
        merged = replace(self.metadata, fragments=fragments)
        self._closing = merged.closed(self._search.last_found, self._search.length)
        return [WriteMetadata(self._closing, self.version)]

    def _finish(self, metadata: LedgerMetadata, version: int) -> list[RecoveryEffect]:
        self.phase = RecoveryPhase.DONE
        assert metadata.last_entry is not None, "it is CLOSED"
        last = metadata.last_fragment
        found = self._closing is not None and metadata.last_entry >= last.first_entry
        return [FinishRecovery(metadata, version, last.bookies if found else ())]

    def _time_passed(self, now: float) -> list[RecoveryEffect]:
        search, copies = self._search, self._copies
        effects: list[RecoveryEffect] = []
        for request in self._retries.due(now):
            if isinstance(request, WriteBack) and copies is not None:
                effects += copies.send_again(request)
            else:
                effects.append(request)
        if self._metadata_retry_at is not None and now >= self._metadata_retry_at:
            self._metadata_retry_at = None
            effects.append(ReadMetadata())
        if search is None or copies is None or search.grace_until is None:
            return effects
        if now >= search.grace_until:
            effects += self._decide(search, copies, now) + self._try_close(search, copies)
        return effects

    def _fail_for_base(self, base: int) -> list[RecoveryEffect]:
        """What some claim to be confirmed nobody gives. To end the ledger below it is not ours: it
        may have been acknowledged, and be lost."""
        self.phase = RecoveryPhase.FAILED
        fencing = self._fencing
        is_claimed = fencing is not None and fencing.last_add_confirmed >= base
        claimants = fencing.claimants if fencing is not None and is_claimed else ()
        return [FailRecovery(RecoveryFailure.BASE_UNREADABLE, base, claimants)]

    def _fail(self, failure: RecoveryFailure) -> list[RecoveryEffect]:
        self.phase = RecoveryPhase.FAILED
        return [FailRecovery(failure)]
