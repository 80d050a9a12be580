"""Moves of copies that a command makes itself, with the repair of the workers: on marks of its own.

Such a mark is in memory, so nothing is left of it when the command is interrupted, and no worker
does what was meant for this command. Locks are everybody's. A recovery takes all that bookies held
which are gone; a rebalance takes CLOSED ledgers from full bookies to empty ones. Which ledgers that
are is decided by `protocol.move_job`; each is copied and swapped as in a repair.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bookie.autorecovery.checks import parts_of
from bookie.autorecovery.marks import Ended, Marks
from bookie.autorecovery.protocol import move_job as protocol
from bookie.autorecovery.protocol.move_job import (
    NAMED_MAX,
    TOLERANCE,
    Rebalancing,
    Weight,
    has_no_source,
    members_of,
    weight_of,
)
from bookie.autorecovery.protocol.repair import RepairConfig, RepairEnd, RepairOutcome
from bookie.autorecovery.repair_io import CopyPace, RepairCache, RepairContext, repair_ledger
from ledger.client import LedgerClient
from ledger.ids import BookieId, LedgerId
from ledger.log_events import now_ms
from ledger.mark import MissingReplica, Reason, UnderreplicatedLedger
from ledger.metadata import LedgerMetadata
from ledger.metastore.port import children_of
from ledger.procedures import run
from ledger.protocol.procedure import Action
from ledger.registry import COOKIES
from ledger.tasks import for_each
from ledger.values import counted

LEDGERS_MAX: Final = 4
TICK_S: Final = 0.5
"""How old a report of the progress becomes."""


class OwnMarks:
    """Marks in memory, and the locks of *marks*."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._own: dict[LedgerId, tuple[UnderreplicatedLedger, int]] = {}

    def put(self, ledger_id: LedgerId, missing: tuple[MissingReplica, ...]) -> None:
        assert ledger_id not in self._own, "one thing at a time is done to a ledger"
        self._own[ledger_id] = UnderreplicatedLedger(()).merged(missing), 0

    def pop(self, ledger_id: LedgerId) -> UnderreplicatedLedger | None:
        """Forget the mark; return what it said last, None if the repair deleted it."""
        found = self._own.pop(ledger_id, None)
        return None if found is None else found[0]

    async def lock(self, ledger_id: LedgerId) -> bool:
        return await self._marks.lock(ledger_id)

    async def unlock(self, ledger_id: LedgerId) -> None:
        await self._marks.unlock(ledger_id)

    async def name_target(self, ledger_id: LedgerId, bookie: BookieId) -> bool:
        return await self._marks.name_target(ledger_id, bookie)

    async def read(self, ledger_id: LedgerId) -> tuple[UnderreplicatedLedger, int] | None:
        return self._own.get(ledger_id)

    async def write(self, ledger_id: LedgerId, mark: UnderreplicatedLedger, version: int) -> bool:
        self._own[ledger_id] = mark, version + 1
        return True

    async def end(self, ledger_id: LedgerId, version: int) -> Ended:  # noqa: ARG002
        self._own.pop(ledger_id, None)
        await self._marks.unlock(ledger_id)
        return Ended.GONE


@dataclass(frozen=True, slots=True)
class LedgerMove:
    """From where copies of a ledger go, and why (*missing*); and to where, None: whoever is
    writable."""

    missing: tuple[MissingReplica, ...]
    into: frozenset[BookieId] | None


@dataclass(frozen=True, slots=True)
class Moved:
    """How the move of a ledger ended, and what its mark says of what is left; None: nothing."""

    ledger_id: LedgerId
    end: RepairEnd
    mark: UnderreplicatedLedger | None

    @property
    def is_done(self) -> bool:
        return self.end.outcome is RepairOutcome.DONE

    @property
    def why(self) -> str:
        """Why it is not."""
        return f"ledger {self.ledger_id}: {self.end.why or 'another worker has it'}"


class MoveJob:
    """Moves copies, ledger by ledger, some at a time; who it is for chooses what goes where."""

    def __init__(
        self,
        client: LedgerClient,
        pace: CopyPace,
        config: RepairConfig | None = None,
        *,
        ledgers_max: int = LEDGERS_MAX,
    ) -> None:
        self.pace = pace
        self._ledgers, self._ledgers_max = client.ledgers, ledgers_max
        marks = Marks(client.store, client.identities)
        self._marks = OwnMarks(marks)
        self._context = RepairContext(
            client.environment, self._marks, pace, config or RepairConfig(), RepairCache(marks)
        )

    async def move(self, ledger_id: LedgerId, move: LedgerMove) -> Moved:
        """Repair the ledger as if it were marked with what *move* calls missing.

        Raises nothing that the metadata store or bookies refuse: see `repair_ledger`."""
        config = replace(self._context.config, into=move.into)
        self._marks.put(ledger_id, move.missing)
        try:
            end = await repair_ledger(replace(self._context, config=config), ledger_id)
        finally:
            mark = self._marks.pop(ledger_id)
        return Moved(ledger_id, end, mark)

    async def pass_over(
        self,
        choose: Callable[[LedgerId, LedgerMetadata | None], LedgerMove | None],
        on_moved: Callable[[Moved], None],
    ) -> None:
        """Read all ledgers once, and move what *choose* says. Metadata that cannot be read are
        None. Raises `MetadataUnavailable`; what was moved until then stays moved."""

        async def take(found: tuple[LedgerId, LedgerMetadata | None]) -> None:
            move = choose(*found)
            if move is not None:
                on_moved(await self.move(found[0], move))

        async for part in parts_of(self._ledgers):
            await for_each(part, take, at_once=self._ledgers_max)


