"""One read of a ledger that may still be written: which replica to ask, whom to ask next.

Never fences and never disturbs the writer. Delivers confirmed entries only: at most the
last add confirmed, or the last entry once the ledger is CLOSED (rule 53). A replica that
answers with damage, an error or "not here" for a confirmed entry is passed over for the next
one (rule 54); when all were asked the metadata is read again, because re-replication may
have moved the entries (rule 55). So an entry is lost only if the metadata that were read after
the last answer still name those that denied it. A replica that is slow gets company after a
while, and the next one after a longer while. In a striped ensemble no bookie holds more than Qw
entries in a row: enough of them are asked at once to get all of a range.

Unconfirmed reads are an explicit choice. What they find above the last add confirmed may
later turn out not to be part of the ledger.

Invariants (asserted by `check`):
    until it is finished something is under way: a request, a refresh or a pause
    `last_add_confirmed` only grows
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from ledger.delays import Backoff
from ledger.ids import NO_ENTRY, BookieId
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol.common import MetadataFailed, MetadataRead, ReadMetadata, TimePassed
from ledger.quorum import holds, write_set
from ledger.requests import Status

WAIT_MS_MAX: Final = 1000
"""One long poll; then another replica is asked, in case this one is cut off."""

_TOLD: Final = frozenset({Status.OK, Status.NO_SUCH_LEDGER, Status.IO_ERROR, Status.DAMAGED})
"""What a replica says of an entry that it cannot give; all else says nothing of the entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingConfig:
    speculative_s: float = 0.5
    """How long one replica may be silent before a second one is asked too."""
    speculative_factor: float = 2.0
    """How much longer than that the next one may be silent, and so on."""
    speculative_s_max: float = 4.0
    rounds_max: int = 4
    """How often all replicas are asked before a read of a confirmed entry fails."""
    retry_s: float = 0.05
    """Pause before the next round; doubles with each."""
    retry_s_max: float = 1.0
    tail_retry_s_max: float = 0.1
    """The same while waiting for an entry that is not confirmed yet."""


# Events.


@dataclass(frozen=True, slots=True)
class ReadStarted:
    pass


@dataclass(frozen=True, slots=True)
class EntriesRead:
    """Answer to `SendRead`, verified (`protocol.answers`)."""

    index: int
    attempt: int
    status: Status
    found: tuple[int, ...] = ()
    last_add_confirmed: int = -1
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class LedgerChanged:
    """What the ledger's watch reports: *metadata*, None iff the ledger was deleted.

    They may have been read before the last answer of a replica, so they never prove that an entry
    is lost: only the answer to `ReadMetadata` does."""

    metadata: LedgerMetadata | None


ReadingEvent = (
    ReadStarted | EntriesRead | LedgerChanged | MetadataRead | MetadataFailed | TimePassed
)


# Effects.


@dataclass(frozen=True, slots=True)
class SendRead:
    index: int
    attempt: int
    bookie: BookieId
    first: int
    last: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """The read is over: give the caller first..last, which were found; last < first: nothing."""

    first: int
    last: int


class ReadFailure(Enum):
    LOST = "every replica answered that it cannot give it"
    UNAVAILABLE = "all replicas were asked several times, and not all answered"
    DELETED = "deleted"
    WRONG_KEY = "wrong key"
    ACCESS_DENIED = "access denied"


@dataclass(frozen=True, slots=True)
class FailRead:
    failure: ReadFailure


ReadingEffect = SendRead | ReadMetadata | Deliver | FailRead


