"""Carries out `protocol.decommission` against the metadata store and the bookie."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from bookie.autorecovery.checks import parts_of
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol import decommission as protocol
from bookie.autorecovery.protocol.move_job import members_of, weight_of
from bookie.autorecovery.worker import reports
from ledger.client import LedgerClient
from ledger.errors import (
    BadVersion,
    NodeExists,
    NoSuchNode,
)
from ledger.ids import BookieId, LedgerId
from ledger.log_events import now_ms
from ledger.mark import MissingReplica, Reason
from ledger.metastore.port import CreateOp, DeleteOp, SetOp, Versioned, create_node
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
from ledger.transport.operator import BookieOperator

_WHY: Final = "it was emptied for good"
HOPELESS_MAX = 100
"""Ledgers with lost entries that a report names."""


async def decommission(
    client: LedgerClient,
    bookie: BookieId,
    *,
    on_report: Callable[[protocol.Report], None] = lambda _: None,
    pause_s: float = protocol.PAUSE_S,
    ask_read_only: "Callable[[str, BookieId], Awaitable[None]] | None" = None,
) -> protocol.DecommissionEnd:
    """Empty *bookie*, with the workers that run; return how it ended.

    Takes as long as the copies take; may be cancelled at any moment and called again. What the
    metadata store refuses is tried again for ever, and reported."""
    ask_read_only = ask_read_only or partial(_ask_read_only, client=client)
    emptying = _Decommissioning(client, bookie, on_report, ask_read_only)
    return await run(protocol.empty(pause_s=pause_s), emptying.perform)


class _Decommissioning:
    def __init__(
        self,
        client: LedgerClient,
        bookie: BookieId,
        on_report: Callable[[protocol.Report], None],
        ask_read_only: Callable[[str, BookieId], Awaitable[None]],
    ) -> None:
        self._client, self._bookie = client, bookie
        self._store = client.store
        self._marks = Marks(client.store)
        self._on_report, self._ask_read_only = on_report, ask_read_only

    async def perform(self, action: Action[Any]) -> object:
        match action:
            case protocol.LookAtBookie():
                return await self._look()
            case protocol.ScanLedgers(mark):
                return await self._scan(mark=mark)
            case protocol.ReadMarks():
                return await self._read_marks()
            case protocol.Announce():
                await self._marks.announce(self._bookie)
            case protocol.TurnReadOnly():
                await self._turn_read_only()
            case protocol.Retire(version):
                return await self._retire(version)
            case protocol.Withdraw():
                await self._marks.withdraw(self._bookie)
            case protocol.Report():
                self._on_report(action)
            case _:
                raise AssertionError(f"no action of emptying: {action}")
        return None

    async def _look(self) -> protocol.BookieSeen:
        await self._store.sync(COOKIES)
        cookie = await self._cookie()
        registration = await find_registration(self._store, self._bookie)
        others = [
            found
            for found in self._client.bookies.available()
            if found.bookie != self._bookie and not found.read_only
        ]
        return protocol.BookieSeen(
            is_known=cookie is not None,
            version=-1 if cookie is None else cookie.version,
            is_registered=registration is not None,
            is_read_only=registration is not None and registration.read_only,
            is_leaving=self._bookie in await self._marks.decommissioning(),
            others_writable=len(others),
        )

    async def _cookie(self) -> Versioned | None:
        """Return the node of the cookie; None if there is none, or nothing is left to be done."""
        try:
            cookie = await self._store.get(f"{COOKIES}/{self._bookie}")
        except NoSuchNode:
            return None
        is_done = await retirement_of(self._store, self._bookie) is Retirement.EMPTIED
        return None if is_done else cookie

    async def _scan(self, *, mark: bool) -> protocol.LedgersScanned:
        await self._store.verify()  # what is not found there does not name the bookie
        naming = naming_bytes = unreadable = widest = 0
        async for part in parts_of(self._client.ledgers):
            marked = False
            for ledger_id, metadata in part:
                if metadata is None:
                    unreadable += 1
                elif self._bookie in members_of(metadata):
                    naming += 1
                    naming_bytes += weight_of(metadata, {self._bookie}).bytes
                    widest = max(widest, metadata.quorum.ensemble)
                    if mark:
                        replica = MissingReplica(self._bookie, Reason.DECOMMISSIONING, now_ms())
                        marked |= await self._marks.add(ledger_id, [replica])
            if marked:
                await self._marks.notify_workers()
        return protocol.LedgersScanned(
            naming=naming, naming_bytes=naming_bytes, unreadable=unreadable, widest=widest
        )

    async def _read_marks(self) -> protocol.MarksSeen:
        naming = 0
        hopeless: list[LedgerId] = []
        async for ledger_id in self._marks.list():
            found = await self._marks.read(ledger_id)
            if found is None or self._bookie not in found[0].bookies:
                continue
            naming += 1
            if found[0].lost and len(hopeless) < HOPELESS_MAX:
                hopeless.append(ledger_id)
        idle_why = await self._idle_why() if naming else ""
        return protocol.MarksSeen(naming, tuple(sorted(hopeless)), idle_why)

    async def _idle_why(self) -> str:
        if not await self._marks.enabled():
            return "repair is switched off: 'dlog autorecovery enable' lets it go on"
        if not await reports(self._store):
            return "no process of repair runs: 'dlog autorecovery start' is one"
        return ""

    async def _turn_read_only(self) -> None:
        registration = await find_registration(self._store, self._bookie)
        if registration is not None:  # else it is gone since: that is quiet too
            address = registration.operator_address or registration.address
            await self._ask_read_only(address, self._bookie)

    async def _retire(self, version: int) -> bool:
        cookie = await self._cookie()
        if cookie is None:
            return True  # a reply was lost
        path = f"{COOKIES}/{self._bookie}"
        retired = retired_cookie(cookie.value, path, why=_WHY, now_ms=now_ms(), emptied=True)
        registrations = [f"{root}/{self._bookie}" for root in (AVAILABLE, READ_ONLY)]
        try:
            for root in (AVAILABLE, READ_ONLY):
                await create_node(self._store, root)
            # What can be created is not there: so it is retired only while it is not registered.
            absent = [op(root) for root in registrations for op in (CreateOp, DeleteOp)]
            await self._store.multi((SetOp(path, retired, version), *absent))
        except (BadVersion, NodeExists):
            return False
        return True


async def _ask_read_only(
    address: str, bookie: BookieId, client: LedgerClient | None = None
) -> None:
    security = None if client is None else client.security
    takes = None if client is None else client.bookies.takes(bookie)
    meant = None if client is None else client.bookies.identity(bookie)
    async with BookieOperator(
        address, bookie=bookie, meant=meant, security=security, takes=takes or Takes.PLAIN
    ) as operator:
        await operator.set_read_only(read_only=True)


async def keep(client: LedgerClient, bookie: BookieId) -> None:
    """Take back that *bookie* is to be emptied; to take entries again is for `readonly off`.

    Raises `MetadataUnavailable`."""
    await Marks(client.store).withdraw(bookie)
