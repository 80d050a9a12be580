"""Carries out `protocol.manual_recovery`: reads all ledgers, repairs those of these bookies."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bookie.autorecovery.ledger_scan import parts_of
from bookie.autorecovery.manual_repair import Errands
from bookie.autorecovery.protocol import manual_recovery as protocol
from bookie.autorecovery.protocol.ledger_weight import Weight, has_no_source, weight_of
from bookie.autorecovery.protocol.manual_recovery import NAMED_MAX
from bookie.autorecovery.protocol.repair import RepairConfig
from bookie.autorecovery.protocol.repair import RepairOutcome as Repaired
from bookie.autorecovery.repair_io import Pace
from ledger.client import LedgerClient
from ledger.clock import now_ms
from ledger.concurrently import for_each
from ledger.ids import BookieId, LedgerId
from ledger.mark import Lack, Reason
from ledger.metadata import LedgerMetadata
from ledger.metastore.nodes import children_of
from ledger.procedures import run
from ledger.protocol.procedure import Action
from ledger.registry import COOKIES
from ledger.values import counted

LEDGERS_MAX: Final = 4
TICK_S: Final = 0.5
"""How old a report of the progress becomes."""


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
class Recovered:
    finish: protocol.Finish
    surveyed: protocol.Surveyed
    repaired: int
    entries: int
    bytes: int

    def followed_by(self, other: "Recovered") -> "Recovered":
        """Return what this and the one after it came to together."""
        return Recovered(
            finish=other.finish,
            surveyed=self.surveyed,
            repaired=self.repaired + other.repaired,
            entries=self.entries + other.entries,
            bytes=self.bytes + other.bytes,
        )


async def recover_bookies(
    client: LedgerClient,
    request: protocol.Request,
    *,
    bytes_per_s: float,
    ledgers_max: int = LEDGERS_MAX,
    config: RepairConfig | None = None,
    pause_s: float = protocol.PAUSE_S,
    idle_s_max: float = protocol.IDLE_S_MAX,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Recovered:
    """Copy what the bookies of *request* held to others; return how that ended.

    Takes as long as the copies take, at *bytes_per_s* (0: no limit), *ledgers_max* at a time. May
    be cancelled at any moment, and called again."""
    running = _Recovering(client, Pace(bytes_per_s), ledgers_max, config, on_progress)
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
        pace: Pace,
        ledgers_max: int,
        config: RepairConfig | None,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._client, self._pace, self._ledgers_max = client, pace, ledgers_max
        self._errands = Errands(client, pace, config or RepairConfig())
        self._since_ms = now_ms()
        """When all of it was marked, so to say: the grace of writers counts from here."""
        self._progress, self._on_progress = Progress(), on_progress

    def result(self, finish: protocol.Finish) -> Recovered:
        return Recovered(
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

        async def take(found: tuple[LedgerId, LedgerMetadata | None]) -> None:
            ledger_id, metadata = found
            if metadata is None:
                tally.unreadable += 1
                return
            named = {name for each in metadata.fragments for name in each.bookies} & bookies
            if not named:
                return
            tally.named += 1
            lacks = tuple(
                Lack(name, Reason.DECOMMISSIONING, self._since_ms) for name in sorted(named)
            )
            await self._repair(ledger_id, lacks, into, tally)

        async for part in parts_of(self._client.ledgers):
            await for_each(part, take, at_once=self._ledgers_max)
        return protocol.PassEnded(
            named=tally.named,
            repaired=tally.repaired,
            lost=tuple(sorted(tally.lost)),
            stuck=tally.stuck,
            unreadable=tally.unreadable,
            why=tally.why,
        )

    async def _repair(
        self,
        ledger_id: LedgerId,
        lacks: tuple[Lack, ...],
        into: frozenset[BookieId],
        tally: _Tally,
    ) -> None:
        self._report(f"repairing ledger {ledger_id}")
        done = await self._errands.do(ledger_id, lacks, into or None)
        if done.finish.outcome is Repaired.DONE:
            tally.repaired += 1
            self._progress.repaired += 1
        else:
            tally.why = f"ledger {ledger_id}: {done.finish.why or 'another worker has it'}"
        if done.mark is not None:
            tally.stuck += bool(done.mark.lost) or done.mark.wants_bookie
            if done.mark.lost and len(tally.lost) < NAMED_MAX:
                tally.lost.append(ledger_id)
        self._report(f"{counted(self._progress.repaired, 'ledger')} repaired")

    async def tick(self) -> None:
        """Report again and again, as one large ledger takes long, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self._report(self._progress.doing)

    def _report(self, doing: str) -> None:
        self._progress.doing, self._progress.bytes = doing, self._pace.bytes
        self._on_progress(self._progress)
