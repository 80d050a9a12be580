"""Repair in the metadata store: marks, locks, and the switches of operators.

    /underreplicated/ledgers/<id & 0xff, 2 hex digits>/urL<id>   an `UnderreplicatedLedger`
    /underreplicated/urgent/urL<id>             exists: this one comes before others
    /underreplicated/locks/urL<id>              ephemeral: who repairs it now
    /underreplicated/disable                    exists: workers rest
    /underreplicated/throttle, /underreplicated/workers    see `worker`
    /underreplicated/lostbookierecoverydelay    seconds, in place of the auditor's own
    /underreplicated/*ctime                     how passes and checks ended: see `checks`
    /bookies/decommissioning                    its version counts the announcements
    /bookies/decommissioning/<bookie>           persistent: the bookie is to be emptied

No mark and no lock is needed for safety: two workers at one ledger copy the same bytes, and change
its metadata by compare-and-swap. Marks are changed by compare-and-swap, and deleted by version, so
that what an auditor adds while a worker repairs stays. A worker changes and deletes a mark only
while it holds the lock, in the same transaction, so that no worker that slept overwrites or deletes
a later mark of the same version. A deletion changes the version of the bucket, so that no caller
that slept adds to a mark that is gone (`ledger.repair_marks`). 256 buckets: the names of 100,000
marks in one node would be more than ZooKeeper answers.
"""

import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from bookie.autorecovery.protocol.repair_plan import Leaving
from ledger.errors import (
    BadVersion,
    NodeExists,
    NoSuchNode,
)
from ledger.ids import BookieId, LedgerId
from ledger.mark import MissingReplica, UnderreplicatedLedger
from ledger.metastore.port import (
    CheckOp,
    CreateOp,
    DeleteOp,
    MetadataStore,
    Session,
    SetOp,
    Watch,
    children_of,
    create_node,
    put_node,
)
from ledger.nodes import parse_node
from ledger.process import this_process
from ledger.registry import DECOMMISSIONING
from ledger.repair_marks import (
    LOCKS,
    MARKS,
    PREFIX,
    RepairLock,
    bucket_of_mark,
    mark_ledger,
    notify_workers,
    path_of_lock,
    path_of_mark,
    read_lock,
    read_mark,
)
from ledger.wire import metadata_pb2 as pb

URGENT: Final = "/underreplicated/urgent"
DISABLE: Final = "/underreplicated/disable"
DELAY: Final = "/underreplicated/lostbookierecoverydelay"
FORMAT_VERSION: Final = 1


class Ended(Enum):
    """What became of a mark that was to be deleted with its lock."""

    GONE = "neither mark nor lock is left"
    GREW = "the mark says more than it did; the lock is kept"
    LOCK_LOST = "the lock went with its session; the mark is left to the next worker"


@dataclass(slots=True)
class _Lock:
    session: Session
    is_certain: bool = False
    """Whether the store said that it is ours."""
    is_given_up: bool = False
    """Nobody here repairs the ledger any more; whether the store knows is not certain."""
    targets: tuple[BookieId, ...] = ()
    """Bookies that the lock names in the store."""


