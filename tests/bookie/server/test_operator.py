"""What an operator can ask of a running bookie, over the wire."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from bookie.collector.collector import Collector
from bookie.collector.plan import CollectorConfig
from bookie.disk.port import Directories
from bookie.disk.watch import DiskLimits
from bookie.errors import AddressUnusable, PortInUse
from bookie.server.limits import ServiceConfig
from bookie.server.listener import BookieServer
from bookie.server.operator import OPERATOR_LIMITS, ORDERS_MAX, OperatorService
from bookie.server.read_only import ReadOnlyKeeper
from bookie.server.service import BookieService
from bookie.storage.engine import BookieStorage
from ledger.cluster import Namespace, make_namespace
from ledger.errors import BookieRefused, BookieUnavailable, WrongBookie
from ledger.ids import BookieIdentity, EntryId, LedgerId
from ledger.log_events import now_ms
from ledger.manager import LedgerStore
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore.memory import MemoryStore
from ledger.quorum import Quorum
from ledger.requests import InfoAnswer, ReadQuery, Status
from ledger.transport.envelope import checked
from ledger.transport.framing import FrameKind
from ledger.transport.handshake import Hello, Purpose, Refusal
from ledger.transport.operator import ORDER_BYTES_MAX, BookieOperator, order_answer, order_message
from ledger.wire import bookie_pb2 as pb
from tests.bookie.promises import SMALL
from tests.bookie.runs import KEY, run_of
from tests.ledger.by_hand import connected
from tests.ledger.serving import BOOKIE, add, refused_address, silent_server, transport_to
from tests.simulation.disk import SimDisk
from tests.waiting import PATIENCE_S, until

LEDGER = LedgerMetadata(
    quorum=Quorum(1, 1, 1), fragments=(Fragment(EntryId(0), (BOOKIE,)),), creation_token=b"token"
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bookie of this process is connected to however long the machine stands still."""
    monkeypatch.setattr("ledger.transport.operator._CONNECT_S", PATIENCE_S)


class Operated:
    """A bookie on simulated disks: a main one that is also a journal, and two for ledgers."""

    def __init__(self, store: MemoryStore, namespace: Namespace) -> None:
        self.main, disks = SimDisk(0), (SimDisk(1), SimDisk(2))
        self.directories = Directories(self.main, (self.main,), disks)
        self.storage = BookieStorage.open(self.directories, SMALL)
        info = InfoAnswer(BOOKIE, "start 1", "instance 1", read_only=False)
        self.service = BookieService(self.storage, info, ServiceConfig())
        self.keeper = ReadOnlyKeeper(self.storage, self.directories, DiskLimits(reserve_bytes=0))
        self.store = store
        self.ledgers = LedgerStore(store, namespace.layout)
        self.collector = Collector(
            self.storage.ledger_directories,
            self.ledgers,
            CollectorConfig(),
            main=self.main,
            bookie=BOOKIE,
            instance=namespace.instance,
            ledger_ids=self.storage.ledger_ids,
            storage=self.service,
        )
        self.server = BookieServer()
        self.orders = BookieServer(OPERATOR_LIMITS)
        self.address = f"127.0.0.1:{self.server.bind('127.0.0.1', 0)}"
        self.operator_address = f"127.0.0.1:{self.orders.bind('127.0.0.1', 0)}"
        self.keeper.look()

    async def start(self) -> None:
        self.operator = OperatorService(
            self.service, self.storage, self.keeper, self.collector, address=self.address
        )
        await self.server.start(self.service)
        await self.orders.start(self.service, self.operator)

    async def stop(self) -> None:
        await self.operator.close()
        await self.orders.stop()
        await self.server.stop()
        await self.collector.close()
        await self.service.close()


@asynccontextmanager
async def operated() -> AsyncIterator[tuple[Operated, BookieOperator]]:
    store = MemoryStore("memory://operated", "operated")
    namespace = await make_namespace(store)
    bookie = Operated(store, namespace)
    await bookie.collector.begin()
    await bookie.start()
    try:
        async with BookieOperator(bookie.operator_address, bookie=BOOKIE) as operator:
            yield bookie, operator
    finally:
        await bookie.stop()


