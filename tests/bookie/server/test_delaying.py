"""Quotas on real connections: who goes beyond is delayed, and nobody else is."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bookie.server.quota import QuotaThrottle
from ledger.cluster import make_namespace
from ledger.errors import MetadataUnavailable
from ledger.ids import EntryId, LedgerId
from ledger.manager import LedgerStore
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore.memory import MemoryStore
from ledger.quorum import Quorum
from ledger.requests import AddRun, LacQuery, ReadQuery, Status
from ledger.security.access import Role
from ledger.security.documents import change_quotas, read_quotas
from ledger.security.quotas import QUOTAS, Quota, Quotas, Subject
from ledger.transport.framing import FrameKind
from ledger.transport.handshake import Purpose
from ledger.transport.messages import ack_values, read_answer, read_request
from ledger.transport.sockets import SocketTransport
from tests.bookie.runs import KEY, run_of
from tests.bookie.server.guarded import guarded
from tests.bookie.server.operations import stamp
from tests.ledger.by_hand import greeted
from tests.ledger.flaky_store import FlakyStore
from tests.ledger.serving import BOOKIE, Bookie, add, serving, transport_to, until
from tests.waiting import eventually


class Silent(FlakyStore):
    silent = False

    def _before(self, operation: str) -> None:
        if self.silent:
            raise MetadataUnavailable(self.uri, operation, 0)


class Delayed:
    """A bookie with quotas. Its clock stands still."""

    def __init__(self, bookie: Bookie, store: Silent, ledgers: LedgerStore) -> None:
        self.bookie, self.store, self.ledgers = bookie, store, ledgers
        self.now_ns = 0
        self.delays = QuotaThrottle(store, ledgers, clock_ns=lambda: self.now_ns)
        bookie.server.delays = self.delays

    async def limit(self, logs: str, **rates: int) -> None:
        quota = Quota(Subject.LOGS, logs, **rates)
        await change_quotas(self.store, lambda quotas: quotas.with_(quota), by="the test")
        wanted = await read_quotas(self.store)
        await until(lambda: self.delays.treasury.quotas == wanted)

    async def made(self, log: str) -> LedgerId:
        return await self.ledgers.create(
            LedgerMetadata(
                quorum=Quorum(1, 1, 1),
                fragments=(Fragment(EntryId(0), (BOOKIE,)),),
                access_key=KEY,
                creation_token=uuid.uuid4().bytes,
                custom=stamp(log),
            )
        )

    def held(self) -> int:
        """Return how many connections are not read from."""
        return sum(not each.is_reading for each in self.bookie.server.connections)


@asynccontextmanager
async def delayed() -> AsyncIterator[Delayed]:
    store = Silent(MemoryStore("memory://delayed", "delayed"))
    namespace = await make_namespace(store)
    async with serving() as bookie:
        found = Delayed(bookie, store, LedgerStore(store, namespace.layout))
        await found.delays.start()
        watcher = asyncio.ensure_future(found.delays.run())
        try:
            yield found
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
    await store.close()


def entry(ledger_id: int, entry_id: int = 0, *, recovery: bool = False) -> AddRun:
    return run_of(entry_id, ledger_id=ledger_id, lac=entry_id - 1, recovery=recovery)


async def added(transport: SocketTransport, *runs: AddRun) -> None:
    assert [await add(transport, run) for run in runs] == [Status.OK] * len(runs)


async def test_who_goes_beyond_a_quota_is_not_read_from_and_others_are() -> None:
    async with (
        delayed() as bookie,
        transport_to(bookie.bookie.address) as greedy,
        transport_to(bookie.bookie.address) as other,
    ):
        mine, theirs = await bookie.made("greedy/a"), await bookie.made("orders")
        await bookie.limit("greedy/*", append_entries_s=1)
        await added(greedy, entry(mine, 0))
        assert bookie.held() == 0, "a second's worth is there"
        await added(greedy, entry(mine, 1))
        assert bookie.held() == 1
        await added(other, *(entry(theirs, one) for one in range(20)))
        assert bookie.delays.treasury.delayed_ns == {"logs greedy/*": 10**9}


async def test_what_was_held_up_is_taken_when_it_is_due() -> None:
    """Its own clock is real."""
    async with delayed() as bookie, transport_to(bookie.bookie.address) as greedy:
        bookie.delays.clock_ns = lambda: int(asyncio.get_running_loop().time() * 1e9)
        mine = await bookie.made("greedy")
        await bookie.limit("greedy", append_entries_s=40)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await added(greedy, *(entry(mine, one) for one in range(60)))
        assert loop.time() - began > 0.9 * (60 - 40 - 1) / 40


async def test_what_waits_stays_with_the_client() -> None:
    async with delayed() as bookie, greeted(bookie.bookie.address) as peer:
        mine = await bookie.made("greedy")
        await bookie.limit("greedy", append_bytes_s=64 * 1024)
        payload = bytes(300_000)
        for batch in range(1, 41):
            peer.add(batch, run_of(batch, ledger_id=mine, payload=payload))
        await until(lambda: bookie.held() == 1)
        frame = await peer.frame()
        _, last, _, held_ms, _ = ack_values(frame.body)
        assert last == 1
        assert 2000 < held_ms < 4000, "300 KB at 64 KiB/s, less the first second"
        assert len(bookie.bookie.storage.ledgers[mine]) == 1
        (connection,) = bookie.bookie.server.connections
        assert len(connection._handler._waiting) <= 1  # type: ignore[union-attr]


async def test_what_was_read_at_once_waits_too() -> None:
    async with delayed() as bookie, greeted(bookie.bookie.address) as peer:
        mine = await bookie.made("greedy")
        await bookie.limit("greedy", append_entries_s=1)
        peer.add(1, entry(mine, 0))
        await peer.frame()
        for batch in range(2, 30):
            peer.add(batch, entry(mine, batch - 1))
        await peer.frame()
        assert bookie.held() == 1
        assert list(bookie.bookie.storage.ledgers[mine]) == [0, 1]


async def test_a_client_does_not_take_a_bookie_that_holds_it_up_for_silent() -> None:
    async with (
        delayed() as bookie,
        transport_to(bookie.bookie.address, timeout_s=0.3) as greedy,
    ):
        bookie.delays.clock_ns = lambda: int(asyncio.get_running_loop().time() * 1e9)
        await bookie.limit("greedy", append_entries_s=1)

        async def is_waited_for() -> bool:  # unless the machine stood still
            mine = await bookie.made("greedy")
            entries = [entry(mine, number) for number in range(3)]
            return {await add(greedy, run) for run in entries} == {Status.OK}

        await eventually(is_waited_for, "three entries are added, of which one a second may be")


async def test_recovery_fences_and_repair_are_not_held_up() -> None:
    async with (
        delayed() as bookie,
        transport_to(bookie.bookie.address) as greedy,
        transport_to(bookie.bookie.address) as repair,
    ):
        mine = await bookie.made("greedy")
        await bookie.limit("greedy", append_entries_s=1, read_requests_s=1)
        await added(greedy, entry(mine, 0), entry(mine, 1))
        for _ in range(3):
            await repair.read(BOOKIE, ReadQuery(mine, KEY, 0, 0, repairs=True))
        lac = await repair.read_lac(BOOKIE, LacQuery(mine, KEY, fence=True))
        assert lac.status is Status.OK
        fenced = await repair.read(BOOKIE, ReadQuery(mine, KEY, 0, 0, fence=True))
        assert fenced.status is Status.OK
        await added(repair, *(entry(mine, one, recovery=True) for one in range(2, 30)))
        assert bookie.delays.treasury.delayed_ns == {"logs greedy": 10**9}


async def test_a_flag_takes_nothing_out_of_a_quota_unless_its_client_has_a_role_that_repairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As writers did who called their adds those of a recovery, and readers their reads a
    repair's."""
    async with guarded(tmp_path) as bookie:
        quota = Quota(Subject.LOGS, "mine", append_entries_s=1, read_requests_s=1)
        await change_quotas(bookie.store, lambda quotas: quotas.with_(quota), by="the test")
        delays = QuotaThrottle(bookie.store, bookie.ledgers, clock_ns=lambda: 0)
        await delays.start()
        bookie.server.delays = delays
        await bookie.grant("cn:writer", Role.WRITER, "mine")
        await bookie.grant("cn:repair", Role.BOOKIE)
        mine = await bookie.made("mine")
        await bookie.close(mine, 99)
        await bookie.repair(mine, "cn:repair")
        repair = bookie.as_("repair")
        await added(repair, *(entry(mine, one, recovery=True) for one in range(1, 30)))
        for _ in range(3):
            await repair.read(BOOKIE, ReadQuery(mine, KEY, 0, 0, repairs=True))
            await repair.read(BOOKIE, ReadQuery(mine, KEY, 0, 0, fence=True))
        assert not delays.treasury.delayed_ns.total(), "what repair does is not counted"
        writer = bookie.as_("writer")
        await added(writer, entry(mine, 30, recovery=True))
        assert not delays.treasury.delayed_ns.total(), "it was within the quota"
        await added(writer, entry(mine, 31, recovery=True))
        assert delays.treasury.delayed_ns.total() == 10**9
        monkeypatch.setattr("bookie.server.quota.READ_S_MAX", 0.0)
        for query in (
            ReadQuery(mine, KEY, 0, 0, repairs=True),
            ReadQuery(mine, KEY, 0, 0, fence=True),
        ):
            answers = [(await writer.read(BOOKIE, query)).status for _ in range(3)]
            assert Status.TOO_MANY_REQUESTS in answers, query


