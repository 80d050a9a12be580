"""Lets in what was granted: knows the rules of the metadata store, tells of what was refused.

Rules are read when they change, and now and then in any case. While the store is out of reach, or
holds what this program does not understand, the last that were read stay in force. They are kept
in memory only: a bookie starts with the store, or not at all.

Repair is let in by a rule of its own. It copies what is settled: acknowledged, and final. Its lock,
in the metadata store, names the certificate that copies and the bookies that get copies. A copy is
taken if both agree with it, so a certificate of the role `bookie` alone adds nothing to any log,
and neither does one beside somebody else's repair. To recover a ledger that is not CLOSED takes the
right to add.

Invariants of copies:
    no entry is taken above the settled end of its fragment, nor below 0
    no entry is taken that the fragment's ensemble gives to other members than this bookie
    nothing is taken unless the ledger's lock names the client, and this bookie as its target
    no last add confirmed is taken: a bookie holds a stripe, and cannot know that it is true
"""

import asyncio
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from bookie.server.metadata_lookups import LedgerLookups, Owned, Owners
from ledger.errors import DamagedMetadata
from ledger.ids import LedgerId
from ledger.ledger_owner import RENAMED_PATH
from ledger.log_events import get_logger
from ledger.manager import LedgerStore
from ledger.metadata import LedgerMetadata
from ledger.metastore.ops import INSTANCE
from ledger.metastore.port import MetadataStore
from ledger.quorum import holds
from ledger.repair_marks import LOCKS, RepairLock, read_lock
from ledger.requests import AddRun, Status
from ledger.security.access import ACCESS, NEEDED, Grant, Permission, Rules, allowed
from ledger.security.documents import follow, read_rules
from ledger.security.names import Identity

OWNERS_MAX: Final = 65_536
"""Ledgers of which it is remembered which log they belong to."""
MASKS_MAX: Final = 4096
"""Ledgers of which it is remembered what one identity may do with them."""
_ADD: Final = int(Permission.ADD)
"""Looked up for each run, which members of an enumeration are slow at."""
TELL_S: Final = 1.0
"""So often, at most, the log says that something was refused."""
_NOBODY: Final = ""
_SHOWN_MAX: Final = 50
_log = get_logger(__name__)


class _NotKnown(Enum):
    NOT_KNOWN = 0


class IdentityRights:
    """What one identity may do; all its connections share it."""

    __slots__ = ("__weakref__", "_anything", "_everywhere", "_grants", "_masks", "_table", "who")

    def __init__(self, table: "RightsTable", who: str) -> None:
        self._table = table
        self.who = who
        """As it shows itself."""
        self._masks: dict[int, int] = {}
        self.forget()

    def forget(self) -> None:
        """Forget what was derived from other rules, or other names; it is derived again when it is
        needed, so that a change of the rules does not hold up everybody at once."""
        self._grants: tuple[Grant, ...] | None = None
        self._everywhere = 0
        """Allowed on every ledger, whatever it belongs to."""
        self._anything = 0
        """Allowed on some ledger at least."""
        self._masks.clear()

    def _derive(self) -> tuple[Grant, ...]:
        self._grants = grants = self._table.rules.of(self.who)
        for each in grants:
            self._everywhere |= each.everywhere
            self._anything |= each.somewhere
        return grants

    def admit(self, runs: Iterable[AddRun]) -> bool:
        """Return whether all of *runs* are known to be allowed: the common case. No flag of a run
        makes it less than an add; what repair copies is looked at one by one (`CopyEvidence`)."""
        masks, everywhere = self._masks, self._everywhere
        for run in runs:  # noqa: SIM110 - a generator costs each append more
            if not masks.get(run.ledger_id, everywhere) & _ADD:
                return False
        return True

    def may(self, ledger_id: int, action: Permission) -> bool | None:
        """Return whether *action* is allowed; None if that depends on whose the ledger is, which is
        to be found out first (`RightsTable.learn_owned`)."""
        grants = self._derive() if self._grants is None else self._grants
        if self._everywhere & action:
            return True
        if not self._anything & action:
            return False
        mask = self._masks.get(ledger_id)
        if mask is None:
            owner = self._table.owner(ledger_id)
            if owner is _NotKnown.NOT_KNOWN:
                return None
            mask = allowed(grants, owner)
            if len(self._masks) >= MASKS_MAX:
                self._masks.clear()
            self._masks[ledger_id] = mask
        return bool(mask & action)

    def may_order(self) -> bool:
        return self._may_everywhere(Permission.ORDER)

    def repairs(self) -> bool:
        """Whether it has a role that repairs: no quota counts what it copies."""
        return self._may_everywhere(Permission.LIST)

    def _may_everywhere(self, action: Permission) -> bool:
        if self._grants is None:
            self._derive()
        return bool(self._everywhere & action)


