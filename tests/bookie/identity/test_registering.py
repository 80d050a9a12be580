"""A bookie stays registered whatever happens to its session (rule 79)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from bookie.identity import registration
from bookie.identity.registration import Registrar
from ledger.delays import Backoff
from ledger.errors import MetadataUnavailable
from ledger.metastore.memory import MemoryStore
from ledger.metastore.port import CreateOp, Op, create_node
from ledger.registry import COOKIES, BookieRegistration, register
from tests.waiting import PATIENCE_S, eventually, settled, until

ANNA = BookieRegistration("anna", "127.0.0.1:1", "start 1")
COOKIE = f"{COOKIES}/anna"
READ_ONLY_ANNA = replace(ANNA, read_only=True)


class Watched:
    """The registrations as another process sees them."""

    def __init__(self) -> None:
        self.store = MemoryStore("memory://cluster", "cluster")
        self.other = MemoryStore("memory://cluster", "cluster")
        self.registrar = Registrar(self.store, ANNA)

    async def make_known(self) -> None:
        await create_node(self.other, COOKIE)

    async def is_registered(self) -> bool:
        return await self.other.exists(ANNA.path) is not None

    async def lists(self) -> tuple[bool, bool]:
        """Return whether it is among the available and among the read-only ones."""
        return (
            await self.other.exists(ANNA.path) is not None,
            await self.other.exists(READ_ONLY_ANNA.path) is not None,
        )

    async def until_in(self, *, available: bool, read_only: bool) -> None:
        async def there() -> bool:
            return await self.lists() == (available, read_only)

        await eventually(there, f"available: {available}, read-only: {read_only}")

    async def until_registered(self, *, wanted: bool = True) -> None:
        async def registered() -> bool:
            return await self.is_registered() is wanted

        await eventually(registered, f"registered: {wanted}")


@asynccontextmanager
async def registered() -> AsyncIterator[Watched]:
    watched = Watched()
    await watched.make_known()
    await watched.registrar.start()
    try:
        yield watched
    finally:
        await watched.registrar.close()


async def test_closing_takes_the_registration_back() -> None:
    async with registered() as watched:
        assert await watched.is_registered()
        await watched.registrar.close()
        assert not await watched.is_registered()


async def test_it_registers_again_after_its_session_ended() -> None:
    async with registered() as watched:
        watched.store.expire()
        assert not await watched.is_registered()
        await watched.until_registered()


async def test_a_lost_registration_is_reported_before_it_registers_again() -> None:
    """The process may have stood still: whether its name is retired is read again."""
    watched = Watched()
    await watched.make_known()
    lost = asyncio.Event()
    watched.registrar = Registrar(watched.store, ANNA, on_lost=lost.set)
    await watched.registrar.start()
    assert not lost.is_set()
    watched.store.expire()
    async with asyncio.timeout(PATIENCE_S):
        await lost.wait()
    await watched.until_registered()
    await watched.registrar.close()


async def test_it_registers_again_after_its_node_vanished() -> None:
    async with registered() as watched:
        await watched.other.delete(ANNA.path)
        await watched.until_registered()


async def test_it_registers_again_after_the_store_was_out_of_reach() -> None:
    async with registered() as watched:
        watched.store.cut()
        lost = watched.store.session
        assert lost.lost.is_set()
        watched.store.heal()
        await until(lambda: watched.store.session is not lost)
        await watched.until_registered()


async def test_a_store_out_of_reach_does_not_hold_up_the_end() -> None:
    async with registered() as watched:
        watched.store.cut()
        async with asyncio.timeout(PATIENCE_S):
            await watched.registrar.close()
        watched.store.heal()


@pytest.mark.parametrize(("is_lost", "tries"), [(True, 5), (False, 1)])
async def test_a_first_registration_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, *, is_lost: bool, tries: int
) -> None:
    """A session that was lost is waited for a little."""
    watched = Watched()
    await watched.make_known()
    calls: list[BookieRegistration] = []

    async def fails(store: MemoryStore, registration: BookieRegistration) -> None:
        calls.append(registration)
        raise MetadataUnavailable(store.uri, "create", 1.0)

    monkeypatch.setattr(registration, "register", fails)
    monkeypatch.setattr(registration, "_RETRY_S_MIN", 0.0)
    if is_lost:
        watched.store.cut()
    with pytest.raises(MetadataUnavailable):
        await watched.registrar.start()
    assert calls == [ANNA] * tries
    assert watched.registrar.trouble == "not registered"
    await watched.registrar.close()


async def test_it_starts_in_the_list_where_it_belongs_by_then() -> None:
    watched = Watched()
    await watched.make_known()
    watched.registrar.set_read_only(read_only=True, reason="full")
    await watched.registrar.start()
    assert await watched.lists() == (False, True)
    await watched.registrar.close()
    assert await watched.lists() == (False, False)
    await watched.registrar.close()


async def test_what_keeps_clients_from_finding_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async with registered() as watched:
        caplog.set_level("INFO")
        assert watched.registrar.trouble == ""
        multi = watched.store.multi

        async def fails(ops: Sequence[Op]) -> None:
            raise MetadataUnavailable("memory://cluster", "multi", 1.0)

        watched.store.multi = fails  # type: ignore[method-assign]
        watched.registrar.set_read_only(read_only=True)
        await until(lambda: "not_registered" in caplog.text, "it has failed to move")
        assert watched.registrar.trouble == "the registration could not be renewed"
        watched.store.multi = multi  # type: ignore[method-assign]
        await watched.until_in(available=False, read_only=True)
        await until(lambda: watched.registrar.trouble == "", "it is found")
        assert "registered_again bookie='anna' read_only=True" in caplog.text
        watched.store.cut()
        assert watched.registrar.trouble == "the session of the metadata store is lost"
        await until(lambda: "registration_lost" in caplog.text, "it notices")
        watched.store.heal()
    assert watched.registrar.trouble == "not registered"


async def test_after_a_failure_it_waits_and_after_a_success_no_longer_than_at_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    resets: list[Backoff] = []

    def reset(backoff: Backoff) -> None:
        resets.append(backoff)

    monkeypatch.setattr(Backoff, "reset", reset)
    monkeypatch.setattr(registration, "_RETRY_S_MIN", 3600.0)
    monkeypatch.setattr(registration, "_RETRY_S_MAX", 3600.0)
    async with registered() as watched:
        watched.registrar.set_read_only(read_only=True)
        await watched.until_in(available=False, read_only=True)
        await settled()
        assert len(resets) == 1

        async def fails(ops: Sequence[Op]) -> None:
            raise MetadataUnavailable("memory://cluster", "multi", 1.0)

        watched.store.multi = fails  # type: ignore[method-assign]
        watched.registrar.set_read_only(read_only=False)
        await until(lambda: "not_registered" in caplog.text, "it has failed to move")
        await settled()
        assert caplog.text.count("not_registered") == 1


async def test_what_is_not_its_own_any_more_is_not_taken_back() -> None:
    async with registered() as watched:
        await watched.registrar.close(take_back=False)
        await watched.registrar.close()
        assert await watched.is_registered()


async def test_while_nothing_happens_it_waits_and_it_leaves_no_task_behind() -> None:
    async with registered() as watched:
        await settled()
        tasks = len(asyncio.all_tasks())
        for _ in range(3):
            watched.registrar.set_read_only(read_only=False)
            watched.other.wake([ANNA.path])
            watched.store.wake([ANNA.path])
            await settled()
        for read_only in (True, False):
            watched.registrar.set_read_only(read_only=read_only)
            await watched.until_in(available=not read_only, read_only=read_only)
            await settled()
        assert len(asyncio.all_tasks()) == tasks
        before = len(asyncio.all_tasks())
    assert len(asyncio.all_tasks()) < before


async def test_a_session_that_ends_before_the_first_registration_is_replaced() -> None:
    watched = Watched()
    await watched.make_known()
    watched.store.cut()
    starting = asyncio.create_task(watched.registrar.start())
    await settled()  # it has tried
    watched.store.heal()
    await starting
    assert await watched.is_registered()
    await watched.registrar.close()


async def test_it_moves_to_the_read_only_ones_and_back() -> None:
    async with registered() as watched:
        assert await watched.lists() == (True, False)
        watched.registrar.set_read_only(read_only=True)
        await watched.until_in(available=False, read_only=True)
        watched.registrar.set_read_only(read_only=False)
        await watched.until_in(available=True, read_only=False)
        await watched.registrar.close()
        assert await watched.lists() == (False, False)


def test_while_it_moves_it_is_always_in_one_list() -> None:
    """The new node is made before the old one is taken away."""

    async def scenario() -> None:
        async with registered() as watched:
            calls: list[str] = []
            multi, delete = watched.store.multi, watched.store.delete

            async def creating(ops: Sequence[Op]) -> None:
                await multi(ops)
                calls.extend(f"create {op.path}" for op in ops if isinstance(op, CreateOp))

            async def deleting(path: str, *args: object, **options: object) -> None:
                calls.append(f"delete {path}")
                await delete(path, *args, **options)  # type: ignore[arg-type]

            watched.store.multi = creating  # type: ignore[method-assign]
            watched.store.delete = deleting  # type: ignore[method-assign]
            watched.registrar.set_read_only(read_only=True)
            await watched.until_in(available=False, read_only=True)
            assert calls == [f"create {READ_ONLY_ANNA.path}", f"delete {ANNA.path}"]

    asyncio.run(scenario())


async def test_many_changes_of_mind_end_where_the_last_one_says() -> None:
    async with registered() as watched:
        for read_only in (True, False, True, False, True):
            watched.registrar.set_read_only(read_only=read_only)
            await asyncio.sleep(0)
        await watched.until_in(available=False, read_only=True)


async def test_a_move_that_failed_half_way_is_finished_also_if_it_was_called_off() -> None:
    """It was announced in the new list, and taking it out of the old one failed: who then wants
    it in the old one has it in both, and clients would go on to add to a read-only bookie."""
    async with registered() as watched:
        watched.registrar.set_read_only(read_only=True)
        await watched.until_in(available=False, read_only=True)
        delete, failed = watched.store.delete, asyncio.Event()

        async def fails_once(path: str, *args: object, **options: object) -> None:
            if path == READ_ONLY_ANNA.path and not failed.is_set():
                failed.set()
                raise MetadataUnavailable("memory://cluster", "delete", 1.0)
            await delete(path, *args, **options)  # type: ignore[arg-type]

        watched.store.delete = fails_once  # type: ignore[method-assign]
        watched.registrar.set_read_only(read_only=False)
        await failed.wait()
        watched.registrar.set_read_only(read_only=True)
        await watched.until_in(available=False, read_only=True)


async def test_a_session_that_ends_while_it_moves_leaves_it_where_it_belongs() -> None:
    async with registered() as watched:
        watched.registrar.set_read_only(read_only=True)
        watched.store.expire()
        await watched.until_in(available=False, read_only=True)
        watched.store.expire()
        await watched.until_in(available=False, read_only=True)


async def test_a_store_out_of_reach_delays_the_move_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with registered() as watched:
        watched.store.cut()
        watched.registrar.set_read_only(read_only=True)
        await until(lambda: "not_registered" in caplog.text, "it has failed to move")
        watched.store.heal()
        await watched.until_in(available=False, read_only=True)


async def test_the_node_of_a_crashed_start_in_the_other_list_is_taken_away() -> None:
    watched = Watched()
    await watched.make_known()
    await register(watched.other, replace(READ_ONLY_ANNA, incarnation="start 0"))
    await watched.registrar.start()
    assert await watched.lists() == (True, False)
    await watched.registrar.close()