async def test_a_read_beyond_a_quota_waits_and_one_far_beyond_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.quota.READ_S_MAX", 0.05)
    async with (
        delayed() as bookie,
        transport_to(bookie.bookie.address) as writer,
        greeted(bookie.bookie.address, Purpose.ASKS) as greedy,
    ):
        mine, theirs = await bookie.made("greedy"), await bookie.made("orders")
        await added(writer, entry(mine), entry(theirs))
        await bookie.limit("greedy", read_requests_s=1)
        statuses = []
        for number, ledger_id in enumerate((mine, mine, mine, theirs), 1):
            request = read_request(ReadQuery(ledger_id, KEY, 0, 0))
            greedy.send(FrameKind.READ, number, request)
            statuses.append(read_answer((await greedy.frame()).body, request).status)
        assert statuses == [Status.OK, Status.OK, Status.TOO_MANY_REQUESTS, Status.OK]
        assert bookie.delays.treasury.delayed_ns == {"logs greedy": 50_000_000}


async def test_a_quota_of_which_a_bookie_hears_counts_on_connections_that_are_open() -> None:
    async with delayed() as bookie, transport_to(bookie.bookie.address) as greedy:
        mine = await bookie.made("greedy")
        await added(greedy, *(entry(mine, one) for one in range(5)))
        await bookie.limit("greedy", append_entries_s=1)
        await added(greedy, entry(mine, 5), entry(mine, 6))
        assert bookie.held() == 1


