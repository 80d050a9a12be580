"""Changes are written down around what is done, by many operators, and with few bookies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dlog.aio import Log
from dlog.aio.admin import create_log, delete_log, list_logs, log_info, rename_log
from dlog.aio.namespace_connection import connect
from dlog.changes import (
    LOG,
    Change,
    ChangeNotRecorded,
    ChangeOutcome,
    Mode,
    audit_log,
    follow_changes,
    last_changes,
    recorded,
)
from dlog.errors import InvalidName
from dlog.testing import AsyncCluster
from ledger.client import LedgerClient
from tests.waiting import until


class Told(list[str]):
    pass


@asynccontextmanager
async def operator(cluster: AsyncCluster) -> AsyncIterator[LedgerClient]:
    client = await connect(cluster.uri)
    assert isinstance(client, LedgerClient)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def change(
    client: LedgerClient, what: str = "log seal", mode: Mode = Mode.AUTO, told: Told | None = None
) -> AsyncIterator[None]:
    warn = Told() if told is None else told
    async with recorded(
        client, what, {"log": "a"}, who="cn:a", place="here", mode=mode, warn=warn.append
    ):
        yield
    assert told is not None or not warn


def outcomes(found: list[Change]) -> dict[str, ChangeOutcome]:
    return {each.command: each.outcome for each in found}


async def test_each_change_is_listed_with_what_became_of_it() -> None:
    async with AsyncCluster() as cluster, operator(cluster) as client:
        assert await last_changes(client) == []
        async with change(client, "done"):
            pass
        with pytest.raises(ValueError, match="no"):
            async with change(client, "failed"):
                raise ValueError("no")
        with pytest.raises(asyncio.CancelledError):
            async with change(client, "interrupted"):
                raise asyncio.CancelledError
        found = await last_changes(client)
        assert outcomes(found) == {
            each: ChangeOutcome(each) for each in ("done", "failed", "interrupted")
        }
        assert [each.error for each in found] == ["", "no", ""]
        assert (found[0].who, found[0].place, found[0].arguments) == ("cn:a", "here", {"log": "a"})
        assert [each.command for each in await last_changes(client, changes_max=1)] == [
            "interrupted"
        ]
        assert await last_changes(client, since_ms=found[-1].begun_ms + 10**9) == []


async def test_it_is_written_down_before_anything_is_done() -> None:
    async with AsyncCluster() as cluster, operator(cluster) as client, change(client):
        [begun] = await last_changes(client)
        assert (begun.outcome, begun.ended_ms) == (ChangeOutcome.BEGUN, None)


async def test_operators_who_change_things_at_the_same_time_lose_nothing() -> None:
    async with AsyncCluster() as cluster, operator(cluster) as one, operator(cluster) as other:

        async def works(client: LedgerClient, name: str) -> None:
            for number in range(5):
                async with change(client, f"{name} {number}"):
                    await asyncio.sleep(0)

        await asyncio.gather(*(works(one, "a"), works(other, "b"), works(one, "c")))
        found = await last_changes(one)
        assert len(found) == 15
        assert {each.outcome for each in found} == {ChangeOutcome.DONE}


async def test_who_follows_sees_a_change_begin_and_end() -> None:
    async with AsyncCluster() as cluster, operator(cluster) as client:
        async with change(client, "first"):
            pass
        seen = []
        async for each in follow_changes(client):
            seen.append((each.command, each.outcome))
            if len(seen) == 2:
                async with change(client, "second"):
                    pass
            if len(seen) == 4:
                break
        assert seen == [
            (name, outcome)
            for name in ("first", "second")
            for outcome in (ChangeOutcome.BEGUN, ChangeOutcome.DONE)
        ]


async def test_without_bookies_an_operator_can_act_and_is_told() -> None:
    async with AsyncCluster() as cluster, operator(cluster) as client:
        for index in range(3):
            await cluster.kill_bookie(index)
        await until(lambda: not client.bookies.writable())
        told, acted = Told(), False
        async with change(client, "bookie replace", told=told):
            acted = True
        assert acted
        [said] = told
        assert "'bookie replace' was not recorded in the log '_audit': " in said


async def test_where_it_is_required_nothing_is_done_that_cannot_be_written_down() -> None:
    async with AsyncCluster() as cluster, operator(cluster) as client:
        for index in range(3):
            await cluster.kill_bookie(index)
        await until(lambda: not client.bookies.writable())
        with pytest.raises(
            ChangeNotRecorded, match="DLOG_AUDIT=auto makes the change without a record"
        ):
            async with change(client, mode=Mode.REQUIRED):
                pytest.fail("it was begun")


async def test_a_bookie_that_hangs_holds_an_operator_up_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_log, "WRITE_S_MAX", 0.05)

    async def hangs(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(audit_log, "_opened", hangs)
    async with AsyncCluster() as cluster, operator(cluster) as client:
        told = Told()
        async with change(client, told=told):
            pass
        assert "it took longer than 0.05 s" in told[0]


async def test_it_has_as_many_copies_as_there_are_bookies_and_more_once_there_are_more() -> None:
    async with AsyncCluster() as cluster, operator(cluster) as client:
        await cluster.kill_bookie(1)
        await cluster.kill_bookie(2)
        await until(lambda: len(client.bookies.writable()) == 1)
        async with change(client):
            pass
        settings = (await log_info(LOG, client=client)).manifest.settings
        assert settings.quorum.ensemble == 1
        await cluster.restart_bookie(1)
        await cluster.restart_bookie(2)
        await until(lambda: len(client.bookies.writable()) == 3)
        async with change(client):
            pass
        manifest = (await log_info(LOG, client=client)).manifest
        assert (manifest.settings.quorum.write, manifest.settings.quorum.ack) == (3, 2)
        assert len(await last_changes(client)) == 2


async def test_its_oldest_changes_go_before_its_manifest_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_log, "SEGMENTS_MAX", 3)
    async with AsyncCluster() as cluster, operator(cluster) as client:
        for number in range(8):
            async with change(client, str(number)):
                pass
        found = [each.command for each in await last_changes(client)]
        assert found == ["4", "5", "6", "7"]


def test_what_is_older_than_a_year_and_a_month_goes_and_never_all_of_it() -> None:
    now, day = 10**12, 86_400_000
    ages = [500, 450, 401, 399, 3]
    assert audit_log.first_kept([now - age * day for age in ages], now) == 2, "it has the 400th day"
    assert audit_log.first_kept([now - 500 * day], now) == 0
    assert audit_log.first_kept([now - 500 * day] * 3, now) == 2
    assert audit_log.first_kept([], now) == 0


async def test_a_log_that_was_deleted_begins_with_who_deleted_it() -> None:
    async with AsyncCluster() as cluster, operator(cluster) as client:
        async with change(client, "before"):
            pass
        async with change(client, "log delete"):
            await delete_log(LOG, client=client)
        assert outcomes(await last_changes(client)) == {"log delete": ChangeOutcome.DONE}


async def test_names_of_dlogs_own_logs_are_not_for_programs() -> None:
    async with AsyncCluster() as cluster, operator(cluster) as client:
        for attempt in (
            lambda: Log.open("_audit", client=client),
            lambda: create_log("_x/y", client=client),
            lambda: rename_log("a", "_a", client=client),
        ):
            with pytest.raises(InvalidName, match="begin with an underscore are for dlog's own"):
                await attempt()
        async with change(client):
            pass
        assert await list_logs(client=client) == []
        assert await list_logs(prefix="_", client=client) == [LOG]
