"""The handle of a ledger's one writer: drives `protocol.writer`, keeps the frames in flight."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, assert_never

from ledger import metrics
from ledger.entry import (
    ENTRIES_AHEAD_MAX,
    ENTRY_BYTES_MAX,
    HEADER_BYTES,
    TRAILER_BYTES,
    encode_frame,
    encode_lac,
)
from ledger.environment import Credentials, Environment, runs_of, with_ranges
from ledger.errors import (
    EntryTooLarge,
    HandleClosed,
    KeyDiffers,
    LedgerFenced,
    LogError,
    MetadataUnavailable,
    NoSuchLedger,
    TooManyPending,
    WriterFailed,
    WrongPassword,
    with_unknown_outcome,
)
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.log_events import get_logger, now_ms
from ledger.machine_loop import MachineLoop, carry_out
from ledger.mark import written_without
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.protocol import common
from ledger.protocol import writer_events as protocol
from ledger.protocol.writer import METADATA_PATIENCE_S, Writer
from ledger.quorum import holds
from ledger.repair_marks import mark_ledger
from ledger.requests import AddRun, Status

RUN_BYTES_MAX: Final = 1024 * 1024
"""Larger sends are cut, between entries, into several runs."""
ENTRY_CHARGE_MIN: Final = 256
"""An entry that waits for confirmation counts as this many bytes at least: so much it costs
however small it is."""
PENDING_BYTES_MAX: Final = ENTRIES_AHEAD_MAX // 2 * ENTRY_CHARGE_MIN
"""So that no writer has more entries in flight than bookies take for possible."""
_PUBLISH_TURNS: Final = 4
"""So many turns of the loop the LAC waits for an entry that carries it: as many as it takes to tell
who waits for the last one, and to get what he adds then."""
PUBLISH_QUIET_S: Final = 0.01
"""Amid a run of adds, the LAC is published to bookies at which nobody waits for it only after so
long without an add. A reader that comes in between waits as long at most."""
Settled = Callable[[EntryId | LogError], None]
"""Called once: with the id of an entry that is confirmed, or why it may not be kept."""

_log = get_logger(__name__)


class LedgerWriter:
    """Adds entries to one ledger. All methods are called on the loop that made it."""

    def __init__(
        self,
        environment: Environment,
        credentials: Credentials,
        metadata: LedgerMetadata,
        version: int,
    ) -> None:
        """Raises `WrongPassword` if *credentials* are not those of *metadata*: the key is right by
        definition, so bookies that refuse it are wrong."""
        if credentials.key != metadata.access_key:
            raise WrongPassword(credentials.ledger_id)
        self.ledger_id: LedgerId = credentials.ledger_id
        self.error: LogError | None = None
        """Why the writer is over, if it failed."""
        self._environment = environment
        self._credentials = credentials
        self._machine = Writer(self.ledger_id, metadata, version, environment.writing)
        self._striped = metadata.quorum.ensemble > metadata.quorum.write
        self._run: MachineLoop[protocol.WriterEvent, protocol.WriterEffect] = MachineLoop(
            self._machine,
            self._execute,
            time_passed=common.TimePassed(),
            broken=lambda error: self._fail(_as_log_error(self.ledger_id, error)),
        )
        self._loop = asyncio.get_running_loop()
        self._queued: list[bytes] = []
        """Payloads added since the loop last turned; encoded together."""
        self._pending_bytes = 0
        self._frames: dict[int, bytes] = {}
        """Frames above last_add_confirmed; sent again, unchanged, after an ensemble change."""
        self._waiting: deque[Settled] = deque()
        """One per entry above last_add_confirmed, in order."""
        self._settled: deque[tuple[Settled, EntryId | LogError]] = deque()
        """Who is to be told what, in order: not in the middle of a step of the machine, as whoever
        hears it may add the next entry at once."""
        self._answering = False
        """Whether `on_answer` will tell them."""
        self._closed: asyncio.Future[LedgerMetadata] = self._loop.create_future()
        self._closed.add_done_callback(_retrieved)
        self._closing = False
        self._room = asyncio.Event()
        """Set when `ready` has to look again."""
        self._runs: tuple[int, int, list[AddRun]] = (0, -1, [])
        """Of what range runs were built last, shared by the bookies of one step."""
        self._put_off: tuple[protocol.PublishLac, list[BookieId], float] | None = None
        """News of the LAC for bookies at which nobody waits for it, and when it is due."""
        self._soon: protocol.PublishLac | None = None
        """News of the LAC that an entry may still carry, in the next turns of the loop."""
        self._idle_at = -math.inf
        """When there was such news last that no entry carried."""
        self._quiet: asyncio.TimerHandle | None = None
        """Calls `_publish_late`; there may be newer news by then."""
        self._marking: set[asyncio.Task[None]] = set()
        """Goes on when the writer is over: what lacks copies still does."""
        self._list()
        self._unlisted = environment.bookies.on_change(self._list)

    @property
    def metadata(self) -> LedgerMetadata:
        return self._machine.metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._machine.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId:
        return EntryId(self._machine.last_add_pushed + len(self._queued))

    @property
    def length(self) -> int:
        """Payload bytes of all entries added so far."""
        return self._machine.length + sum(map(len, self._queued))

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that wait for confirmation, small ones counted as a bit more."""
        return self._pending_bytes

    def add(self, payload: bytes) -> asyncio.Future[EntryId]:
        """Add one entry; the future resolves, in entry order, once it is confirmed.

        Raises at once `EntryTooLarge`, `HandleClosed`, `TooManyPending`, or the error that
        ended this writer. If the future fails, the entry's outcome is unknown, and its error
        says so (rule 10); except `KeyDiffers` after which the ledger is empty."""
        self._check(payload)
        if not self._queued:
            self._loop.call_soon(self._push)
        future: asyncio.Future[EntryId] = self._loop.create_future()
        future.add_done_callback(_retrieved)
        self._take(payload, partial(_resolve, future))
        return future

    def add_all(self, entries: Sequence[tuple[bytes, Settled]]) -> None:
        """Add *entries*, all or none, and send them before this returns.

        Each one's `Settled` is called in the turn of the loop that brought the answer, in entry
        order. Raises as `add` does."""
        for payload, _ in entries:
            self._check(payload)
        for payload, settled in entries:
            self._take(payload, settled)
        self._push()

    async def ready(self) -> None:
        """Wait until `add` has room for one more entry.

        Raises what `add` would: the error that ended this writer, or `HandleClosed`."""
        while self.error is None and not self._closing and not self._has_room():
            self._room.clear()
            await self._room.wait()
        self._check_open()

    async def close(self) -> LedgerMetadata:
        """Wait for what is pending, then write CLOSED; return the final metadata.

        Raises `LedgerFenced` if somebody else took the ledger over, and whatever ended the
        writer. A second call waits for the first."""
        if not self._closing:
            self._closing = True
            self._room.set()
            self._push()
            self._run.post(protocol.CloseRequested())
        return await asyncio.shield(self._closed)

    def publish(self) -> None:
        """Tell bookies at once what is confirmed, if that was to be done later: the caller knows
        that there may be no later. Without it, readers reach the last entry after a recovery."""
        soon, self._soon = self._soon, None
        late, self._put_off = self._put_off, None
        if soon is not None and self._is_newest(soon):
            self._publish(soon, soon.bookies)
        elif late is not None and self._is_newest(late[0]):
            self._publish(late[0], late[1])

    async def abandon(self) -> None:
        """Give up without closing; a recovery decides what is in the ledger."""
        self._closing = True
        if not self._closed.done():
            self._fail(HandleClosed(f"writer of ledger {self.ledger_id}"))

    def _list(self) -> None:
        self._run.post(protocol.BookiesListed(self._environment.writable()))

    def _check(self, payload: bytes) -> None:
        if self.error is not None or self._closing:
            self._check_open()
        if len(payload) > ENTRY_BYTES_MAX:
            raise EntryTooLarge(len(payload), ENTRY_BYTES_MAX)
        if self._pending_bytes >= self._environment.pending_bytes_max:
            raise TooManyPending(self._pending_bytes, self._environment.pending_bytes_max)

    def _take(self, payload: bytes, settled: Settled) -> None:
        self._pending_bytes += max(len(payload), ENTRY_CHARGE_MIN)
        self._queued.append(payload)
        self._waiting.append(settled)

    def _check_open(self) -> None:
        if self.error is not None:
            # Raised as often as it is asked for: its traceback must not grow by every caller,
            # and hold what they wanted to add.
            raise self.error.with_traceback(None)
        if self._closing:
            raise HandleClosed(f"writer of ledger {self.ledger_id}")

    def _has_room(self) -> bool:
        return self._pending_bytes < self._environment.pending_bytes_max

    def _push(self) -> None:
        if not self._queued or self.error is not None:
            return
        payloads, self._queued = self._queued, []
        self._put_off = None  # what is added is followed by news of its own
        lac = self._machine.last_add_confirmed
        entry_id = self._machine.last_add_pushed
        length = self._machine.length
        before = length
        for payload in payloads:
            entry_id = EntryId(entry_id + 1)
            length += len(payload)
            self._frames[entry_id] = encode_frame(
                ledger_id=self.ledger_id,
                entry_id=entry_id,
                last_add_confirmed=lac,
                length=length,
                payload=payload,
                mac=self._credentials.mac,
            )
        self._run.call(partial(self._machine.append, len(payloads), length - before), arms=False)

    def _execute(self, effect: protocol.WriterEffect) -> None:
        match effect:
            case protocol.SendAdds():
                first, last, runs = self._runs
                if first == effect.first and last == effect.last and len(runs) == 1:
                    on_answer = partial(self.on_answer, effect)
                    self._environment.transport.add(effect.bookie, runs[0], on_answer)
                else:
                    self._send(effect)
            case protocol.PublishLac():
                self._soon = effect
                self._publish_soon(effect, _PUBLISH_TURNS)
            case protocol.ConfirmAdds():
                self._confirm(effect.last)
            case common.ChooseReplacements():
                chosen = self._environment.replacements(
                    self.metadata.quorum, effect.ensemble, effect.indexes, effect.exclude
                )
                self._run.post(common.ReplacementsChosen(chosen))
            case common.WriteMetadata() | common.ReadMetadata():
                self._run.spawn(self._carry_out(effect))
            case protocol.FailWriter():
                self._fail(self._error_of(effect.failure))
            case protocol.MarkLacks():
                marking = self._loop.create_task(self._mark(effect))
                self._marking.add(marking)
                marking.add_done_callback(self._marking.discard)
            case protocol.FinishClose():
                self._stop()
                if not self._closed.done():
                    self._closed.set_result(effect.metadata)
            case _:
                assert_never(effect)

    async def _carry_out(self, effect: common.MetadataEffect) -> common.MetadataEvent:
        event = await carry_out(effect, self._environment.ledgers, self.ledger_id)
        if isinstance(event, common.MetadataWritten) and isinstance(effect, common.WriteMetadata):
            changes = effect.metadata.state is LedgerState.OPEN
            metrics.ENSEMBLE_CHANGES.add(by=changes)
        return event

    async def _mark(self, effect: protocol.MarkLacks) -> None:
        missing = written_without(effect.bookies, effect.fragment, now_ms(), missed=effect.missed)
        event: protocol.WriterEvent = protocol.LacksMarked(effect)
        try:
            await mark_ledger(self._environment.ledgers.store, self.ledger_id, missing)
        except LogError as error:
            _log.warning("ledger_not_marked", ledger_id=self.ledger_id, reason=str(error))
            event = protocol.MarkingFailed()
        self._run.post(event)

    def _stop(self) -> None:
        self._run.stop()
        self._put_off = self._soon = None
        if self._quiet is not None:
            self._quiet.cancel()
        self._unlisted()

    def _send(self, effect: protocol.SendAdds) -> None:
        first, last, runs = self._runs
        if self._striped or first != effect.first or last != effect.last:
            runs = self._runs_of(effect.index, effect.first, effect.last)
        add = self._environment.transport.add
        if len(runs) == 1:
            add(effect.bookie, runs[0], partial(self.on_answer, effect))
            return
        for run, first, last in with_ranges(runs, effect.first, effect.last):
            sent = replace(effect, first=first, last=last)
            add(effect.bookie, run, partial(self.on_answer, sent))

    def _runs_of(self, index: int, first: int, last: int) -> list[AddRun]:
        """Return what *index* holds of first..last; built once for bookies that hold the same."""
        if self._striped:
            quorum = self.metadata.quorum
            return self._build([e for e in range(first, last + 1) if holds(index, e, quorum)])
        runs = self._build(range(first, last + 1))
        self._runs = first, last, runs
        return runs

    def _build(self, ids: Sequence[int]) -> list[AddRun]:
        if len(ids) == 1:
            frame = self._frames[ids[0]]
            run = AddRun(self.ledger_id, self._credentials.key, (ids[0],), (len(frame),), frame)
            return [run]
        return runs_of(ids, self._frames, self._credentials, bytes_max=RUN_BYTES_MAX)

    def _publish_soon(self, effect: protocol.PublishLac, turns: int) -> None:
        """Publish after so many turns, unless an entry was added that carries as much: its caller
        would wait for messages that nobody needs."""
        if self._soon is not effect or self._queued:
            return
        if self._machine.last_add_pushed != effect.last_add_confirmed:
            return
        if turns:
            self._loop.call_soon(self._publish_soon, effect, turns - 1)
        else:
            self._publish_now(effect)

    def _publish_now(self, effect: protocol.PublishLac) -> None:
        """Publish to all bookies; amid a run of adds to those at which readers wait, and put it off
        for the others."""
        self._soon = None
        now_s = self._loop.time()
        follows, self._idle_at = now_s - self._idle_at < PUBLISH_QUIET_S, now_s
        if not follows:  # whoever adds once may be gone or busy in a moment
            self._publish(effect, effect.bookies)
            return
        is_watched = self._environment.transport.is_watched
        now: list[BookieId] = []
        later: list[BookieId] = []
        for bookie in effect.bookies:
            (now if is_watched(bookie) else later).append(bookie)
        if now:
            self._publish(effect, now)
        if later:
            self._put_off = effect, later, now_s + PUBLISH_QUIET_S
            if self._quiet is None:
                self._quiet = self._loop.call_later(PUBLISH_QUIET_S, self._publish_late)

    def _publish_late(self) -> None:
        """Publish what was put off, unless it is too new, or an entry carries as much since."""
        self._quiet = None
        if self._put_off is None:
            return
        effect, later, due = self._put_off
        if self._loop.time() < due:
            self._quiet = self._loop.call_at(due, self._publish_late)
        else:
            self._put_off = None
            self._publish(effect, later)

    def _publish_if_watched(self, bookie: BookieId) -> None:
        """Publish to *bookie*, which has just answered, if that was put off too soon."""
        assert self._put_off is not None
        effect, later, _ = self._put_off
        is_watched = self._environment.transport.is_watched
        if bookie in later and is_watched(bookie) and self._is_newest(effect):
            later.remove(bookie)
            self._publish(effect, [bookie])

    def _is_newest(self, effect: protocol.PublishLac) -> bool:
        return not self._queued and self._machine.last_add_pushed == effect.last_add_confirmed

    def _publish(self, effect: protocol.PublishLac, bookies: Sequence[BookieId]) -> None:
        frame = encode_lac(
            ledger_id=self.ledger_id,
            last_add_confirmed=effect.last_add_confirmed,
            length=effect.length,
            mac=self._credentials.mac,
        )
        run = AddRun(
            ledger_id=self.ledger_id,
            key=self._credentials.key,
            entries=(-1,),
            lengths=(len(frame),),
            frames=frame,
            explicit_lac=True,
        )
        for bookie in bookies:
            self._environment.transport.add(bookie, run, _ignore)

    def on_answer(self, sent: protocol.SendAdds, status: Status) -> None:
        """Called by the transport when a run is answered."""
        what = sent.index, sent.generation, sent.first, sent.last
        if status is not Status.OK:
            metrics.REFUSED_ADDS.add(status.name.lower())
            self._environment.reported(sent.bookie, status)
            self._run.post(protocol.AddsRefused(*what, status))
            return
        self._answering = not self._run.is_stepping
        self._run.call(partial(self._machine.stored, *what), arms=False)
        if self._answering:
            self._answering = False
            if self._settled:
                self._tell()
        if self._put_off is not None:
            self._publish_if_watched(sent.bookie)

    def _tell(self) -> None:
        """Tell those who wait what became of their entries; each may add more, or end this. An
        error of one keeps the outcome from nobody else."""
        while self._settled:
            settled, outcome = self._settled.popleft()
            try:
                settled(outcome)
            except Exception as error:  # noqa: BLE001 - whatever it is, others wait behind it
                message = f"an outcome of ledger {self.ledger_id} was not taken"
                self._loop.call_exception_handler({"message": message, "exception": error})

    def _confirm(self, last: EntryId) -> None:
        self._runs = (0, -1, [])  # which holds frames
        pushed = self._machine.last_add_pushed
        entry_id = pushed - len(self._waiting) + len(self._queued) + 1
        metrics.ADDED_ENTRIES.add(by=last - entry_id + 1)
        beside = HEADER_BYTES + (0 if self._credentials.mac is None else TRAILER_BYTES)
        while entry_id <= last:
            frame = self._frames.pop(entry_id)
            self._pending_bytes -= max(len(frame) - beside, ENTRY_CHARGE_MIN)
            self._settled.append((self._waiting.popleft(), EntryId(entry_id)))
            entry_id += 1
        if not self._answering:
            self._loop.call_soon(self._tell)
        if self._pending_bytes < self._environment.pending_bytes_max:
            self._room.set()

    def _fail(self, error: LogError) -> None:
        self.error = error
        if not isinstance(error, HandleClosed):
            metrics.FAILED_WRITERS.add(type(error).__name__)
        self.publish()
        self._stop()
        self._frames.clear()
        self._runs = (0, -1, [])
        self._queued.clear()
        self._pending_bytes = 0
        self._room.set()
        is_known = isinstance(error, KeyDiffers) and error.closed_empty
        verdict = error if is_known else with_unknown_outcome(error)
        while self._waiting:
            self._settled.append((self._waiting.popleft(), verdict))
        if not self._closed.done():
            self._closed.set_exception(error)
        self._tell()

    def _error_of(self, failure: protocol.WriterFailure) -> LogError:
        match failure:
            case protocol.WriterFailure.FENCED:
                return LedgerFenced(self.ledger_id)
            case protocol.WriterFailure.DELETED:
                return NoSuchLedger(self.ledger_id)
            case protocol.WriterFailure.WRONG_KEY:
                return KeyDiffers(self.ledger_id)
            case protocol.WriterFailure.ACCESS_DENIED:
                what = f"append to ledger {self.ledger_id}"
                return self._environment.denied(what, "writer", self.metadata)
            case protocol.WriterFailure.CLOSED_EMPTY:
                self._environment.ledgers.leave_ids()
                return KeyDiffers(self.ledger_id, closed_empty=True)
            case protocol.WriterFailure.NOT_ENOUGH_BOOKIES:
                needed = self.metadata.quorum.ack
                return self._environment.bookies.shortage(needed, failed=self._machine.failed)
            case protocol.WriterFailure.METADATA_UNAVAILABLE:
                return MetadataUnavailable(
                    self._environment.uri,
                    f"the ensemble change of ledger {self.ledger_id}",
                    METADATA_PATIENCE_S,
                )
            case protocol.WriterFailure.CONFLICT:
                return WriterFailed(self.ledger_id, "a bookie holds other bytes under an id")
            case _:
                assert_never(failure)


def _resolve(future: asyncio.Future[EntryId], outcome: EntryId | LogError) -> None:
    if future.done():
        return  # it was cancelled
    if isinstance(outcome, LogError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _as_log_error(ledger_id: LedgerId, error: BaseException) -> LogError:
    return error if isinstance(error, LogError) else WriterFailed(ledger_id, repr(error))


def _ignore(_: Status) -> None:
    """An explicit LAC is a hint; the next add brings the same news."""


def _retrieved(future: "asyncio.Future[EntryId] | asyncio.Future[LedgerMetadata]") -> None:
    """A caller may watch the last future only; the others' errors are not forgotten ones."""
    if not future.cancelled():
        future.exception()
