"""Lets in what was granted: knows the rules of the metadata store, tells of what was refused.

Rules are read when they change, and now and then in any case. While the store is out of reach, or
holds what this program does not understand, the last that were read stay in force. They are kept
in memory only: a bookie starts with the store, or not at all.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final

from bookie.server.acl_cache import Rights, RightsTable
from bookie.server.copy_rights import CopyEvidence, CopyRights
from bookie.server.node_watch import follow
from bookie.server.owners import Owners
from ledger.errors import DamagedMetadata
from ledger.ledger_owner import RENAMED_PATH
from ledger.log_events import get_logger
from ledger.manager import LedgerStore
from ledger.metastore.paths import INSTANCE
from ledger.metastore.port import MetadataStore
from ledger.requests import AddRun, Status
from ledger.security.access import ACCESS, NEEDED, Action, Rules
from ledger.security.grant_nodes import read_rules
from ledger.security.names import Identity

TELL_S: Final = 1.0
"""So often, at most, the log says that something was refused."""
_NOBODY: Final = ""
_SHOWN_MAX: Final = 50

_log = get_logger(__name__)


class Guard:
    """See the module's docstring. `start`, then `run`; belongs to one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerStore,
        *,
        bookie: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.denied = Counter[Action]()
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

    def door(self, identity: Identity | None, peer: str) -> "Door":
        """Return what a connection from *peer* is let in by."""
        return Door(self, self._table.rights(str(identity) if identity else _NOBODY), peer)

    async def settle(self, rights: Rights, ledger_id: int, action: Action) -> Status:
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

    def tell(self, rights: Rights, peer: str, action: Action, ledger_id: int | None) -> None:
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


class Door:
    """What one connection is let in by."""

    __slots__ = ("_guard", "_peer", "_rights")

    def __init__(self, guard: Guard, rights: Rights, peer: str) -> None:
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
            return await self.answer(ledger_id, Action.ADD)
        status = await self._guard.settle(self._rights, ledger_id, Action.ADD)
        if status is not Status.ACCESS_DENIED:
            return status
        status = await self.answer(ledger_id, Action.RECOVER)
        return await self._guard.copies.evidence(ledger_id) if status is Status.OK else status

    def _copied(self, evidence: CopyEvidence, run: AddRun) -> Status:
        """Return whether *run* is taken of a client that may not add."""
        if not evidence.why_not(run, self._guard.copies.bookie, self._rights.who):
            return Status.OK
        self._guard.tell(self._rights, self._peer, Action.ADD, run.ledger_id)
        return Status.ACCESS_DENIED

    async def answer(self, ledger_id: int, action: Action) -> Status:
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
        self._guard.tell(self._rights, self._peer, Action.ORDER, None)
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