async def test_it_tells_who_it_is_and_how_it_is() -> None:
    async with operated() as (bookie, operator):
        status = await operator.status()
        assert (status.bookie, status.incarnation) == (BOOKIE, "start 1")
        assert (status.instance, status.address) == ("instance 1", bookie.address)
        assert status.version
        assert status.uptime_s >= 0
        assert not status.read_only
        assert [usage.place for usage in status.directories] == [
            "main, journal 0 of 1", "ledger 0 of 2", "ledger 1 of 2",
        ]  # fmt: skip
        assert all(usage.total_bytes >= usage.free_bytes > 0 for usage in status.directories)


async def test_it_tells_where_one_entry_is_and_what_time_it_has() -> None:
    async with operated() as (bookie, operator), transport_to(bookie.address) as transport:
        assert await add(transport, run_of(0, 1)) is Status.OK
        found = await operator.trace(7, 1)
        assert (found.ledger, found.last_entry, found.fenced) == ("here", 1, False)
        assert [copy.place for copy in found.copies] == ["memory", "journal"]
        assert all(copy.bytes > 0 and not copy.damage for copy in found.copies)
        assert (await operator.trace(8, 0)).ledger == "not here"
        before_ms = now_ms()
        assert before_ms <= (await operator.status()).clock_ms <= now_ms()


async def test_it_tells_what_its_storage_holds_and_where() -> None:
    async with operated() as (bookie, operator), transport_to(bookie.address) as transport:
        for ledger_id in (6, 7):
            assert await add(transport, run_of(0, ledger_id=ledger_id)) is Status.OK
        status = await operator.status()
        assert status.ledgers == 2
        assert status.memtable.active_bytes > 0
        assert status.memtable.bytes_max == SMALL.memtable_bytes_max
        (journal,) = status.journals
        assert (journal.mark_file, journal.mark_offset) < (journal.end_file, journal.end_offset)
        assert journal.files == 1
        assert journal.bytes >= journal.end_offset
        assert not journal.full
        assert [cache.name for cache in status.caches]
        bookie.storage.checkpoint()
        status = await operator.status()
        assert status.memtable.active_bytes == 0
        (journal,) = status.journals
        assert (journal.mark_file, journal.mark_offset) == (
            journal.end_file,
            journal.end_offset,
        )
        for directory in status.ledger_directories:
            assert not directory.failure
            (log,) = directory.logs
            assert log.bytes > 0
            assert log.state in ("writing", "new")


async def test_it_tells_how_much_of_each_entry_log_is_live() -> None:
    async with operated() as (bookie, operator), transport_to(bookie.address) as transport:
        kept = await bookie.ledgers.create(LEDGER)
        gone = kept + 1_000_000  # in the same directory
        for entry_id in range(40):
            for ledger_id in (kept, gone):
                run = run_of(entry_id, ledger_id=ledger_id, payload=b"x" * 1000)
                assert await add(transport, run) is Status.OK
            bookie.storage.checkpoint()
        await operator.collect()
        directories = (await operator.status()).ledger_directories
        logs = [log for directory in directories for log in directory.logs]
        halves = [log for log in logs if log.state == "ended"]
        assert halves, "some logs are finished"
        for log in halves:
            assert 0.2 < log.live_bytes / log.bytes < 0.8


async def test_it_becomes_read_only_and_writable_again_at_an_operators_word() -> None:
    async with operated() as (bookie, operator), transport_to(bookie.address) as transport:
        assert await add(transport, run_of(0)) is Status.OK
        told = await operator.set_read_only(read_only=True)
        assert told.read_only
        assert list(told.reasons) == ["an operator said so"]
        assert await add(transport, run_of(1)) is Status.READ_ONLY
        assert await add(transport, run_of(1, recovery=True)) is Status.OK
        info = await transport.info(BOOKIE)
        assert info is not None
        assert info.read_only
        assert list((await operator.status()).reasons) == ["an operator said so"]
        told = await operator.set_read_only(read_only=False)
        assert not told.read_only
        assert await add(transport, run_of(2)) is Status.OK


async def test_an_order_that_cannot_be_kept_is_refused_with_its_reason() -> None:
    async with operated() as (bookie, operator):
        bookie.main.fail("create", "readonly")
        with pytest.raises(BookieRefused, match="the operator's request cannot be stored"):
            await operator.set_read_only(read_only=True)
        assert not (await operator.status()).read_only


async def test_another_bookie_than_the_one_meant_refuses_every_order() -> None:
    async with (
        operated() as (bookie, _),
        BookieOperator(bookie.operator_address, bookie="b2") as wrong,
    ):
        for order in (
            wrong.status(),
            wrong.collect(),
            wrong.compact(major=True),
            wrong.set_read_only(read_only=True),
        ):
            with pytest.raises(WrongBookie, match=f"here is bookie {BOOKIE}"):
                await order
        assert not bookie.storage.read_only
        assert bookie.collector.status().last == ()


