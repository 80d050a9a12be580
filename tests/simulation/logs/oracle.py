"""What really happened to the logs, seen from outside: what the invariants are checked against.

Writers report what they submitted and how it was resolved, readers what they were given, the
metadata store each manifest it holds. Every record that any writer ever submits is different,
so a record is named by its bytes. A history is that of one *incarnation*: a log that is
deleted and re-created is another log with the same name.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from dlog.aio.maintain.trim import Keep
from dlog.manifest import Manifest
from dlog.position import DLSN
from dlog.protocol.consumer_steps import ConsumerState
from dlog.protocol.orphans import STAMP_INCARNATION, STAMP_LOG, STAMP_SEGMENT
from ledger.ids import LedgerId
from ledger.metadata import LedgerState
from tests.simulation.logs.objects import SimObjects
from tests.simulation.logs.requests import Request, Requests
from tests.simulation.oracle import DegradedChoice, LedgerHistory, Oracle

Item = TypeVar("Item")

NOWHERE = DLSN(-1, -1, -1)


class Fate(Enum):
    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    """Certainly not in the log."""


@dataclass(slots=True, eq=False)
class Append:
    payload: bytes
    who: str
    epoch: int
    submitted: int
    """Step of the simulation."""
    txid: int | None
    expected: int | None = None
    """It is to be at this offset or nowhere."""
    group: tuple[bytes, ...] | None = None
    """All that was appended by the same call."""
    fate: Fate = Fate.PENDING
    resolved: int = -1
    offset: int = -1
    dlsn: DLSN = NOWHERE


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt to commit a unit; the records of each are others."""

    origin: bytes
    number: int
    epoch: int
    payloads: tuple[bytes, ...]
    txids: tuple[int | None, ...]
    said_offset: int | None = None
    """Where its sink said that it is, if it did."""
    first_offset: int | None = None
    """Where it was seen."""

    @property
    def end_offset(self) -> int:
        """After its last record. Requires that its sink said where it is."""
        assert self.said_offset is not None
        return self.said_offset + len(self.payloads)

    @property
    def unit(self) -> tuple[bytes, int]:
        return self.origin, self.number

    def __str__(self) -> str:
        return f"an attempt at unit {self.number}, {self.payloads[0]!r} and so on"


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as somebody was given it: an acknowledgement or a read."""

    who: str
    offset: int
    dlsn: DLSN
    txid: int | None
    payload: bytes


@dataclass(frozen=True, slots=True)
class Open:
    """A takeover that succeeded: its writer may append from this step on."""

    who: str
    epoch: int
    asked: int
    """Step at which it began."""
    step: int
    next_offset: int
    last_txid: int | None


@dataclass(frozen=True, slots=True)
class ToldTxid:
    """The last txid that a writer returned when all it had been given was acknowledged."""

    who: str
    epoch: int
    txid: int | None
    acknowledged: int
    """How many records of the log had been acknowledged by then."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """A standby that was handed the log."""

    who: str
    epoch: int
    applied: int
    """Offset after the last record that its application had been given."""


@dataclass(slots=True, eq=False)
class Reading:
    """One reader, from its start on."""

    who: str
    start: int
    next_offset: int
    from_txid: int | None = None
    """It was asked to begin with the first record that reaches this."""
    reads: list[Seen] = field(default_factory=list)
    failure: str = ""
    """Why it stopped, if that is what must never happen."""
    trimmed_at: int | None = None
    """It got the error that its position is trimmed, with this as the first offset."""


@dataclass(slots=True, eq=False)
class ConsumerHistory:
    """One incarnation of a named consumer."""

    name: str
    born: int
    """How many manifests the log had when it was made."""
    gone: bool = False
    states: list[ConsumerState] = field(default_factory=list)
    """All that the metadata store ever held, in order."""
    delivered: dict[int, None] = field(default_factory=dict)
    """Offsets of records that one of its processes was given."""
    committed: list[tuple[str, int, int]] = field(default_factory=list)
    """(process, its epoch, epoch when it began to commit) of each that moved the position."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """An end of the log that a reader was given."""

    who: str
    acknowledged: int
    """Offset after the last record that was acknowledged when it asked."""
    end: int


@dataclass(slots=True, eq=False)
class LogHistory:
    """All promises about one incarnation of a log."""

    name: str
    incarnation: str
    ledgers: Oracle
    """What happened to the ledgers."""
    objects: SimObjects
    requests: Requests
    """What was asked for, of all logs."""
    manifests: list[tuple[int, Manifest]] = field(default_factory=list)
    written_ms: list[int] = field(default_factory=list)
    """When each of them was written, at the latest, by any clock."""
    opens: list[Open] = field(default_factory=list)
    promotions: list[Promotion] = field(default_factory=list)
    appends: dict[bytes, Append] = field(default_factory=dict)
    acknowledged: list[Append] = field(default_factory=list)
    refused: list[Append] = field(default_factory=list)
    unknown: list[Append] = field(default_factory=list)
    """Each with the offset that its error names."""
    told_txids: list[ToldTxid] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    records: dict[int, Seen] = field(default_factory=dict)
    """By offset, as first seen."""
    places: dict[bytes, int] = field(default_factory=dict)
    """Offset of each record that was seen, as first seen."""
    segments: dict[int, LedgerId] = field(default_factory=dict)
    """Ledger of each segment that was ever listed, by number."""
    readings: list[Reading] = field(default_factory=list)
    barriers: list[Barrier] = field(default_factory=list)
    truncated: int = 0
    """Highest offset that anybody asked to truncate before."""
    keeps: list[Keep] = field(default_factory=list)
    """What others asked to keep, and to truncate the rest."""
    sealed: int | None = None
    """Step at which it was confirmed that the log is sealed for good."""
    not_asked_for: str | None = None
    """Why it was nobody's wish that it was dropped, if it was not."""
    dropped: int | None = None
    """Step at which a deletion of the log was confirmed to its caller."""
    gone: bool = False
    """The manifest was deleted."""
    strangers: list[str] = field(default_factory=list)
    """Changes of the manifest that no edit of this incarnation may make."""
    deleted_ledgers: list[LedgerId] = field(default_factory=list)
    unfenced: list[LedgerId] = field(default_factory=list)
    """Those of them that were segments, and OPEN: nobody had begun to fence them."""
    consumers: dict[str, ConsumerHistory] = field(default_factory=dict)
    """By the consumer's incarnation."""
    consumers_gone: list[tuple[str, str]] = field(default_factory=list)
    """(log, consumer) of each whose node was deleted."""
    healed: dict[int, int] = field(default_factory=dict)
    """Step at which a writer healed into a segment, by the number of that."""
    tried: set[tuple[bytes, int]] = field(default_factory=set)
    """Units that a sink was asked to commit."""
    attempt_of: dict[bytes, Attempt] = field(default_factory=dict)
    """By record."""
    committed: list[Attempt] = field(default_factory=list)
    """Those that a sink said it committed."""
    said_already: list[tuple[bytes, int]] = field(default_factory=list)
    """Units that a sink said were committed before."""
    taken: dict[tuple[bytes, int], Attempt] = field(default_factory=dict)
    """Which attempt at a unit was seen in the log."""
    checked: dict[str, int] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        return self.manifests[-1][1]

    @property
    def end(self) -> int:
        """Offset after the last record that anybody knows to be committed."""
        seen = max(self.records, default=self.manifest.trim_offset - 1) + 1
        return max(seen, *(unit.end_offset for unit in self.committed[-1:]), 0)

    @property
    def acknowledged_end(self) -> int:
        """Offset after the last record that was acknowledged by now."""
        ends = [append.offset + 1 for append in self.acknowledged]
        ends += [unit.end_offset for unit in self.committed]
        return max(ends, default=0)

    @property
    def last_two(self) -> tuple[LedgerId, ...]:
        """The ledgers of the last two segments: its writers may still be adding to them."""
        listed = next((m.segments for _, m in reversed(self.manifests) if m.segments), ())
        return tuple(segment.ledger_id for segment in listed[-2:])

    @property
    def was_fenced(self) -> bool:
        """Whether the last two ledgers were CLOSED when they were deleted.

        Who deletes a log need not wait for bookies that are gone."""
        states = [self.ledgers.ledgers[each].recorded.state for each in self.last_two]
        return all(state is LedgerState.CLOSED for state in states)

    def new(self, invariant: str, items: Sequence[Item]) -> Sequence[Item]:
        """Return those of *items*, which only grow, that *invariant* has not looked at."""
        first = self.checked.get(invariant, 0)
        self.checked[invariant] = len(items)
        return items[first:]