async def test_while_the_store_is_away_the_last_quotas_hold_and_nobody_is_stopped() -> None:
    async with delayed() as bookie, transport_to(bookie.bookie.address) as greedy:
        known, unknown = await bookie.made("greedy"), await bookie.made("greedy")
        await bookie.limit("greedy", append_entries_s=1)
        await added(greedy, entry(known, 0))
        bookie.store.silent = True
        await added(greedy, *(entry(unknown, one) for one in range(5)))
        assert bookie.held() == 0
        await added(greedy, entry(known, 1))
        assert bookie.held() == 1


async def test_quotas_that_cannot_be_read_leave_the_last_ones_in_force(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with delayed() as bookie:
        await bookie.limit("greedy", append_entries_s=1)
        wanted = bookie.delays.treasury.quotas
        node = await bookie.store.get(QUOTAS)
        await bookie.store.set(QUOTAS, b"nonsense", node.version)
        await until(lambda: "quotas_not_read" in caplog.text)
        assert bookie.delays.treasury.quotas == wanted
        node = await bookie.store.get(QUOTAS)
        await bookie.store.set(QUOTAS, Quotas().encode(), node.version)
        await until(lambda: not bookie.delays.treasury.is_on)


async def test_a_connection_that_is_held_up_ends_at_once_when_its_bookie_stops() -> None:
    async with delayed() as bookie, greeted(bookie.bookie.address) as peer:
        mine = await bookie.made("greedy")
        await bookie.limit("greedy", append_entries_s=1)
        peer.add(1, entry(mine, 0), entry(mine, 1), entry(mine, 2))
        await until(lambda: bookie.held() == 1)
        await bookie.bookie.server.stop()
        assert not bookie.bookie.server.connections