class RightsTable:
    """Who may do what here, as far as it is known. Pure: `Authorizer` asks the metadata store.

    What is asked with every message is a look into one dictionary, by ledger. It is filled when an
    identity first comes to a ledger, and emptied when grants change or a log gets another name. So
    whatever is revoked counts from the next message on, on connections that are open, too.

    Invariants:
        nothing is allowed that no grant of the rules that were learned last allows
        what is kept is bounded: of all ledgers, and of each identity

    Before any rules are learned there are none: then only those
    are let in whose certificate says enough.
    """

    def __init__(self) -> None:
        self.rules = Rules()
        self.names = 0
        """Counts how often logs may have got other names."""
        self._owners: dict[int, str | None] = {}
        self._rights: WeakValueDictionary[str, IdentityRights] = WeakValueDictionary()

    def rights(self, who: str) -> IdentityRights:
        """Return what the identity that shows itself as *who* may do, now and later."""
        found = self._rights.get(who)
        if found is None:
            found = self._rights[who] = IdentityRights(self, who)
        return found

    def owner(self, ledger_id: int) -> str | _NotKnown | None:
        """Return the log that a ledger belongs to, None if it belongs to none."""
        return self._owners.get(ledger_id, _NotKnown.NOT_KNOWN)

    def learn_rules(self, rules: Rules) -> None:
        self.rules = rules
        self._reset()

    def learn_names(self) -> None:
        """Take note that a log may have another name."""
        self.names += 1
        self._owners.clear()
        self._reset()

    def learn_owned(self, ledger_id: int, owned: Owned, *, names: int) -> None:
        """Take note of the log that a ledger belongs to, as it was found out after *names* was read
        here."""
        if names != self.names:
            return  # it may have been the name before
        if len(self._owners) >= OWNERS_MAX:
            del self._owners[next(iter(self._owners))]
        self._owners[ledger_id] = owned.log

    def _reset(self) -> None:
        for rights in tuple(self._rights.values()):
            rights.forget()


@dataclass(frozen=True, slots=True)
class CopyEvidence:
    """What the metadata store says of a ledger and its repair."""

    metadata: LedgerMetadata
    lock: RepairLock | None

    def why_not(self, run: AddRun, bookie: str, who: str) -> str:
        """Return why *bookie* does not take *run* of *who*; empty if it does."""
        if run.explicit_lac:
            return "only who may append says what is confirmed"
        lock = self.lock
        if lock is None:
            return "nobody repairs the ledger"
        if who not in lock.identities:
            return f"the ledger is repaired by {lock.worker}, with another certificate"
        if bookie not in lock.targets:
            return f"the repair does not copy to bookie {bookie}"
        return self._why_not_settled(run, bookie)

    def _why_not_settled(self, run: AddRun, bookie: str) -> str:
        metadata = self.metadata
        firsts = [fragment.first_entry for fragment in metadata.fragments]
        ends = [metadata.settled_end(fragment) for fragment in metadata.fragments]
        members = [
            fragment.bookies.index(bookie) if bookie in fragment.bookies else None
            for fragment in metadata.fragments
        ]
        for entry_id in run.entries:
            at = bisect_right(firsts, entry_id) - 1
            end = ends[at] if at >= 0 else None
            if end is None or entry_id > end:
                return f"entry {entry_id} is not settled"
            index = members[at]
            if index is not None and not holds(index, entry_id, metadata.quorum):
                return f"entry {entry_id} belongs to other members of its ensemble"
        return ""


