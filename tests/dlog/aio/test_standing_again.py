"""A standby whose promotion or resignation went wrong: what it says, and what it still does."""

import asyncio

import pytest

from dlog import AlreadyPromoted, AppendOutcomeUnknown, LostOwnership, NoSuchLog
from dlog.aio import Log, Standby
from dlog.aio.admin import delete_log
from ledger.errors import WriterFailed
from ledger.ids import LedgerId
from ledger.metastore.memory import MemoryStore
from ledger.metastore.port import ANY_VERSION
from tests.dlog.aio.test_aio_standby import LOG, State
from tests.dlog.fake_ledgers import FakeCluster
from tests.dlog.faulty_store import FaultyStore
from tests.waiting import PATIENCE_S, settled, until


@pytest.mark.slow
async def test_a_resignation_while_the_store_is_away_is_followed_by_following_once_it_is_back() -> (
    None
):
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    client = FakeCluster().client(store)
    state = State()
    async with await Standby.open(LOG, state.apply, client=client, lease_s=PATIENCE_S) as standby:
        log = await standby.promote()
        await log.append(b"own")
        store.down = True
        await standby.resign()
        store.down = False
        async with await Log.open(LOG, client=client) as other:
            await other.append(b"another's")
        await until(lambda: state.values == [b"another's"])
        await standby.promote()
        assert standby.is_leader
        assert state.values == [b"another's"]


async def test_the_log_is_handed_over_when_the_last_batch_was_applied_and_not_before() -> None:
    client = FakeCluster().client()
    state = State()
    state.gate.clear()
    async with await Log.open(LOG, client=client) as log:
        await log.append(b"a")
    async with await Standby.open(
        LOG, state.apply, client=client, lease_s=PATIENCE_S, lifeline_host=None
    ) as standby:
        promoting = asyncio.create_task(standby.promote())
        await settled()
        assert standby._following.end == 1, "it is elected, and has taken the log over"
        assert not promoting.done()
        assert standby.position == 0
        state.gate.set()
        await promoting
        assert state.values == [b"a"]
        assert standby.position == 1


async def test_nothing_of_a_log_that_took_the_name_of_a_sealed_one_is_applied() -> None:
    client = FakeCluster().client()
    state = State()
    log = await Log.open(LOG, client=client)
    await log.append(b"old")
    async with await Standby.open(
        LOG, state.apply, client=client, lease_s=PATIENCE_S, lifeline_host=None
    ) as standby:
        await log.seal()
        await until(standby._following.task.done, "it has followed to the end")
        await delete_log(LOG, client=client)
        async with await Log.open(LOG, client=client) as another:
            await another.append(b"new")
            await another.append(b"newer")
        with pytest.raises(NoSuchLog, match="another one has its name"):
            await standby.promote()
        await settled()
        assert state.values == [b"old"]


async def test_who_could_not_append_all_before_it_resigned_does_not_lead_again() -> None:
    cluster = FakeCluster()
    standby = await Standby.open(LOG, State().apply, client=cluster.client(), lease_s=PATIENCE_S)
    log = await standby.promote()
    cluster.hold()
    future = log.append_async(b"a")
    await settled()
    resigning = asyncio.create_task(standby.resign())
    await settled()
    with pytest.raises(AlreadyPromoted):
        await standby.promote()
    cluster.ledgers[LedgerId(1)].fail(WriterFailed(LedgerId(1), "by the test"))
    with pytest.raises(AppendOutcomeUnknown):
        await future
    assert [type(e).__name__ for e in await asyncio.gather(resigning, return_exceptions=True)] == [
        "AppendFailed"
    ]
    with pytest.raises(LostOwnership, match="close this standby"):
        await standby.promote()
    await standby.close()


async def test_who_cancels_a_resignation_does_not_lead_again() -> None:
    cluster = FakeCluster()
    standby = await Standby.open(LOG, State().apply, client=cluster.client(), lease_s=PATIENCE_S)
    log = await standby.promote()
    cluster.hold()
    future = log.append_async(b"a")
    await settled()
    resigning = asyncio.create_task(standby.resign())
    await settled()
    resigning.cancel()
    await asyncio.wait({resigning})
    assert resigning.cancelled()
    with pytest.raises(AppendOutcomeUnknown):
        await future
    with pytest.raises(LostOwnership, match="close this standby"):
        await standby.promote()
    await standby.close()


class _SilentStore(MemoryStore):
    """Takes no node away while it is silent, and does not answer."""

    silent = asked = False

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        if self.silent:
            self.asked = True
            await asyncio.Event().wait()
        await super().delete(path, version)


async def test_who_cancels_a_resignation_when_its_log_is_closed_does_not_lead_again() -> None:
    store = _SilentStore("memory://fake", "fake")
    client = FakeCluster().client(store)
    standby = await Standby.open(LOG, State().apply, client=client, lease_s=PATIENCE_S)
    log = await standby.promote()
    await log.append(b"a")
    store.silent = True
    resigning = asyncio.create_task(standby.resign())
    await until(lambda: store.asked, "its log is closed, and its candidacy being withdrawn")
    resigning.cancel()
    await asyncio.wait({resigning})
    assert resigning.cancelled()
    store.silent = False
    with pytest.raises(LostOwnership, match="close this standby"):
        await standby.promote(timeout_s=PATIENCE_S)
    await standby.close()


async def test_closing_waits_for_a_resignation_that_goes_on() -> None:
    cluster = FakeCluster()
    standby = await Standby.open(LOG, State().apply, client=cluster.client(), lease_s=PATIENCE_S)
    log = await standby.promote()
    cluster.hold()
    future = log.append_async(b"a")
    resigning = asyncio.create_task(standby.resign())
    await settled()
    closing = asyncio.create_task(standby.close())
    await settled()
    assert not closing.done()
    cluster.release()
    await asyncio.gather(closing, resigning)
    assert (await future).offset == 0


async def test_a_promotion_that_succeeds_while_it_is_cancelled_does_not_lead_in_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeCluster().client()
    standby = await Standby.open(LOG, State().apply, client=client, lease_s=PATIENCE_S)
    guard = Standby._guard

    async def cancelled_meanwhile(*arguments: object) -> None:
        """The guard begins after the promotion has succeeded and before its caller knows."""
        promoting.cancel()
        await guard(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Standby, "_guard", cancelled_meanwhile)
    promoting = asyncio.create_task(standby.promote())
    await asyncio.wait({promoting})
    assert promoting.cancelled()
    assert not standby.is_leader
    monkeypatch.undo()
    await standby.promote()
    assert standby.is_leader
    await standby.close()
