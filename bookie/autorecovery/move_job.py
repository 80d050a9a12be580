"""Does what `protocol.move_job` decides: moves of copies that a command begins.

The command copies itself with the repair of the workers, on marks of its own (`MoveJob`). Such a
mark is in memory, so nothing is left of it when the command is interrupted, and no worker does what
was meant for this command. Locks are everybody's. Only a bookie that is decommissioned is left to
the workers that run, by marks in the metadata store: that takes days, and outlives the command.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from bookie.autorecovery.checks import parts_of
from bookie.autorecovery.marks import Ended, Marks
from bookie.autorecovery.protocol import move_job as protocol
from bookie.autorecovery.protocol.move_job import NAMED_MAX
from bookie.autorecovery.protocol.rebalance import (
    TOLERANCE,
    Rebalancing,
    Weight,
    has_no_source,
    members_of,
    weight_of,
)
from bookie.autorecovery.protocol.repair import RepairConfig, RepairEnd, RepairOutcome
from bookie.autorecovery.repair_io import CopyPace, RepairCache, RepairContext, repair_ledger
from bookie.autorecovery.worker import Worker, WorkerConfig, reports
from ledger.client import LedgerClient
from ledger.errors import BadVersion, NodeExists, NoSuchNode
from ledger.ids import BookieId, LedgerId
from ledger.log_events import now_ms
from ledger.mark import MissingReplica, Reason, UnderreplicatedLedger
from ledger.metadata import LedgerMetadata
from ledger.metastore.port import CreateOp, DeleteOp, SetOp, Versioned, children_of, create_node
from ledger.procedures import run
from ledger.protocol.procedure import Action
from ledger.registry import (
    AVAILABLE,
    COOKIES,
    READ_ONLY,
    Retirement,
    find_registration,
    retired_cookie,
    retirement_of,
)
from ledger.security.settings import Takes
from ledger.tasks import for_each
from ledger.transport.operator import BookieOperator
from ledger.values import counted

LEDGERS_MAX: Final = 4
TICK_S: Final = 0.5
"""How old a report of the progress becomes."""
_LOOK_S: Final = 1.0
"""How often the worker of a replacement looks for marks."""
_WHY_RETIRED: Final = "it was emptied for good"
AskReadOnly = Callable[[str, BookieId], Awaitable[None]]
"""Asks the bookie at an address to be read-only."""


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
    """From where copies of a ledger go, and why (*missing*); and to where, None: any
    writable bookie."""

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
    finish: protocol.MoveEnd
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
    request: protocol.MoveRequest,
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
    moving = _MoveIO(
        client, CopyPace(bytes_per_s), ledgers_max, config=config, on_progress=on_progress
    )
    until = protocol.UntilCopied(request, idle_s_max=idle_s_max)
    ticking = asyncio.ensure_future(moving.tick())
    try:
        finish = await run(protocol.move(until, pause_s=pause_s), moving.perform)
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
    return moving.result(finish)


async def decommission(
    client: LedgerClient,
    bookie: BookieId,
    *,
    on_report: Callable[[protocol.Report], None] = lambda _: None,
    pause_s: float = protocol.PAUSE_S,
    ask_read_only: AskReadOnly | None = None,
) -> protocol.MoveEnd:
    """Empty *bookie*, with the workers that run; return how it ended.

    Takes as long as the copies take; may be cancelled at any moment and called again. What the
    metadata store refuses is tried again permanently, and reported."""
    moving = _MoveIO(client, CopyPace(0.0), on_report=on_report, ask_read_only=ask_read_only)
    until = protocol.UntilRetired(bookie)
    return await run(protocol.move(until, pause_s=pause_s), moving.perform)


@dataclass(frozen=True, slots=True)
class Replacement:
    """How it ended."""

    recovery: RecoveryResult
    departure: protocol.MoveEnd | None
    """Of the old bookie; None: not all that it held could be copied."""


async def replace_bookie(
    client: LedgerClient,
    old: BookieId,
    new: BookieId,
    *,
    bytes_per_s: float,
    ledgers_max: int = LEDGERS_MAX,
    config: RepairConfig | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_report: Callable[[protocol.Report], None] = lambda _: None,
) -> Replacement:
    """Copy what *old* held, which is lost, into *new*, and what cannot go there to others; then see
    that nothing names *old* any more.

    A worker runs beside the last part: marks may name the bookie, and no other process need work on
    them. Takes as long as the copies take; may be cancelled at any moment and called again."""
    recovered = partial(
        recover_bookies,
        client,
        bytes_per_s=bytes_per_s,
        ledgers_max=ledgers_max,
        config=config,
        on_progress=on_progress,
    )
    done = await recovered(protocol.MoveRequest(frozenset({old}), frozenset({new})))
    if done.finish.outcome is protocol.MoveOutcome.INCOMPLETE:
        done = done.followed_by(await recovered(protocol.MoveRequest(frozenset({old}))))
    if done.finish.outcome is not protocol.MoveOutcome.COMPLETE:
        return Replacement(done, None)
    async with Worker(client, WorkerConfig(bytes_per_s=bytes_per_s, look_s=_LOOK_S)):
        return Replacement(done, await decommission(client, old, on_report=on_report))


async def keep(client: LedgerClient, bookie: BookieId) -> None:
    """Take back that *bookie* is to be emptied; to take entries again is for `readonly off`.

    Raises `MetadataUnavailable`."""
    await Marks(client.store).withdraw(bookie)


@dataclass(slots=True)
class _Pass:
    """What a pass has met so far; see `protocol.PassEnded`."""

    named: int = 0
    named_bytes: int = 0
    repaired: int = 0
    lost: list[LedgerId] = field(default_factory=list)
    stuck: int = 0
    unreadable: int = 0
    marked: int = 0
    why: str = ""

    def names(
        self, metadata: LedgerMetadata | None, bookies: frozenset[BookieId]
    ) -> frozenset[BookieId]:
        """Count the ledger; return which of *bookies* it names, as far as can be read."""
        if metadata is None:
            self.unreadable += 1
            return protocol.NOBODY
        named = members_of(metadata) & bookies
        if named:
            self.named += 1
            self.named_bytes += weight_of(metadata, named).bytes
        return named

    def keeps(self, ledger_id: LedgerId, mark: UnderreplicatedLedger) -> None:
        """Record what *mark* says of a ledger after an attempt to repair it."""
        self.stuck += bool(mark.lost) or mark.wants_bookie
        if mark.lost and len(self.lost) < NAMED_MAX:
            self.lost.append(ledger_id)

    def ended(self) -> protocol.PassEnded:
        return protocol.PassEnded(
            named=self.named,
            named_bytes=self.named_bytes,
            repaired=self.repaired,
            lost=tuple(sorted(self.lost)),
            stuck=self.stuck,
            unreadable=self.unreadable,
            marked=self.marked,
            why=self.why,
        )


class _MoveIO:
    """Does the actions of one job."""

    def __init__(
        self,
        client: LedgerClient,
        pace: CopyPace,
        ledgers_max: int = LEDGERS_MAX,
        *,
        config: RepairConfig | None = None,
        on_progress: Callable[[Progress], None] = lambda _: None,
        on_report: Callable[[protocol.Report], None] = lambda _: None,
        ask_read_only: AskReadOnly | None = None,
    ) -> None:
        self._client, self._store, self._pace = client, client.store, pace
        self._job = MoveJob(client, pace, config, ledgers_max=ledgers_max)
        self._marks = Marks(client.store)
        self._since_ms = now_ms()
        """When all of it was marked, so to say: the grace of writers counts from here."""
        self._progress, self._on_progress = Progress(), on_progress
        self._on_report = on_report
        self._ask_read_only = ask_read_only or partial(_ask_read_only, client)

    def result(self, finish: protocol.MoveEnd) -> RecoveryResult:
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
                return await self._read_bookies()
            case protocol.LookAtBookie(bookie):
                return await self._look(bookie)
            case protocol.Survey(bookies, verified):
                return await self._survey(bookies, verified=verified)
            case protocol.RepairAll(bookies, into):
                return await self._repair_all(bookies, into)
            case protocol.MarkAll(bookies):
                return await self._mark_all(bookies)
            case protocol.Announce(bookie):
                await self._marks.announce(bookie)
            case protocol.TurnReadOnly(bookie):
                await self._turn_read_only(bookie)
            case protocol.Retire(bookie, version):
                return await self._retire(bookie, version)
            case protocol.Withdraw(bookie):
                await self._marks.withdraw(bookie)
            case protocol.Report():
                self._on_report(action)
            case _:
                raise AssertionError(f"no action of a move job: {action}")
        return None

    # Passes over all ledgers.

    async def _survey(self, bookies: frozenset[BookieId], *, verified: bool) -> protocol.Surveyed:
        if verified:
            await self._store.verify()
        there = self._client.environment.registered()
        held, bare, unreadable, widest, read = Weight(), list[LedgerId](), 0, 0, 0
        async for part in parts_of(self._client.ledgers):
            for ledger_id, metadata in part:
                if metadata is None:
                    unreadable += 1
                    continue
                weight = weight_of(metadata, bookies)
                held = held.plus(weight)
                if not weight.fragments:
                    continue
                widest = max(widest, metadata.quorum.ensemble)
                if len(bare) < NAMED_MAX and has_no_source(metadata, there):
                    bare.append(ledger_id)
            read += len(part)
            self._report(f"{counted(read, 'ledger')} read")
        self._progress.surveyed = protocol.Surveyed(
            held=held, widest=widest, without_source=tuple(sorted(bare)), unreadable=unreadable
        )
        return self._progress.surveyed

    async def _repair_all(
        self, bookies: frozenset[BookieId], into: frozenset[BookieId]
    ) -> protocol.PassEnded:
        met = _Pass()

        def choose(ledger_id: LedgerId, metadata: LedgerMetadata | None) -> LedgerMove | None:
            named = met.names(metadata, bookies)
            if not named:
                return None
            self._report(f"repairing ledger {ledger_id}")
            return LedgerMove(_leaving(named, self._since_ms), into or None)

        def count(moved: Moved) -> None:
            if moved.is_done:
                met.repaired += 1
                self._progress.repaired += 1
            else:
                met.why = moved.why
            if moved.mark is not None:
                met.keeps(moved.ledger_id, moved.mark)
            self._report(f"{counted(self._progress.repaired, 'ledger')} repaired")

        await self._job.pass_over(choose, count)
        return met.ended()

    async def _mark_all(self, bookies: frozenset[BookieId]) -> protocol.PassEnded:
        await self._store.verify()  # what is not found there does not name the bookie
        met = _Pass()
        async for part in parts_of(self._client.ledgers):
            is_news = False
            for ledger_id, metadata in part:
                if named := met.names(metadata, bookies):
                    is_news |= await self._marks.add(ledger_id, _leaving(named, now_ms()))
            if is_news:
                await self._marks.notify_workers()
        async for ledger_id, mark in self._marks.all():
            if mark.bookies & bookies:
                met.marked += 1
                met.keeps(ledger_id, mark)
        met.why = await self._why_idle() if met.marked else ""
        return met.ended()

    async def _why_idle(self) -> str:
        """Return why no worker works on marks; empty: one does."""
        if not await self._marks.enabled():
            return "repair is switched off: 'dlog autorecovery enable' resumes it"
        if not await reports(self._store):
            return "no process of repair runs: 'dlog autorecovery start' is one"
        return ""

    # Bookies.

    async def _read_bookies(self) -> protocol.BookiesSeen:
        await self._store.sync(COOKIES)
        known = frozenset(map(BookieId, await children_of(self._store, COOKIES)))
        environment = self._client.environment
        return protocol.BookiesSeen(
            known, environment.registered(), writable=frozenset(environment.writable())
        )

    async def _look(self, bookie: BookieId) -> protocol.BookieSeen:
        await self._store.sync(COOKIES)
        cookie = await self._cookie(bookie)
        registration = await find_registration(self._store, bookie)
        others = {*self._client.bookies.writable()} - {bookie}
        return protocol.BookieSeen(
            is_known=cookie is not None,
            version=-1 if cookie is None else cookie.version,
            is_registered=registration is not None,
            is_read_only=registration is not None and registration.read_only,
            is_leaving=bookie in await self._marks.decommissioning(),
            others_writable=len(others),
        )

    async def _cookie(self, bookie: BookieId) -> Versioned | None:
        """Return the node of the cookie; None if there is none, or nothing is left to be done."""
        try:
            cookie = await self._store.get(f"{COOKIES}/{bookie}")
        except NoSuchNode:
            return None
        is_done = await retirement_of(self._store, bookie) is Retirement.EMPTIED
        return None if is_done else cookie

    async def _turn_read_only(self, bookie: BookieId) -> None:
        registration = await find_registration(self._store, bookie)
        if registration is not None:  # else it is gone since: that is quiet too
            address = registration.operator_address or registration.address
            await self._ask_read_only(address, bookie)

    async def _retire(self, bookie: BookieId, version: int) -> bool:
        cookie = await self._cookie(bookie)
        if cookie is None:
            return True  # a reply was lost
        path = f"{COOKIES}/{bookie}"
        retired = retired_cookie(
            cookie.value, path, why=_WHY_RETIRED, now_ms=now_ms(), emptied=True
        )
        registrations = [f"{root}/{bookie}" for root in (AVAILABLE, READ_ONLY)]
        try:
            for root in (AVAILABLE, READ_ONLY):
                await create_node(self._store, root)
            # What can be created is not there: so it is retired only while it is not registered.
            absent = [op(root) for root in registrations for op in (CreateOp, DeleteOp)]
            await self._store.multi((SetOp(path, retired, version), *absent))
        except (BadVersion, NodeExists):
            return False
        return True

    # Progress.

    async def tick(self) -> None:
        """Report again and again, as one large ledger takes long, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self._report(self._progress.doing)

    def _report(self, doing: str) -> None:
        self._progress.doing, self._progress.bytes = doing, self._pace.bytes
        self._on_progress(self._progress)


def _leaving(bookies: frozenset[BookieId], since_ms: int) -> tuple[MissingReplica, ...]:
    reason = Reason.DECOMMISSIONING
    return tuple(MissingReplica(bookie, reason, since_ms) for bookie in sorted(bookies))


async def _ask_read_only(client: LedgerClient, address: str, bookie: BookieId) -> None:
    async with BookieOperator(
        address,
        bookie=bookie,
        meant=client.bookies.identity(bookie),
        security=client.security,
        takes=client.bookies.takes(bookie) or Takes.PLAIN,
    ) as operator:
        await operator.set_read_only(read_only=True)


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