@dataclass(slots=True)
class Progress:
    """How far a recovery is; it changes all the time."""

    surveyed: protocol.Surveyed | None = None
    """What there was to do when it began."""
    repaired: int = 0
    """Ledgers, by this command."""
    bytes: int = 0
    """Copied by this command, headers and trailers of entries too."""
    doing: str = "looking at the bookies"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryResult:
    finish: protocol.RecoveryEnd
    surveyed: protocol.Surveyed
    repaired: int
    entries: int
    bytes: int

    def followed_by(self, other: "RecoveryResult") -> "RecoveryResult":
        """Return what this and the one after it came to together."""
        return RecoveryResult(
            finish=other.finish,
            surveyed=self.surveyed,
            repaired=self.repaired + other.repaired,
            entries=self.entries + other.entries,
            bytes=self.bytes + other.bytes,
        )


async def recover_bookies(
    client: LedgerClient,
    request: protocol.RecoveryRequest,
    *,
    bytes_per_s: float,
    ledgers_max: int = LEDGERS_MAX,
    config: RepairConfig | None = None,
    pause_s: float = protocol.PAUSE_S,
    idle_s_max: float = protocol.IDLE_S_MAX,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> RecoveryResult:
    """Copy what the bookies of *request* held to others; return how that ended.

    Takes as long as the copies take, at *bytes_per_s* (0: no limit), *ledgers_max* at a time. May
    be cancelled at any moment, and called again."""
    running = _Recovering(client, CopyPace(bytes_per_s), ledgers_max, config, on_progress)
    steps = protocol.recover(request, pause_s=pause_s, idle_s_max=idle_s_max)
    ticking = asyncio.ensure_future(running.tick())
    try:
        finish = await run(steps, running.perform)
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
    return running.result(finish)


@dataclass(slots=True)
class _Tally:
    """Of one pass."""

    named: int = 0
    repaired: int = 0
    stuck: int = 0
    unreadable: int = 0
    lost: list[LedgerId] = field(default_factory=list)
    why: str = ""


class _Recovering:
    def __init__(
        self,
        client: LedgerClient,
        pace: CopyPace,
        ledgers_max: int,
        config: RepairConfig | None,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._client, self._pace = client, pace
        self._job = MoveJob(client, pace, config, ledgers_max=ledgers_max)
        self._since_ms = now_ms()
        """When all of it was marked, so to say: the grace of writers counts from here."""
        self._progress, self._on_progress = Progress(), on_progress

    def result(self, finish: protocol.RecoveryEnd) -> RecoveryResult:
        return RecoveryResult(
            finish=finish,
            surveyed=self._progress.surveyed or protocol.Surveyed(),
            repaired=self._progress.repaired,
            entries=self._pace.entries,
            bytes=self._pace.bytes,
        )

    async def perform(self, action: Action[Any]) -> object:
        match action:
            case protocol.ReadBookies():
                return await self._look()
            case protocol.Survey(bookies):
                self._progress.surveyed = await self._survey(bookies)
                return self._progress.surveyed
            case protocol.RepairAll(bookies, into):
                return await self._repair_all(bookies, into)
            case _:
                raise AssertionError(f"no action of a recovery: {action}")

    async def _look(self) -> protocol.BookiesSeen:
        store = self._client.store
        await store.sync(COOKIES)
        known = frozenset(map(BookieId, await children_of(store, COOKIES)))
        found = self._client.bookies.available()
        return protocol.BookiesSeen(
            known,
            registered=frozenset(BookieId(each.bookie) for each in found),
            writable=frozenset(BookieId(each.bookie) for each in found if not each.read_only),
        )

    async def _survey(self, bookies: frozenset[BookieId]) -> protocol.Surveyed:
        there = frozenset(BookieId(each.bookie) for each in self._client.bookies.available())
        held, bare, unreadable, read = Weight(), list[LedgerId](), 0, 0
        async for part in parts_of(self._client.ledgers):
            for ledger_id, metadata in part:
                if metadata is None:
                    unreadable += 1
                    continue
                weight = weight_of(metadata, bookies)
                held = held.plus(weight)
                if weight.fragments and len(bare) < NAMED_MAX and has_no_source(metadata, there):
                    bare.append(ledger_id)
            read += len(part)
            self._report(f"{counted(read, 'ledger')} read")
        return protocol.Surveyed(
            held=held, without_source=tuple(sorted(bare)), unreadable=unreadable
        )

    async def _repair_all(
        self, bookies: frozenset[BookieId], into: frozenset[BookieId]
    ) -> protocol.PassEnded:
        tally = _Tally()

        def choose(ledger_id: LedgerId, metadata: LedgerMetadata | None) -> LedgerMove | None:
            if metadata is None:
                tally.unreadable += 1
                return None
            named = members_of(metadata) & bookies
            if not named:
                return None
            tally.named += 1
            self._report(f"repairing ledger {ledger_id}")
            reason, since_ms = Reason.DECOMMISSIONING, self._since_ms
            missing = tuple(MissingReplica(bookie, reason, since_ms) for bookie in sorted(named))
            return LedgerMove(missing, into or None)

        def count(moved: Moved) -> None:
            if moved.is_done:
                tally.repaired += 1
                self._progress.repaired += 1
            else:
                tally.why = moved.why
            if moved.mark is not None:
                tally.stuck += bool(moved.mark.lost) or moved.mark.wants_bookie
                if moved.mark.lost and len(tally.lost) < NAMED_MAX:
                    tally.lost.append(moved.ledger_id)
            self._report(f"{counted(self._progress.repaired, 'ledger')} repaired")

        await self._job.pass_over(choose, count)
        return protocol.PassEnded(
            named=tally.named,
            repaired=tally.repaired,
            lost=tuple(sorted(tally.lost)),
            stuck=tally.stuck,
            unreadable=tally.unreadable,
            why=tally.why,
        )

    async def tick(self) -> None:
        """Report again and again, as one large ledger takes long, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self._report(self._progress.doing)

    def _report(self, doing: str) -> None:
        self._progress.doing, self._progress.bytes = doing, self._pace.bytes
        self._on_progress(self._progress)


@dataclass(slots=True)
class Rebalanced:
    """How far it is, or how it ended; bytes as `weight_of` counts them."""

    before: dict[BookieId, int] = field(default_factory=dict)
    after: dict[BookieId, int] = field(default_factory=dict)
    """As they will be when all that was chosen is moved."""
    ledgers_read: int = 0
    chosen: int = 0
    """Ledgers that are to move."""
    chosen_bytes: int = 0
    moved: int = 0
    moved_bytes: int = 0
    failed: int = 0
    why: str = ""
    """Of one that failed."""
    is_even: bool = False
    """Whether all bookies hold much the same once all is moved."""


async def rebalance(
    client: LedgerClient,
    *,
    bytes_per_s: float,
    tolerance: float = TOLERANCE,
    bytes_max: int | None = None,
    ledgers_max: int = LEDGERS_MAX,
    dry_run: bool = False,
    on_progress: Callable[[Rebalanced], None] = lambda _: None,
) -> Rebalanced:
    """Move what is to be moved at *bytes_per_s* (0: no limit); return what that was.

    Raises `MetadataUnavailable`; what was moved until then stays moved."""
    found = Rebalanced()
    job = MoveJob(client, CopyPace(bytes_per_s), ledgers_max=ledgers_max)
    leaving = await Marks(client.store).decommissioning()
    loads = {BookieId(name): 0 for name in client.bookies.writable() if name not in leaving}
    async for part in parts_of(client.ledgers):
        for _, metadata in part:
            if metadata is not None:
                for bookie in sorted(members_of(metadata) & loads.keys()):
                    loads[bookie] += weight_of(metadata, {bookie}).bytes
        found.ledgers_read += len(part)
        on_progress(found)
    racks = {BookieId(bookie): rack for bookie, rack in client.bookies.racks().items()}
    choice = Rebalancing(loads, racks=racks, tolerance=tolerance, bytes_max=bytes_max)
    found.before = loads
    chosen_bytes: dict[LedgerId, int] = {}

    def choose(ledger_id: LedgerId, metadata: LedgerMetadata | None) -> LedgerMove | None:
        move = None if metadata is None else choice.choose(metadata)
        if move is None:
            return None
        found.chosen += 1
        found.chosen_bytes = choice.moved_bytes
        if dry_run:
            return None
        chosen_bytes[ledger_id] = move.bytes
        replica = MissingReplica(move.source, Reason.MISPLACED, now_ms())
        return LedgerMove((replica,), frozenset({move.target}))

    def count(moved: Moved) -> None:
        size_bytes = chosen_bytes.pop(moved.ledger_id)
        if moved.is_done:
            found.moved += 1
            found.moved_bytes += size_bytes
        else:
            found.failed += 1
            found.why = moved.why
        on_progress(found)

    if not choice.is_even:
        await job.pass_over(choose, count)
    found.after, found.is_even = choice.loads, choice.is_even
    return found