class Marks:
    """The marks and locks of one namespace, for one auditor or worker."""

    def __init__(self, store: MetadataStore, identities: tuple[str, ...] = ()) -> None:
        """*identities*: of this process (`certificates.own_names`); bookies take copies only from
        the one that the lock names."""
        self._store = store
        self._identities = identities
        self._token = secrets.token_hex(8)
        self._locks: dict[LedgerId, _Lock] = {}
        """Locks that were asked for, and not given back."""

    # Marks.

    async def add(
        self, ledger_id: LedgerId, missing: Iterable[MissingReplica], *, urgent: bool = False
    ) -> bool:
        """Mark the ledger; return False if its mark said all that already (`mark_ledger`).

        *urgent*: before others. Raises `MetadataUnavailable`: then it may be marked or not, and it
        can be repeated."""
        is_news = await mark_ledger(self._store, ledger_id, missing, urgent=urgent)
        if urgent:
            with suppress(NodeExists):
                await self._store.create(_urgent_path(ledger_id))
        return is_news

    async def read(self, ledger_id: LedgerId) -> tuple[UnderreplicatedLedger, int] | None:
        """Return mark and version, None if the ledger is not marked. Raises `DamagedMetadata`."""
        return await read_mark(self._store, ledger_id)

    async def write(self, ledger_id: LedgerId, mark: UnderreplicatedLedger, version: int) -> bool:
        """Compare and swap; return False if it was changed or deleted meanwhile, or if the lock is
        not this worker's any more."""
        if not self._holds(ledger_id):
            return False
        ops = (
            SetOp(path_of_mark(ledger_id), mark.encode(), version),
            CheckOp(path_of_lock(ledger_id)),
        )
        try:
            await self._store.multi(ops)
        except (BadVersion, NoSuchNode):
            return False
        return True

    async def end(self, ledger_id: LedgerId, version: int) -> Ended:
        """Delete the mark iff it is at *version*, and the lock with it, which is this worker's."""
        if not self._holds(ledger_id):
            return Ended.LOCK_LOST
        mark_path, lock_path = path_of_mark(ledger_id), path_of_lock(ledger_id)
        try:
            bucket = SetOp(bucket_of_mark(ledger_id), b"")
            await self._store.multi([DeleteOp(mark_path, version), bucket, DeleteOp(lock_path)])
        except BadVersion:
            return Ended.GREW
        except NoSuchNode as error:
            if error.path != mark_path:
                self._locks.pop(ledger_id, None)
                return Ended.LOCK_LOST
            await self.unlock(ledger_id)
        self._locks.pop(ledger_id, None)
        return Ended.GONE

    async def list(self) -> AsyncIterator[LedgerId]:
        """Yield the ledgers that are marked, as `buckets` does."""
        async for bucket in self.buckets():
            for ledger_id in bucket:
                yield ledger_id

    async def all(self) -> AsyncIterator[tuple[LedgerId, UnderreplicatedLedger]]:
        """Yield the ledgers that are marked, and their marks. Raises `DamagedMetadata`."""
        async for ledger_id in self.list():
            found = await self.read(ledger_id)
            if found is not None:
                yield ledger_id, found[0]

    async def buckets(self, random: Random | None = None) -> AsyncIterator[tuple[LedgerId, ...]]:
        """Yield the ledgers that are marked, bucket by bucket; one is in memory at a time.

        With *random* in any order: workers that go the same way, and meet once, would go on side by
        side and try to lock the same ledgers."""
        await self._store.sync(MARKS)
        buckets = await children_of(self._store, MARKS)
        if random is not None:
            random.shuffle(buckets)
        for bucket in buckets:
            yield await self._ledgers(f"{MARKS}/{bucket}")

    async def urgent(self) -> tuple[LedgerId, ...]:
        """Return the ledgers that come before others."""
        return await self._ledgers(URGENT)

    async def no_longer_urgent(self, ledger_id: LedgerId) -> None:
        """Let the ledger wait for its turn, or forget it once it is repaired."""
        with suppress(NoSuchNode):
            await self._store.delete(_urgent_path(ledger_id))

    async def _ledgers(self, path: str) -> tuple[LedgerId, ...]:
        names = await children_of(self._store, path)
        return tuple(each for name in names if (each := _ledger_of(name)) is not None)

    async def notify_workers(self) -> None:
        """Let workers know that there are new marks; best effort, as they look by themselves."""
        await notify_workers(self._store)

    def watch(self) -> Watch:
        """Watch for `notify_workers`."""
        return self._store.watch(MARKS)

    # Locks.

    async def lock(self, ledger_id: LedgerId) -> bool:
        """Take the ledger for this worker, as long as the store's session lives; return False if
        another one has it. Raises `MetadataUnavailable`.

        What is read after this returned True is at least as new as the lock."""
        session = self._store.session
        if any(lock.session is not session for lock in self._locks.values()):
            self._locks = {
                each: lock for each, lock in self._locks.items() if lock.session is session
            }
        self._locks[ledger_id] = lock = _Lock(session)
        try:
            await self._store.create(
                path_of_lock(ledger_id), self._content(()).encode(), ephemeral=True
            )
        except NodeExists:  # also after a create of ours whose reply was lost
            if await self._holder(ledger_id) != self._token:
                if self._locks.get(ledger_id) is lock:  # else its session has ended meanwhile
                    del self._locks[ledger_id]
                return False
        lock.is_certain = True
        return True

    async def name_target(self, ledger_id: LedgerId, bookie: BookieId) -> bool:
        """Write into this worker's lock that *bookie* gets copies; return False if the lock is
        lost. Bookies that know their clients refuse copies that no lock announces
        (`bookie.server.authorizer`); without TLS there is nothing to write."""
        if not self._identities:
            return True
        lock = self._locks.get(ledger_id)
        if lock is None or not self._holds(ledger_id):
            return False
        if bookie in lock.targets:
            return True
        found = await read_lock(self._store, ledger_id)
        if found is None or found[0].token != self._token:
            return False
        targets = (*lock.targets, bookie)
        try:
            await self._store.set(
                path_of_lock(ledger_id), self._content(targets).encode(), found[1]
            )
        except (BadVersion, NoSuchNode):
            return False
        lock.targets = targets
        return True

    def _content(self, targets: tuple[BookieId, ...]) -> RepairLock:
        return RepairLock(this_process(), self._token, self._identities, targets)

    async def unlock(self, ledger_id: LedgerId) -> None:
        """Give it back, unless it is gone with its session, or was never ours."""
        lock = self._locks.get(ledger_id)
        if lock is None:
            return
        lock.is_given_up = True
        if not lock.is_certain and await self._holder(ledger_id) != self._token:
            lock = None
        if lock is not None and self._holds(ledger_id):
            with suppress(NoSuchNode):
                await self._store.delete(path_of_lock(ledger_id))
        self._locks.pop(ledger_id, None)

    def _holds(self, ledger_id: LedgerId) -> bool:
        """Return whether the lock is this worker's, as far as can be known without asking."""
        lock = self._locks.get(ledger_id)
        if lock is None:
            return False
        return lock.session is self._store.session and not lock.session.lost.is_set()

    async def _holder(self, ledger_id: LedgerId) -> str:
        found = await read_lock(self._store, ledger_id)
        return "" if found is None else found[0].token

    async def locked_ledgers(self) -> frozenset[LedgerId]:
        """Return the ledgers that are being repaired now.

        A lock of this worker that the store could not take back is none: as long as the session
        lives nobody else can repair the ledger."""
        kept = {each for each, lock in self._locks.items() if lock.is_given_up}
        return frozenset(await self._ledgers(LOCKS)) - kept

    async def locked(self) -> dict[LedgerId, str]:
        """Return the ledgers that are being repaired now, and by whom."""
        holders: dict[LedgerId, str] = {}
        for name in await children_of(self._store, LOCKS):
            ledger_id = _ledger_of(name)
            if ledger_id is None:
                continue
            if (found := await read_lock(self._store, ledger_id)) is not None:
                holders[ledger_id] = found[0].worker
        return holders

    # Switches.

    async def enabled(self) -> bool:
        return await self._store.exists(DISABLE) is None

    async def enable(self) -> None:
        with suppress(NoSuchNode):
            await self._store.delete(DISABLE)

    async def disable(self, *, now_ms: int) -> None:
        node = pb.RepairSwitchNode(version=FORMAT_VERSION, who=this_process(), since_ms=now_ms)
        with suppress(NodeExists):
            await self._store.create(DISABLE, node.SerializeToString(deterministic=True))

    def watch_switch(self) -> Watch:
        return self._store.watch(DISABLE)

    async def delay_s(self) -> float | None:
        """Return the delay that an operator has set, None if none has. Raises `DamagedMetadata`."""
        try:
            value = (await self._store.get(DELAY)).value
        except NoSuchNode:
            return None
        node = pb.RepairDelayNode()
        parse_node(node, value, DELAY, version=FORMAT_VERSION)
        return node.delay_s

    async def set_delay(self, delay_s: float | None) -> None:
        """Let auditors wait so long for a bookie that is away; None: as long as they like."""
        if delay_s is None:
            with suppress(NoSuchNode):
                await self._store.delete(DELAY)
            return
        node = pb.RepairDelayNode(version=FORMAT_VERSION, delay_s=delay_s)
        await put_node(self._store, DELAY, node.SerializeToString(deterministic=True))

    async def decommissioning(self) -> frozenset[BookieId]:
        """Return the bookies that are to be emptied."""
        return frozenset(map(BookieId, await children_of(self._store, DECOMMISSIONING)))

    async def leaving(self) -> Leaving:
        """Return who is to be emptied, and a version that each `announce` changes."""
        version = await self._store.exists(DECOMMISSIONING)
        if version is None:
            await create_node(self._store, DECOMMISSIONING)
            version = (await self._store.get(DECOMMISSIONING)).version
        return Leaving(await self.decommissioning(), version)

    async def announce(self, bookie: BookieId) -> None:
        """Write down that *bookie* is to be emptied, for good or until `withdraw`.

        The same transaction changes the version of the list: a worker that chose the bookie before,
        and slept, no longer swaps it in."""
        await create_node(self._store, DECOMMISSIONING)
        with suppress(NodeExists):
            child = CreateOp(f"{DECOMMISSIONING}/{bookie}")
            await self._store.multi((child, SetOp(DECOMMISSIONING, b"")))

    async def withdraw(self, bookie: BookieId) -> None:
        with suppress(NoSuchNode):
            await self._store.delete(f"{DECOMMISSIONING}/{bookie}")


def _urgent_path(ledger_id: LedgerId) -> str:
    return f"{URGENT}/{PREFIX}{ledger_id}"


def _ledger_of(name: str) -> LedgerId | None:
    digits = name.removeprefix(PREFIX)
    if digits == name or not (digits.isascii() and digits.isdecimal()):
        return None
    return LedgerId(int(digits))