class CopyRights:
    """Asks the metadata store for `CopyEvidence`, with each message: repair copies much with one,
    and a lock that is gone must count at once."""

    def __init__(
        self,
        ledgers: LedgerStore,
        bookie: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bookie = bookie
        self._ledgers = ledgers
        self._lookups = LedgerLookups(clock=clock)

    async def evidence(self, ledger_id: int) -> CopyEvidence | Status:
        """Return `NO_SUCH_LEDGER` if there is no such ledger, `TOO_MANY_REQUESTS` if the store
        does not answer."""
        return await self._lookups.run(partial(self._read, LedgerId(ledger_id)))

    async def _read(self, ledger_id: LedgerId) -> CopyEvidence:
        store = self._ledgers.store
        await store.sync(LOCKS)  # the lock was written just before the first copy
        found = await read_lock(store, ledger_id)
        metadata, _ = await self._ledgers.read(ledger_id)
        return CopyEvidence(metadata, None if found is None else found[0])


class Authorizer:
    """See the module's docstring. `start`, then `run`; belongs to one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerStore,
        *,
        bookie: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.denied = Counter[Permission]()
        """What was refused, since the start."""
        self._store, self._clock = store, clock
        self._table = RightsTable()
        self._owners = Owners(self._table, ledgers, clock=clock)
        self.copies = CopyRights(ledgers, bookie, clock=clock)
        self._untold = 0
        self._tell_at = 0.0

    @property
    def rules(self) -> Rules:
        """That are in force."""
        return self._table.rules

    @property
    def grants(self) -> int:
        """How many are in force."""
        return len(self.rules.grants)

    async def start(self) -> None:
        """Read the rules. Raises `MetadataUnavailable`."""
        await self._read()

    async def run(self) -> None:
        """Keep to the rules as they change; until cancelled."""
        await follow(self._store, (ACCESS, RENAMED_PATH, INSTANCE), self._changed)

    def door(self, identity: Identity | None, peer: str) -> "ConnectionAuthorizer":
        """Return what a connection from *peer* is let in by."""
        return ConnectionAuthorizer(
            self, self._table.rights(str(identity) if identity else _NOBODY), peer
        )

    async def settle(self, rights: IdentityRights, ledger_id: int, action: Permission) -> Status:
        """Return OK if *action* is allowed, `ACCESS_DENIED` if it is not; `NO_SUCH_LEDGER` or
        `TOO_MANY_REQUESTS` if that cannot be known, now or ever."""
        answer = rights.may(ledger_id, action)
        if answer is None:
            learned = await self._owners.learn(ledger_id)
            if learned is not Status.OK:
                return learned
            answer = rights.may(ledger_id, action)
            if answer is None:  # names changed meanwhile
                return Status.TOO_MANY_REQUESTS
        return Status.OK if answer else Status.ACCESS_DENIED

    def tell(
        self, rights: IdentityRights, peer: str, action: Permission, ledger_id: int | None
    ) -> None:
        """Count a refusal, and log it, but not as often as a client may want."""
        self.denied[action] += 1
        now = self._clock()
        if now < self._tell_at:
            self._untold += 1
            return
        where: dict[str, int | str] = {} if ledger_id is None else {"ledger_id": ledger_id}
        if ledger_id is not None and isinstance(owner := self._table.owner(ledger_id), str):
            where["log"] = owner
        _log.warning(
            "access_denied",
            identity=rights.who,
            peer=peer,
            action=action.name.lower(),
            role=str(NEEDED[action]),
            **where,
            others_untold=self._untold,
        )
        self._untold, self._tell_at = 0, now + TELL_S

    async def _read(self) -> None:
        try:
            rules = await read_rules(self._store)
        except DamagedMetadata as error:
            _log.error("access_rules_not_read", reason=str(error), grants_in_force=self.grants)
            return
        before = self._table.rules
        if rules != before:
            self._table.learn_rules(rules)
            _log_change(before, rules)

    async def _changed(self, paths: Collection[str]) -> None:
        if RENAMED_PATH in paths or INSTANCE in paths:  # from a level on, owner nodes count
            self._table.learn_names()
        await self._read()


class ConnectionAuthorizer:
    """What one connection is let in by."""

    __slots__ = ("_guard", "_peer", "_rights")

    def __init__(self, guard: Authorizer, rights: IdentityRights, peer: str) -> None:
        self._guard, self._rights, self._peer = guard, rights, peer

    def admits(self, runs: Sequence[AddRun]) -> bool:
        """Return whether all of *runs* are known to be allowed; else ask `refused`."""
        return self._rights.admit(runs)

    async def refused(self, runs: Sequence[AddRun]) -> dict[int, Status]:
        """Return why some of *runs* are not taken, by their index.

        All are asked about at once: the adds of all ledgers on the stream wait for it."""
        ledgers = sorted({(run.ledger_id, run.recovery) for run in runs})
        answers = await asyncio.gather(*(self._adds(*ledger) for ledger in ledgers))
        answered = dict(zip(ledgers, answers, strict=True))
        refused: dict[int, Status] = {}
        for index, run in enumerate(runs):
            answer = answered[run.ledger_id, run.recovery]
            if isinstance(answer, CopyEvidence):
                answer = self._copied(answer, run)
            if answer is not Status.OK:
                refused[index] = answer
        return refused

    async def _adds(self, ledger_id: int, is_copy: bool) -> Status | CopyEvidence:  # noqa: FBT001
        """Return whether entries may be added to the ledger, or what shows which may be copied."""
        if not is_copy:
            return await self.answer(ledger_id, Permission.ADD)
        status = await self._guard.settle(self._rights, ledger_id, Permission.ADD)
        if status is not Status.ACCESS_DENIED:
            return status
        status = await self.answer(ledger_id, Permission.RECOVER)
        return await self._guard.copies.evidence(ledger_id) if status is Status.OK else status

    def _copied(self, evidence: CopyEvidence, run: AddRun) -> Status:
        """Return whether *run* is taken of a client that may not add."""
        if not evidence.why_not(run, self._guard.copies.bookie, self._rights.who):
            return Status.OK
        self._guard.tell(self._rights, self._peer, Permission.ADD, run.ledger_id)
        return Status.ACCESS_DENIED

    async def answer(self, ledger_id: int, action: Permission) -> Status:
        """Return OK if *action* is allowed on the ledger, or why it is not done."""
        status = await self._guard.settle(self._rights, ledger_id, action)
        if status is Status.ACCESS_DENIED:
            self._guard.tell(self._rights, self._peer, action, ledger_id)
        return status

    def repairs(self) -> bool:
        """Return whether the client has a role that repairs."""
        return self._rights.repairs()

    def may_order(self) -> bool:
        """Return whether orders are obeyed."""
        if self._rights.may_order():
            return True
        self._guard.tell(self._rights, self._peer, Permission.ORDER, None)
        return False


def _log_change(before: Rules, after: Rules) -> None:
    """What operators do to the rules is in the log of every bookie."""
    old, new = frozenset(before.grants), frozenset(after.grants)
    granted = [str(each) for each in after.grants if each not in old]
    revoked = [str(each) for each in before.grants if each not in new]
    _log.info(
        "access_changed",
        by=after.changed_by,
        at_ms=after.changed_ms,
        grants=len(after.grants),
        granted=granted[:_SHOWN_MAX],
        revoked=revoked[:_SHOWN_MAX],
        not_shown=max(0, len(granted) - _SHOWN_MAX) + max(0, len(revoked) - _SHOWN_MAX),
    )
