"""A bookie makes no promises about ledgers that nobody made: they cannot be fenced in advance."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.server import metadata_lookups
from bookie.server.limits import ServiceConfig
from bookie.server.metadata_lookups import MadeLedgers
from bookie.server.service import BookieService
from bookie.server.unknown_ledger_policy import UNASKED_MAX, UnknownLedgerPolicy
from dlog.aio import Log
from ledger.cluster import make_namespace
from ledger.errors import MetadataUnavailable
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.manager import LedgerStore
from ledger.manager.ids import BLOCK_SIZE
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore import open_store
from ledger.metastore.memory import MemoryStore
from ledger.quorum import Quorum
from ledger.requests import InfoAnswer, LacQuery, ReadQuery, Status
from tests.bookie.memory_storage import MemoryStorage
from tests.bookie.processes import bookie
from tests.bookie.runs import KEY, run_of
from tests.ledger.flaky_store import FlakyStore
from tests.ledger.serving import add, transport_to, until

METADATA = LedgerMetadata(
    quorum=Quorum(1, 1, 1),
    fragments=(Fragment(EntryId(0), (BookieId("b"),)),),
    access_key=KEY,
    creation_token=b"token",
)
STRANGER = b"a stranger's key"


@given(st.lists(st.sampled_from([True, False, None])), st.integers(0, 3))
def test_what_nobody_made_is_taken_up_to_a_bound_and_what_was_made_always(
    found: list[bool | None], unmade_max: int
) -> None:
    vouching = UnknownLedgerPolicy(unmade_max=unmade_max)
    admitted = [vouching.admits(found=one) for one in found]
    pairs = list(zip(found, admitted, strict=True))
    assert all(taken for one, taken in pairs if one)
    unmade = [taken for one, taken in pairs if one is False]
    assert sum(unmade) == min(unmade_max, len(unmade))
    assert all(taken for one, taken in pairs if one is None)


def test_a_store_that_is_silent_lets_a_bounded_number_in_until_it_speaks() -> None:
    vouching = UnknownLedgerPolicy()
    taken = [vouching.admits(found=None) for _ in range(2 * UNASKED_MAX)]
    assert sum(taken) == UNASKED_MAX
    assert not taken[-1]
    assert not vouching.admits(found=False)
    assert vouching.admits(found=None)


class Silent(FlakyStore):
    silent = False
    asked = 0

    def _before(self, operation: str) -> None:
        self.asked += 1
        if self.silent:
            raise MetadataUnavailable("memory://made", operation, 0)


def on_service(
    scenario: Callable[[BookieService, LedgerStore, Silent, MemoryStorage], Awaitable[None]],
) -> None:
    async def run() -> None:
        store = Silent(MemoryStore("memory://made", "made"))
        ledgers = LedgerStore(store, (await make_namespace(store)).layout)
        storage = MemoryStorage()
        info = InfoAnswer("b", "start 1", "instance", read_only=False)
        service = BookieService(storage, info, ServiceConfig(), made=MadeLedgers(ledgers))
        try:
            await scenario(service, ledgers, store, storage)
        finally:
            await service.close()
            await store.close()

    asyncio.run(run())


async def added(service: BookieService, ledger_id: int) -> Status:
    """Add an entry on a stream of its own."""
    stream = service.stream(lambda: None)
    runs = [run_of(0, ledger_id=ledger_id)]
    stream.offer(1, runs, await stream.prepare(runs))
    stream.commit(time.perf_counter())
    await until(lambda: stream.session.ready)
    (ack,) = stream.session.acks()
    stream.close()
    return ack.statuses[0] if ack.statuses else Status.OK


def test_a_ledger_that_nobody_made_is_neither_fenced_nor_written_and_never_denied() -> None:
    async def scenario(
        service: BookieService, ledgers: LedgerStore, _store: Silent, storage: MemoryStorage
    ) -> None:
        ledger_id = await ledgers.create(METADATA)
        for future in (ledger_id + 1, ledger_id + BLOCK_SIZE, 2**62):
            read = await service.read(ReadQuery(future, STRANGER, 0, 0, fence=True))
            lac = await service.read_lac(LacQuery(future, STRANGER, fence=True))
            assert (read.status, read.fenced) == (Status.TOO_MANY_REQUESTS, False)
            assert (lac.status, lac.fenced) == (Status.TOO_MANY_REQUESTS, False)
            assert await added(service, future) is Status.NO_SUCH_LEDGER
            assert future not in storage.ledgers
        squatted = await service.read_lac(LacQuery(ledger_id, STRANGER, fence=True))
        assert squatted.status is Status.TOO_MANY_REQUESTS, "its key is in its metadata"
        assert await added(service, ledger_id) is Status.OK
        made = await ledgers.create(METADATA)
        assert (await service.read_lac(LacQuery(made, KEY, fence=True))).fenced, "rule 29"
        await ledgers.delete(ledger_id)
        assert (await service.read_lac(LacQuery(ledger_id, KEY, fence=True))).fenced, "it is here"

    on_service(scenario)


def test_while_the_store_is_silent_a_bounded_number_is_taken_and_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.unknown_ledger_policy.UNASKED_MAX", 5)

    async def scenario(
        service: BookieService, _ledgers: LedgerStore, store: Silent, _storage: MemoryStorage
    ) -> None:
        store.silent = True
        store.asked = 0
        taken = [await added(service, ledger_id) for ledger_id in range(10)]
        assert taken[0] is Status.OK
        assert taken[5:] == [Status.TOO_MANY_REQUESTS] * 5, "nobody said that they are not there"
        assert store.asked == 1, "it is not asked again with each ledger"

    on_service(scenario)


def test_too_many_questions_at_once_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_lookups, "WAITING_MAX", 3)

    async def scenario(
        service: BookieService, ledgers: LedgerStore, _store: Silent, _storage: MemoryStorage
    ) -> None:
        ids = [await ledgers.create(METADATA) for _ in range(5)]
        answers = await asyncio.gather(
            *(service.read_lac(LacQuery(one, KEY, fence=True)) for one in ids)
        )
        assert [answer.fenced for answer in answers] == [True] * 3 + [False] * 2

    on_service(scenario)


def test_the_new_ledgers_of_a_batch_are_asked_about_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each of a process's thousand logs waits for all of them, on every bookie at once."""
    together, under_way = 0, 0
    honest = LedgerStore.read

    async def read(
        self: LedgerStore, ledger_id: LedgerId, *, fresh: bool = False
    ) -> tuple[LedgerMetadata, int]:
        nonlocal together, under_way
        under_way += 1
        together = max(together, under_way)
        await asyncio.sleep(0)
        try:
            return await honest(self, ledger_id, fresh=fresh)
        finally:
            under_way -= 1

    monkeypatch.setattr(LedgerStore, "read", read)

    async def scenario(
        service: BookieService, ledgers: LedgerStore, _store: Silent, _storage: MemoryStorage
    ) -> None:
        ids = [await ledgers.create(METADATA) for _ in range(100)]
        stream = service.stream(lambda: None)
        runs = [run_of(0, ledger_id=one) for one in [*ids, ids[-1] + 1, *ids]]
        stream.offer(1, runs, await stream.prepare(runs))
        stream.commit(time.perf_counter())
        await until(lambda: stream.session.ready)
        (ack,) = stream.session.acks()
        stream.close()
        expected = [Status.OK] * len(runs)
        expected[100] = Status.NO_SUCH_LEDGER
        assert list(ack.statuses) == expected
        assert together == metadata_lookups.ASKING_MAX

    on_service(scenario)