@dataclass(frozen=True, slots=True)
class Stamp:
    """Whose ledger it is, by its custom metadata."""

    log: str
    incarnation: str
    segment: int | None
    """None: it was staged for a unit."""

    @classmethod
    def of(cls, ledger: LedgerHistory) -> "Stamp":
        custom = ledger.metadata[0][1].custom
        return cls(
            custom[STAMP_LOG].decode(),
            custom[STAMP_INCARNATION].decode(),
            int(custom[STAMP_SEGMENT]) if STAMP_SEGMENT in custom else None,
        )


class LogOracle:
    def __init__(
        self, ledgers: Oracle, steps: Callable[[], int], now_ms: Callable[[], int]
    ) -> None:
        self.ledgers = ledgers
        self.objects: SimObjects
        """Set by the world."""
        self.histories: dict[str, LogHistory] = {}
        """By incarnation."""
        self.current: dict[str, LogHistory] = {}
        """By name: what the metadata store holds now."""
        self.changed: dict[str, None] = {}
        self.requests = Requests()
        self.deposed: list[str] = []
        """What was done to candidates that live."""
        self.degraded_choices: list[DegradedChoice] = []
        """Ensembles that name bookies which are away, until they were looked at."""
        self._steps = steps
        self._now_ms = now_ms
        self._consumers: dict[str, str] = {}
        """Incarnation of the log, by that of the consumer."""
        self._truncating: list[tuple[str, Keep]] = []
        self._deletions: dict[str, list[Request]] = {}
        """What each process was asked to delete."""
        self._drops: dict[str, list[str]] = {}
        """Incarnations that each process has marked as dropped."""

    def history(self, incarnation: str) -> LogHistory:
        """Return a history, to add a report to it."""
        self.changed[incarnation] = None
        return self.histories[incarnation]

    def manifest_written(self, name: str, version: int, manifest: Manifest, by: str) -> None:
        """Called at the store, *by* whom it was written."""
        before = self.current.get(name)
        history = self.histories.get(manifest.incarnation)
        if history is None:
            history = LogHistory(
                name, manifest.incarnation, self.ledgers, self.objects, self.requests
            )
            self._truncate_too(history)
            self.histories[manifest.incarnation] = history
        elif history.name != name and not history.gone:
            self._moved(history, name)
        elif history.gone:
            history.strangers.append(f"version {version} brings back what was deleted")
        if before is not None and before is not history:
            history.strangers.append(f"version {version} replaces incarnation {before.incarnation}")
        if manifest.dropped and not (history.manifests and history.manifest.dropped):
            self._dropped_by(history, by)
        if history.manifests and _heals(history.manifest, manifest):
            history.healed[manifest.segments[-1].number] = self._steps()
        history.manifests.append((version, manifest))
        for segment in manifest.segments:
            history.segments.setdefault(segment.number, segment.ledger_id)
        history.written_ms.append(self._now_ms())
        self.current[name] = history
        self.changed[history.incarnation] = None

    def _dropped_by(self, history: LogHistory, who: str) -> None:
        drops, asked = self._drops.setdefault(who, []), self._deletions.get(who, [])
        drops.append(history.incarnation)
        if len(drops) > len(asked):
            history.not_asked_for = (
                f"{who} was asked {len(asked)} times to delete a log, and has dropped "
                + " and ".join(drops)
            )
        elif not any(request.means(history.incarnation) for request in asked):
            history.not_asked_for = (
                f"{who} was asked to delete the log that had the name when it looked, and has "
                f"dropped {history.incarnation}"
            )

    def _moved(self, history: LogHistory, name: str) -> None:
        """The log was renamed to *name*; what others do to that name they do to it."""
        history.name = name
        self._truncate_too(history)

    def _truncate_too(self, history: LogHistory) -> None:
        """What somebody is doing to that name may meet this log."""
        for name, keep in self._truncating:
            if name == history.name:
                self._truncates(history, keep)

    @staticmethod
    def _truncates(history: LogHistory, keep: Keep) -> None:
        if isinstance(keep.before, int):
            history.truncated = max(history.truncated, keep.before)
        else:
            history.keeps.append(keep)

    def manifest_deleted(self, name: str) -> None:
        history = self.current.pop(name)
        self.changed[history.incarnation] = None
        if history.name != name:
            return  # it has another name now, by the same transaction
        history.gone = True
        if not history.manifest.dropped:
            history.strangers.append("deleted although it was not marked as dropped")
        self.changed[history.incarnation] = None

    def ledger_deleted(self, ledger_id: LedgerId) -> None:
        if not self.histories:
            return  # nobody has logs here
        stamp = Stamp.of(self.ledgers.ledgers[ledger_id])
        history = self.histories.get(stamp.incarnation)
        if history is not None:
            history.deleted_ledgers.append(ledger_id)
            is_open = self.ledgers.ledgers[ledger_id].recorded.state is LedgerState.OPEN
            unused = not self.ledgers.ledgers[ledger_id].sent  # whoever made it gives it back
            if is_open and not unused and ledger_id in history.segments.values():
                history.unfenced.append(ledger_id)
            self.changed[stamp.incarnation] = None

    def opened(
        self,
        incarnation: str,
        who: str,
        epoch: int,
        next_offset: int,
        last_txid: int | None,
        *,
        asked: int = 0,
    ) -> None:
        """*asked*: the step at which it began to open."""
        opened = Open(who, epoch, asked, self._steps(), next_offset, last_txid)
        self.history(incarnation).opens.append(opened)

    def told_txid(self, incarnation: str, who: str, epoch: int, txid: int | None) -> None:
        """A writer of which nothing is pending returns the last txid of its log."""
        history = self.history(incarnation)
        history.told_txids.append(ToldTxid(who, epoch, txid, len(history.acknowledged)))

    def promoted(self, incarnation: str, who: str, epoch: int, applied: int) -> None:
        self.history(incarnation).promotions.append(Promotion(who, epoch, applied))

    def incarnation_with(self, payload: bytes) -> str:
        """Return the incarnation of the log that a record was appended to."""
        return next(
            history.incarnation for history in self.histories.values() if payload in history.appends
        )

    def submitted(
        self,
        incarnation: str,
        who: str,
        epoch: int,
        payload: bytes,
        txid: int | None,
        *,
        expected: int | None = None,
        group: tuple[bytes, ...] | None = None,
    ) -> Append:
        append = Append(payload, who, epoch, self._steps(), txid, expected, group)
        self.history(incarnation).appends[payload] = append
        return append

    def acknowledged(self, incarnation: str, append: Append, offset: int, dlsn: DLSN) -> None:
        history = self.history(incarnation)
        append.fate, append.resolved = Fate.ACKNOWLEDGED, self._steps()
        append.offset, append.dlsn = offset, dlsn
        history.acknowledged.append(append)
        self._see(history, Seen(append.who, offset, dlsn, append.txid, append.payload))

    def failed(
        self, incarnation: str, append: Append, *, unknown: bool, offset: int | None = None
    ) -> None:
        """*offset*: where the record is if it is kept, as an unknown outcome names it."""
        append.fate = Fate.UNKNOWN if unknown else Fate.REFUSED
        append.resolved = self._steps()
        history = self.history(incarnation)
        if not unknown:
            history.refused.append(append)
        elif offset is not None:
            append.offset = offset
            history.unknown.append(append)

    def attempted(self, incarnation: str, who: str, attempt: Attempt) -> None:
        """A sink is asked to commit a unit. Whether its records are kept is not said singly."""
        history = self.history(incarnation)
        history.tried.add(attempt.unit)
        for payload, txid in zip(attempt.payloads, attempt.txids, strict=True):
            history.attempt_of[payload] = attempt
            append = self.submitted(
                incarnation, who, attempt.epoch, payload, txid, group=attempt.payloads
            )
            self.failed(incarnation, append, unknown=True)

    def unit_committed(self, incarnation: str, attempt: Attempt, first_offset: int | None) -> None:
        """A sink says that a unit is at *first_offset*; None: that it was there already."""
        history = self.history(incarnation)
        if first_offset is None:
            history.said_already.append(attempt.unit)
            return
        attempt.said_offset = first_offset
        history.committed.append(attempt)

    def unit_superseded(self, incarnation: str, attempt: Attempt, last: int) -> bool:
        """A sink says that unit *last* of the origin of *attempt* is in the log; return whether
        that is a later one, which somebody tried to commit."""
        tried = self.history(incarnation).tried
        return attempt.number < last and (attempt.origin, last) in tried

    def unit_refused(self, incarnation: str, attempt: Attempt, last_txid: int) -> bool:
        """A sink says that the txids of *attempt* come before *last_txid*: it is not in the log.

        Return whether that can be so: txids follow what the sink knew of the log when it was asked,
        so a sink of the same epoch, from which it went on and which lives, must have done a unit
        before this one meanwhile."""
        history = self.history(incarnation)
        for payload in attempt.payloads:
            self.failed(incarnation, history.appends[payload], unknown=False)
        first_txid = attempt.txids[0]
        return any(
            other.txids[-1] == last_txid
            and first_txid is not None
            and first_txid < last_txid
            and other.epoch == attempt.epoch
            and other.origin == attempt.origin
            and other.number < attempt.number
            for other in history.attempt_of.values()
        )

    def reads(
        self, incarnation: str, who: str, start: int, *, from_txid: int | None = None
    ) -> Reading:
        reading = Reading(who, start, start, from_txid)
        self.history(incarnation).readings.append(reading)
        return reading

    def read(self, incarnation: str, reading: Reading, seen: Seen) -> None:
        reading.reads.append(seen)
        self._see(self.history(incarnation), seen)

    def barrier(self, incarnation: str, who: str, acknowledged: int, end: int) -> None:
        self.history(incarnation).barriers.append(Barrier(who, acknowledged, end))

    def stopped(self, incarnation: str, reading: Reading, *, failure: str) -> None:
        reading.failure = failure
        self.history(incarnation)

    def consumer_written(self, name: str, state: ConsumerState) -> None:
        history = self.history(state.log_incarnation)
        born = len(history.manifests)
        consumer = history.consumers.setdefault(state.incarnation, ConsumerHistory(name, born))
        consumer.states.append(state)
        self._consumers[state.incarnation] = state.log_incarnation

    def consumer_gone(self, consumer: str, log: str) -> None:
        """The node of *consumer*, an incarnation, is nowhere any more; it was below *log*."""
        history = self.history(self._consumers[consumer])
        gone = history.consumers[consumer]
        gone.gone = True
        history.consumers_gone.append((log, gone.name))

    def consumed(self, consumer: str, offset: int) -> None:
        """One of the processes of *consumer*, an incarnation, was given a record."""
        self.history(self._consumers[consumer]).consumers[consumer].delivered[offset] = None

    def consumer_epoch(self, consumer: str) -> int:
        """Return the epoch that the metadata store holds now."""
        return self.histories[self._consumers[consumer]].consumers[consumer].states[-1].epoch

    def committed(self, consumer: str, who: str, epoch: int, began_in: int) -> None:
        history = self.history(self._consumers[consumer])
        history.consumers[consumer].committed.append((who, epoch, began_in))

    def truncates(self, incarnation: str, before: int) -> None:
        history = self.history(incarnation)
        history.truncated = max(history.truncated, before)

    def sealed(self, incarnation: str) -> None:
        history = self.history(incarnation)
        if history.sealed is None:
            history.sealed = self._steps()

    @contextmanager
    def truncating(self, name: str, keep: Keep) -> Iterator[None]:
        """Somebody truncates a log by its name: the one that is there by then."""
        if name in self.current:
            self._truncates(self.history(self.current[name].incarnation), keep)
        self._truncating.append((name, keep))
        try:
            yield
        finally:
            self._truncating.remove((name, keep))

    def deletes(self, who: str, request: Request) -> None:
        """A process is asked to delete a log: one, whatever comes between."""
        self._deletions.setdefault(who, []).append(request)

    def deleted_none(self, who: str) -> None:
        """It learned that there is none, and every call it made was answered."""
        self._deletions[who].pop()
        drops = self._drops.get(who, [])
        if len(drops) > len(self._deletions[who]):
            history = self.history(drops[-1])
            history.not_asked_for = f"{who} said that there is none, and dropped {drops[-1]}"

    def dropped(self, incarnation: str) -> None:
        history = self.history(incarnation)
        if history.dropped is None:
            history.dropped = self._steps()

    def _see(self, history: LogHistory, seen: Seen) -> None:
        history.seen.append(seen)
        history.records.setdefault(seen.offset, seen)
        history.places.setdefault(seen.payload, seen.offset)


def _heals(before: Manifest, after: Manifest) -> bool:
    """Whether a writer went on in a new segment, all that it had before sealed by the same swap.

    A roll lists the next segment while the one before is open, a takeover begins an epoch."""
    return (
        after.epoch == before.epoch
        and after.next_segment > before.next_segment
        and bool(after.segments)
        and after.segments[-1].sealed is None
        and all(segment.sealed for segment in after.segments[:-1])
    )