class Reading:
    """Read entries from *first* on, at most to *last*, at least one unless time runs out.

    *give_up_at*: until when to wait for an entry that is not confirmed yet; one replica is
    heard in any case. Replicas to *avoid* are asked last. *unconfirmed*: deliver what is
    there, confirmed or not, without waiting for more."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        first: int,
        last: int,
        last_add_confirmed: int,
        give_up_at: float,
        avoid: Collection[BookieId] = (),
        unconfirmed: bool = False,
        config: ReadingConfig | None = None,
    ) -> None:
        self.metadata = metadata
        self.last_add_confirmed = max(last_add_confirmed, _confirmed_by(metadata))
        self.finished = False
        self._first, self._last = first, last
        self._give_up_at = give_up_at
        self._avoid = avoid
        self._unconfirmed = unconfirmed
        self._config = config or ReadingConfig()
        self._found: dict[int, None] = {}
        self._attempt = 0
        self._asked: dict[int, int] = {}
        """Request for the first entry under way: index -> attempt."""
        self._helping: dict[int, int] = {}
        """Request under way for entries further on that the first replica does not hold."""
        self._helpers_asked = False
        self._tried: dict[int, None] = {}
        """Indexes that did not help in this round."""
        self._rounds = 0
        self._heard = False
        """Iff some replica answered: one is asked even if there is no time to wait, so that
        a read also learns the last add confirmed."""
        self._denied = False
        """Iff some replica answered that it does not have the first entry."""
        self._strange: dict[int, None] = {}
        """Indexes of this round that have the ledger under another key."""
        self._closed_to_us: dict[int, None] = {}
        """Indexes of this round that do not allow it."""
        self._round_failed = False
        """Iff some replica of this round gave an error, or at once, instead of waiting."""
        self._round_silent = False
        """Iff some replica of this round did not say whether it has the first entry."""
        self._all_denied = False
        """Iff every replica answered in the last round that it cannot give the first entry."""
        self._backoff = Backoff(self._config.retry_s, self._config.retry_s_max)
        self._patience_s = self._config.speculative_s
        self._speculate_at: float | None = None
        self._resume_at: float | None = None
        self._refreshing = False

    @property
    def end(self) -> int | None:
        """Last entry of the ledger iff it is CLOSED."""
        return self.metadata.last_entry

    @property
    def readable(self) -> int:
        """Last entry that may be delivered."""
        if self.end is not None:
            return self.end
        return self._last if self._unconfirmed else self.last_add_confirmed

    def deadline(self) -> float | None:
        times = [at for at in (self._speculate_at, self._resume_at) if at is not None]
        if self._first > self.readable and self._heard:
            times.append(self._give_up_at)
        return None if self.finished else min(times, default=None)

    def step(self, event: ReadingEvent, *, now: float) -> list[ReadingEffect]:
        """Apply *event*; return what the driver must do, in order."""
        if self.finished:
            return []
        confirmed_before = self.last_add_confirmed
        effects: list[ReadingEffect]
        match event:
            case ReadStarted():
                effects = self._ask(now)
            case EntriesRead():
                effects = self._entries_read(event, now)
            case LedgerChanged():
                effects = self._changed(event.metadata, now) or []
            case MetadataRead():
                effects = self._metadata_read(event.metadata, now)
            case MetadataFailed():
                effects = self._metadata_failed(now)
            case TimePassed():
                effects = self._time_passed(now)
            case _:
                assert_never(event)
        self.check(confirmed_before=confirmed_before)
        return effects

    def check(self, *, confirmed_before: int) -> None:
        assert self.last_add_confirmed >= confirmed_before
        under_way = self._asked or self._helping or self._refreshing
        assert self.finished or under_way or self._resume_at is not None
        assert not self._found or min(self._found) >= self._first

    def _ask(self, now: float) -> list[ReadingEffect]:
        """Ask the next replica of the first entry that is still missing."""
        time_is_up = self._heard and now >= self._give_up_at
        if self._first > self.readable and (self.end is not None or time_is_up):
            return self._deliver()
        for index in self._replicas(self._first):
            if index not in self._tried and index not in self._asked:
                helpers = self._helpers(index)
                self._asked[index] = self._attempt + 1
                effects: list[ReadingEffect] = [self._send(index, now)]
                for helper in helpers:
                    self._helping[helper] = self._attempt + 1
                    effects.append(self._send(helper, now))
                return effects
        if self._asked:
            return []  # everybody was asked; somebody may still answer
        if self._first > self.readable and now >= self._give_up_at:
            return self._deliver()
        return self._end_round()

    def _replicas(self, entry_id: int) -> list[int]:
        """Return who holds *entry_id*, in the order to ask."""
        indexes = write_set(entry_id, self.metadata.quorum)
        if len(indexes) < self.metadata.quorum.ensemble:
            indexes = indexes[::-1]  # the last of them holds the most from there on
        ensemble = self.metadata.fragment_of(self._first).bookies
        return sorted(indexes, key=lambda index: ensemble[index] in self._avoid)

    def _helpers(self, asked: int) -> list[int]:
        """Return whom to ask beside *asked*, once per read, so that no entry is left out."""
        if self._helpers_asked or self._first > self.readable:
            return []
        self._helpers_asked = True
        quorum = self.metadata.quorum
        chosen = [asked]
        reach = min(self._query_last(), self.readable, self._first + quorum.ensemble - 1)
        for entry_id in range(self._first + 1, reach + 1):
            if not any(holds(index, entry_id, quorum) for index in chosen):
                chosen.append(self._replicas(entry_id)[0])
        return chosen[1:]

    def _query_last(self) -> int:
        fragment_end = self.metadata.fragment_end(self.metadata.fragment_of(self._first))
        return self._last if fragment_end is None else min(self._last, fragment_end)

    def _send(self, index: int, now: float) -> SendRead:
        self._attempt += 1
        wait_ms = 0
        if self._first > self.readable:
            wait_ms = max(0, min(WAIT_MS_MAX, int((self._give_up_at - now) * 1000)))
        self._speculate_at = now + self._patience_s + wait_ms / 1000
        bookie = self.metadata.fragment_of(self._first).bookies[index]
        return SendRead(index, self._attempt, bookie, self._first, self._query_last(), wait_ms)

    def _entries_read(self, event: EntriesRead, now: float) -> list[ReadingEffect]:
        self.last_add_confirmed = max(self.last_add_confirmed, event.last_add_confirmed)
        under_way = self._asked
        if self._helping.get(event.index) == event.attempt:
            under_way = self._helping
        elif self._asked.get(event.index) != event.attempt:
            return []  # of an earlier round
        del under_way[event.index]
        self._found.update(dict.fromkeys(e for e in event.found if e >= self._first))
        if self._has_some():
            return self._await_helpers(now) if self._helping else self._deliver()
        if under_way is self._helping:
            return []  # the first entry is another one's to give
        if event.status is Status.WRONG_KEY:
            self._strange[event.index] = None
        if event.status is Status.ACCESS_DENIED:
            self._closed_to_us[event.index] = None
        self._tried[event.index] = None
        self._heard |= event.status is Status.OK
        self._denied |= event.status in {Status.OK, Status.NO_SUCH_LEDGER}
        self._round_failed |= event.status is not Status.OK
        self._round_silent |= event.status not in _TOLD
        if event.fenced and self.end is None and self._first > self.readable:
            self._round_failed = True
            return self._refresh()  # somebody recovers it: it will be CLOSED soon
        return self._ask(now)

    def _await_helpers(self, now: float) -> list[ReadingEffect]:
        if self._speculate_at is None:
            self._speculate_at = now + self._patience_s
        return []

    def _has_some(self) -> bool:
        return self._first in self._found and self._first <= self.readable

    def _deliver(self) -> list[ReadingEffect]:
        self.finished = True
        last = self._first - 1
        while last + 1 in self._found and last + 1 <= min(self._last, self.readable):
            last += 1
        return [Deliver(self._first, last)]

    def _end_round(self) -> list[ReadingEffect]:
        """Nobody had the entry: look whether the ledger moved, closed or is gone."""
        confirmed = self.last_add_confirmed if self.end is None else self.end
        if self._first > confirmed and self._unconfirmed and self._denied:
            return self._deliver()  # nobody promised that it is there
        replicas = self._replicas(self._first)
        if all(index in self._strange for index in replicas):
            return self._fail(ReadFailure.WRONG_KEY)
        if all(index in self._closed_to_us for index in replicas):
            return self._fail(ReadFailure.ACCESS_DENIED)
        if self._first <= self.readable:
            self._rounds += 1
            if self._rounds >= self._config.rounds_max:
                if self._strange:
                    return self._fail(ReadFailure.WRONG_KEY)
                if self._closed_to_us:
                    return self._fail(ReadFailure.ACCESS_DENIED)
                if self._round_silent or self._rounds >= 2 * self._config.rounds_max:
                    return self._fail(ReadFailure.UNAVAILABLE)
                # Lost, unless the entry has moved since they were asked. Metadata on their way may
                # be older than the answers: then the replicas are asked once more.
                self._all_denied = not self._refreshing
        return self._refresh()

    def _refresh(self) -> list[ReadingEffect]:
        self._speculate_at = None
        if self._refreshing:
            return []
        self._refreshing = True
        return [ReadMetadata()]

    def _changed(self, metadata: LedgerMetadata | None, now: float) -> list[ReadingEffect] | None:
        """Adopt *metadata*; return None if the requests under way are still the right ones."""
        if metadata is None:
            return self._fail(ReadFailure.DELETED)
        if self.end is not None and metadata.state is not LedgerState.CLOSED:
            metadata = self.metadata  # CLOSED is terminal: this is a late reply
        moved = metadata.fragments != self.metadata.fragments
        closed = self.end is None and metadata.state is LedgerState.CLOSED
        self.metadata = metadata
        self.last_add_confirmed = max(self.last_add_confirmed, _confirmed_by(metadata))
        if not closed and not moved:
            return None
        self._asked.clear()
        self._helping.clear()
        self._all_denied = False
        return self._deliver() if self._has_some() else self._next_round(now)

    def _metadata_read(self, metadata: LedgerMetadata | None, now: float) -> list[ReadingEffect]:
        self._refreshing = False
        effects = self._changed(metadata, now)
        if effects is not None:
            return effects
        if self._all_denied:
            return self._fail(ReadFailure.LOST)
        if self._first > self.readable and not self._round_failed:
            return self._next_round(now)  # just idle: no pause between long polls
        return self._pause(now)

    def _metadata_failed(self, now: float) -> list[ReadingEffect]:
        self._refreshing = False
        return self._fail(ReadFailure.UNAVAILABLE) if self._all_denied else self._pause(now)

    def _next_round(self, now: float) -> list[ReadingEffect]:
        self._tried.clear()
        self._strange.clear()
        self._closed_to_us.clear()
        self._round_failed = self._round_silent = False
        self._resume_at = None
        return self._ask(now)

    def _pause(self, now: float) -> list[ReadingEffect]:
        tailing = self._first > self.readable
        most = self._config.tail_retry_s_max if tailing else self._config.retry_s_max
        self._resume_at = now + min(self._backoff.next(), most)
        return []

    def _time_passed(self, now: float) -> list[ReadingEffect]:
        if self._first > self.readable and self._heard and now >= self._give_up_at:
            return self._deliver()
        if self._resume_at is not None and now >= self._resume_at:
            return self._next_round(now)
        if self._speculate_at is not None and now >= self._speculate_at:
            self._speculate_at = None
            if self._has_some():
                return self._deliver()  # without what the helpers did not give in time
            longer_s = self._patience_s * self._config.speculative_factor
            self._patience_s = min(longer_s, self._config.speculative_s_max)
            return self._ask(now)
        return []

    def _fail(self, failure: ReadFailure) -> list[ReadingEffect]:
        self.finished = True
        return [FailRead(failure)]


def _confirmed_by(metadata: LedgerMetadata) -> int:
    """Return up to where the metadata alone proves that entries are confirmed.

    A writer begins a fragment above its last add confirmed (rule 19), and a recovery writes
    its changes only with CLOSED (rule 46)."""
    if metadata.state is LedgerState.CLOSED:
        return NO_ENTRY
    return metadata.last_fragment.first_entry - 1
