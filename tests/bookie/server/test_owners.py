"""Whose a ledger is: what the metadata store is asked, and what follows without an answer."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from bookie.server import metadata_lookups
from bookie.server.authorizer import Authorizer, RightsTable
from bookie.server.metadata_lookups import Owners
from ledger.errors import NoSuchLedger
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.ledger_owner import OWNERS_PATH, owner_value
from ledger.manager import LedgerStore
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore.memory import MemoryStore
from ledger.metastore.ops import Versioned
from ledger.quorum import Quorum
from ledger.requests import Status
from ledger.security.access import Grant, Permission, Role, Rules
from tests.waiting import PATIENCE_S, until

METADATA = LedgerMetadata(
    quorum=Quorum(1, 1, 1),
    fragments=(Fragment(EntryId(0), (BookieId("b"),)),),
    access_key=b"key",
    creation_token=b"token",
)


class NoLog:
    """A store in which each owner node says that the ledger is of no log."""

    async def get(self, path: str) -> Versioned:
        assert path.startswith(f"{OWNERS_PATH}/")
        return Versioned(owner_value(None), 0)


class FakeLedgers:
    """A store with one server that is behind, and answers when it is let."""

    def __init__(self) -> None:
        self.store = NoLog()
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0
        self.made = True
        self.before: Callable[[], None] = lambda: None

    async def read(self, ledger_id: LedgerId, *, fresh: bool = False) -> tuple[LedgerMetadata, int]:
        self.asked += 1
        await self.gate.wait()
        self.before()
        if not (fresh and self.made):
            raise NoSuchLedger(ledger_id)
        return METADATA, 0


async def test_a_ledger_that_one_server_of_the_store_has_not_seen_yet_is_asked_for_afresh() -> None:
    table, ledgers = RightsTable(), FakeLedgers()
    asks = Owners(table, cast("LedgerStore", ledgers))
    assert await asks.learn(1) is Status.OK
    assert table.owner(1) is None, "it belongs to no log"
    ledgers.made = False
    assert await asks.learn(2) is Status.NO_SUCH_LEDGER


async def test_so_many_wait_for_the_store_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_lookups, "WAITING_MAX", 3)
    ledgers = FakeLedgers()
    asks = Owners(RightsTable(), cast("LedgerStore", ledgers))
    ledgers.gate.clear()
    waiting = [asyncio.ensure_future(asks.learn(each)) for each in range(3)]
    await until(lambda: ledgers.asked == 3)
    async with asyncio.timeout(PATIENCE_S / 4):
        assert await asks.learn(9) is Status.TOO_MANY_REQUESTS
    ledgers.gate.set()
    assert await asyncio.gather(*waiting) == [Status.OK] * 3
    assert await asks.learn(9) is Status.OK, "their places are free again"


async def test_who_asks_while_a_log_gets_another_name_is_neither_let_in_nor_denied() -> None:
    ledgers = FakeLedgers()
    guard = Authorizer(
        MemoryStore("memory://whose", "whose"), cast("LedgerStore", ledgers), bookie="b1"
    )
    guard._table.learn_rules(Rules((Grant("cn:a", Role.WRITER, "log"),)))
    ledgers.before = guard._table.learn_names
    rights = guard._table.rights("cn:a")
    assert await guard.settle(rights, 1, Permission.ADD) is Status.TOO_MANY_REQUESTS
    ledgers.before = lambda: None
    assert await guard.settle(rights, 1, Permission.ADD) is Status.ACCESS_DENIED
