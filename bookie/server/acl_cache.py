"""Who may do what here, as far as it is known. Pure: `authorizer` asks the metadata store.

What is asked with every message is a look into one dictionary, by ledger. It is filled when an
identity first comes to a ledger, and emptied when grants change or a log gets another name. So
whatever is revoked counts from the next message on, on connections that are open, too.

Invariants:
    nothing is allowed that no grant of the rules that were learned last allows
    what is kept is bounded: of all ledgers, and of each identity
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final
from weakref import WeakValueDictionary

from bookie.server.ledger_info import Owned
from ledger.requests import AddRun
from ledger.security.access import Action, Grant, Rules, allowed

OWNERS_MAX: Final = 65_536
"""Ledgers of which it is remembered which log they belong to."""
MASKS_MAX: Final = 4096
"""Ledgers of which it is remembered what one identity may do with them."""
_ADD: Final = int(Action.ADD)
"""Looked up for each run, which members of an enumeration are slow at."""


class _NotKnown(Enum):
    NOT_KNOWN = 0


class Rights:
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
        makes it less than an add; what repair copies is looked at one by one (`authorizer`)."""
        masks, everywhere = self._masks, self._everywhere
        for run in runs:  # noqa: SIM110 - a generator costs each append more
            if not masks.get(run.ledger_id, everywhere) & _ADD:
                return False
        return True

    def may(self, ledger_id: int, action: Action) -> bool | None:
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
        return self._may_everywhere(Action.ORDER)

    def repairs(self) -> bool:
        """Whether it has a role that repairs: no quota counts what it copies."""
        return self._may_everywhere(Action.LIST)

    def _may_everywhere(self, action: Action) -> bool:
        if self._grants is None:
            self._derive()
        return bool(self._everywhere & action)


class RightsTable:
    """See the module's docstring. Before any rules are learned there are none: then only those
    are let in whose certificate says enough."""

    def __init__(self) -> None:
        self.rules = Rules()
        self.names = 0
        """Counts how often logs may have got other names."""
        self._owners: dict[int, str | None] = {}
        self._rights: WeakValueDictionary[str, Rights] = WeakValueDictionary()

    def rights(self, who: str) -> Rights:
        """Return what the identity that shows itself as *who* may do, now and later."""
        found = self._rights.get(who)
        if found is None:
            found = self._rights[who] = Rights(self, who)
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