@pytest.mark.parametrize(
    ("meant", "reason"),
    [
        (BookieIdentity("instance 2", ""), "of cluster instance 2 was meant"),
        (BookieIdentity("instance 1", "data 2"), "with data data 2 was meant"),
    ],
)
async def test_a_bookie_of_the_same_name_that_is_not_meant_takes_no_order(
    meant: BookieIdentity, reason: str
) -> None:
    async with (
        operated() as (bookie, _),
        BookieOperator(bookie.operator_address, bookie=BOOKIE, meant=meant) as wrong,
    ):
        with pytest.raises(WrongBookie, match=reason):
            await wrong.set_read_only(read_only=True)
        assert not bookie.storage.read_only


async def test_ledgers_that_the_cluster_does_not_know_are_collected_at_an_operators_word() -> None:
    async with operated() as (bookie, operator), transport_to(bookie.address) as transport:
        kept = await bookie.ledgers.create(LEDGER)
        for ledger_id in (kept, 1_000_001, 1_000_002):
            assert await add(transport, run_of(0, ledger_id=ledger_id)) is Status.OK
        done = await operator.collect()
        assert (done.ledgers, done.waiting, done.failure) == (1, 1, "")
        assert [alarm.kind for alarm in done.alarms] == ["untraced-deletions"]
        status = (await operator.status()).collector
        assert (status.waiting, status.alarms) == (1, done.alarms)
        done = await operator.collect(allow_deletions=1)
        assert (done.kind, done.ledgers, done.waiting, done.failure) == ("gc", 1, 0, "")
        assert not done.alarms
        assert bookie.storage.ledger_ids() == [kept]
        answer = await transport.read(BOOKIE, ReadQuery(1_000_001, KEY, 0, 0))
        assert answer.status is Status.NO_SUCH_LEDGER
        (last,) = (await operator.status()).collector.last
        assert (last.kind, last.ledgers) == ("gc", 1)
        assert not (await operator.status()).collector.alarms


@pytest.mark.parametrize("major", [False, True])
async def test_entry_logs_are_compacted_at_an_operators_word(major: bool) -> None:
    async with operated() as (_, operator):
        done = await operator.compact(major=major)
        assert done.kind == ("major" if major else "minor")
        assert not done.failure
        status = (await operator.status()).collector
        assert [run.kind for run in status.last] == [done.kind]
        assert {due.kind: due.threshold for due in status.due} == pytest.approx(
            {"gc": 0.0, "minor": 0.2, "major": 0.8}
        )
        assert not status.running


async def test_a_run_is_refused_while_another_is_under_way_and_goes_on_without_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = asyncio.Event()
    waiting = OperatorService._done

    async def done(self: OperatorService, *arguments: Any) -> pb.CollectorRun:
        try:
            return await waiting(self, *arguments)
        finally:
            ended.set()

    async with operated() as (bookie, operator):
        held = asyncio.Event()

        async def hold(_ledger_ids: object) -> list[LedgerId]:
            await held.wait()
            return []

        bookie.ledgers.absent = hold  # type: ignore[method-assign, assignment]
        monkeypatch.setattr(OperatorService, "_done", done)
        asking = asyncio.ensure_future(operator.collect())
        await until(lambda: bookie.collector.status().running is not None)
        monkeypatch.undo()
        assert (await operator.status()).collector.running == "gc"
        with pytest.raises(BookieRefused, match="already in progress"):
            await operator.compact(major=False)
        asking.cancel()
        await until(ended.is_set, "the bookie knows that nobody waits")
        assert bookie.collector.status().running is not None
        held.set()
        await until(lambda: bookie.collector.status().running is None)
        assert not bookie.collector.status().last[0].failure


async def test_a_collection_that_could_not_reach_the_cluster_says_so_and_deletes_nothing() -> None:
    async with operated() as (bookie, operator), transport_to(bookie.address) as transport:
        assert await add(transport, run_of(0)) is Status.OK
        bookie.store.cut()
        done = await operator.collect()
        assert done.failure
        assert done.ledgers == 0
        assert bookie.storage.ledger_ids() == [7]
        bookie.store.heal()