def test_a_store_that_is_slow_holds_nobody_up_for_longer_than_clients_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_lookups, "TURN_S_MAX", 0.01)
    monkeypatch.setattr(metadata_lookups, "ASKING_MAX", 1)
    answers = asyncio.Event()
    honest = LedgerStore.read

    async def read(
        self: LedgerStore, ledger_id: LedgerId, *, fresh: bool = False
    ) -> tuple[LedgerMetadata, int]:
        await answers.wait()
        return await honest(self, ledger_id, fresh=fresh)

    async def scenario(
        service: BookieService, ledgers: LedgerStore, _store: Silent, storage: MemoryStorage
    ) -> None:
        ids = [await ledgers.create(METADATA) for _ in range(3)]
        monkeypatch.setattr(LedgerStore, "read", read)
        first = asyncio.create_task(added(service, ids[0]))
        await asyncio.sleep(0)
        assert [await added(service, one) for one in ids[1:]] == [Status.TOO_MANY_REQUESTS] * 2
        answers.set()
        assert await first is Status.OK
        assert await added(service, ids[1]) is Status.OK, "it was busy, and told so"
        assert ids[2] not in storage.ledgers

    on_service(scenario)


@pytest.mark.integration
def test_ledgers_cannot_be_fenced_before_they_are_made(tmp_path: Path) -> None:
    """Every new log would get one of these ids, and fail."""

    async def scenario(uri: str, name: BookieId, address: str) -> None:
        store = await open_store(uri)
        next_id = (await LedgerStore(store, (await make_namespace(store)).layout).vitals()).next_id
        await store.close()
        async with transport_to(address) as transport:
            for ledger_id in range(next_id, next_id + 100):
                query = LacQuery(LedgerId(ledger_id), STRANGER, fence=True)
                answer = await transport.read_lac(name, query)
                assert answer.status is Status.TOO_MANY_REQUESTS
                run = run_of(0, ledger_id=ledger_id)
                assert await add(transport, run, name) is Status.NO_SUCH_LEDGER
        async with await Log.open("log", uri=uri) as log:
            assert (await log.append(b"record")).offset == 0
        async with await Log.tail("log", uri=uri, follow=False) as reader:
            assert [record.value async for record in reader] == [b"record"]

    uri = f"file://{tmp_path}/metadata"
    options = ("--unmade-ledgers=0", "--host=127.0.0.1")
    with bookie(uri, tmp_path / "b0", "--id=b0", *options) as process:
        name, address = process.ready()
        with (
            bookie(uri, tmp_path / "b1", "--id=b1", *options) as second,
            bookie(uri, tmp_path / "b2", "--id=b2", *options) as third,
        ):
            second.ready()
            third.ready()
            asyncio.run(scenario(uri, BookieId(name), address))