def test_a_bookie_that_stops_does_not_wait_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.server.listener._DRAIN_S_MAX", 0.1)

    async def scenario() -> None:
        async with operated() as (bookie, operator):

            async def hang(_ledger_ids: object) -> list[LedgerId]:
                await asyncio.Event().wait()
                return []

            bookie.ledgers.absent = hang  # type: ignore[method-assign, assignment]
            asking = asyncio.ensure_future(operator.collect())
            await until(lambda: bookie.collector.status().running is not None)
            async with asyncio.timeout(PATIENCE_S):
                await bookie.stop()
            with pytest.raises((BookieUnavailable, BookieRefused)):
                await asking

    asyncio.run(scenario())


async def test_a_bookie_that_is_not_there_or_silent_is_told_in_time() -> None:
    async with BookieOperator(refused_address(), timeout_s=PATIENCE_S) as nobody:
        with pytest.raises(BookieUnavailable):
            await nobody.status()
    async with silent_server() as address, BookieOperator(address, timeout_s=0.3) as silent:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(BookieUnavailable):
                await silent.status()


async def test_orders_have_a_port_of_their_own_that_is_nobody_elses() -> None:
    async with operated() as (bookie, _):
        port = int(bookie.operator_address.rpartition(":")[2])
        other = BookieServer(OPERATOR_LIMITS)
        with pytest.raises(PortInUse):
            other.bind("127.0.0.1", port)
        with pytest.raises(AddressUnusable):
            other.bind("192.0.2.1", 0)
        await other.kill()
        async with BookieOperator(bookie.address, bookie=BOOKIE, timeout_s=PATIENCE_S) as lost:
            with pytest.raises(BookieRefused, match="takes that on its port for operators"):
                await lost.status()


async def test_whoever_is_there_answers_who_means_nobody() -> None:
    async with operated() as (bookie, _), BookieOperator(bookie.operator_address) as operator:
        assert (await operator.status()).bookie == BOOKIE


async def test_clients_are_sent_from_the_operators_port_to_their_own() -> None:
    async with operated() as (bookie, _), connected(bookie.operator_address) as peer:
        answer = await peer.greet(Hello(Purpose.ADDS, BOOKIE))
        assert isinstance(answer, Refusal)
        assert answer.reason == f"bookie {BOOKIE} takes that on its port for clients"


async def test_an_order_that_is_too_long_or_damaged_ends_its_connection_and_no_other() -> None:
    async with operated() as (bookie, operator):
        order = order_message("status", pb.StatusRequest())
        damaged = order[:-1] + bytes([order[-1] ^ 1])
        for body in (bytes(ORDER_BYTES_MAX + 1), damaged):
            async with connected(bookie.operator_address) as peer:
                await peer.greet(Hello(Purpose.ORDERS, BOOKIE))
                peer.send(FrameKind.ORDER, 1, body)
                assert await peer.rest() == b""
        assert (await operator.status()).bookie == BOOKIE


async def test_an_order_that_the_bookie_does_not_know_is_refused() -> None:
    async with operated() as (bookie, _), connected(bookie.operator_address) as peer:
        await peer.greet(Hello(Purpose.ORDERS, BOOKIE))
        unknown = checked(pb.OrderRequest())
        peer.send(FrameKind.ORDER, 1, unknown)
        assert "older" in order_answer((await peer.frame()).body, unknown).refused
        peer.send(FrameKind.READ, 2)
        assert (await peer.frame()).kind == FrameKind.NOT_KNOWN


async def test_silent_connections_keep_no_operator_away() -> None:
    """As 40 of them did, from anywhere, as long as they lasted."""
    async with operated() as (bookie, operator), AsyncExitStack() as silent:
        for _ in range(40):
            await silent.enter_async_context(connected(bookie.operator_address))
        assert (await operator.status()).bookie == BOOKIE


async def test_of_one_connection_so_many_orders_are_under_way_and_no_more() -> None:
    async with operated() as (bookie, operator):
        held = asyncio.Event()

        async def hold(_request: pb.StatusRequest) -> pb.StatusReply:
            await held.wait()
            return pb.StatusReply(bookie=BOOKIE)

        bookie.operator.status = hold  # type: ignore[method-assign]
        asking = [asyncio.ensure_future(operator.status()) for _ in range(ORDERS_MAX + 1)]
        with pytest.raises(BookieRefused, match="are under way"):
            await asking[-1]
        held.set()
        assert [(await each).bookie for each in asking[:-1]] == [BOOKIE] * ORDERS_MAX
