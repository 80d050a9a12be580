"""Gateways that register, see each other, die, and lose their session."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import dlog.testing
from dlog.aio.namespace_connection import connect
from dlog.kafka import membership as memberships
from dlog.kafka.membership import Membership
from dlog.protocol.gateway_record import GATEWAYS_PATH
from dlog.testing import AsyncCluster
from leader import lifeline as lifelines
from ledger.errors import MetadataUnavailable
from tests.waiting import PATIENCE_S, ended, settled, until

LOGS = [f"log-{number}" for number in range(50)]


@asynccontextmanager
async def members(count: int) -> AsyncIterator[tuple[AsyncCluster, list[Membership]]]:
    """Each with a session of its own, as processes have."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(dlog.testing.cluster(bookies=1))
        found: list[Membership] = []
        for number in range(count):
            ledgers = await connect(cluster.uri, alone=True)
            stack.push_async_callback(ledgers.close)
            member = Membership(ledgers.store, host="127.0.0.1", port=9092 + number)
            await member.start()
            stack.push_async_callback(member.close)
            found.append(member)
        yield cluster, found


def leaders_of(member: Membership) -> list[int]:
    leaders = (member.view.leader_of(log) for log in LOGS)
    return [-1 if leader is None else leader.port for leader in leaders]


async def test_gateways_see_each_other_and_agree_on_who_leads() -> None:
    async with members(3) as (_, found):
        for member in found:
            await until(lambda member=member: len(member.view.gateways) == 3)  # type: ignore[misc]
        assert leaders_of(found[0]) == leaders_of(found[1]) == leaders_of(found[2])
        for log in LOGS:
            assert sum(member.leads(log) for member in found) == 1


async def test_a_gateway_that_leaves_is_gone_at_once() -> None:
    async with members(2) as (_, (first, second)):
        await until(lambda: len(first.view.gateways) == 2)
        await second.close()
        assert not second.leads(LOGS[0])
        await until(lambda: len(first.view.gateways) == 1)
        assert all(first.leads(log) for log in LOGS)


async def test_the_death_of_a_process_is_seen_though_its_session_lives_on() -> None:
    async with members(2) as (_, (first, second)):
        await until(lambda: len(first.view.gateways) == 2)
        assert second._lifeline is not None
        assert second._running is not None
        second._running.cancel()
        second._lifeline.close()  # as the kernel does it for a process that was killed
        await until(lambda: len(first.view.gateways) == 1)
        assert first.deaths == 1
        assert all(first.leads(log) for log in LOGS)


async def test_a_gateway_that_has_left_is_listed_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients drop a broker that is not listed together with the partitions that it led."""
    async with members(2) as (_, (first, second)):
        await until(lambda: len(first.view.gateways) == 2)
        await second.close()
        await until(lambda: len(first.view.gateways) == 1)
        assert [each.port for each in first.listed] == [9092, 9093]
        await second.start()
        await until(lambda: len(first.view.gateways) == 2)
        assert [each.node_id for each in first.listed] == [first.node_id, second.node_id]
        await second.close()
        await until(lambda: len(first.view.gateways) == 1)
        monkeypatch.setattr(memberships, "LISTED_S", 0.0)
        assert [each.port for each in first.listed] == [9092]


async def test_a_client_hears_of_no_leader_whose_death_is_being_looked_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with members(2) as (_, (first, second)):
        await until(lambda: len(first.view.gateways) == 2)
        await until(lambda: len(first._lifelines) == 1)
        assert len((await first.settled()).gateways) == 2
        asked, answer = asyncio.Event(), asyncio.Event()

        async def refuses(*_: object) -> bool:
            asked.set()
            await answer.wait()
            return True

        monkeypatch.setattr(lifelines, "_refuses", refuses)
        monkeypatch.setattr(memberships, "SETTLE_S", PATIENCE_S)
        assert second._lifeline is not None
        second._lifeline.close()
        await ended(asked.wait())
        waiting = asyncio.create_task(first.settled())
        await settled()
        assert not waiting.done()
        answer.set()
        assert [each.port for each in (await ended(waiting)).gateways] == [9092]


async def test_a_client_waits_for_a_decision_for_so_long_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with members(2) as (_, (first, second)):
        await until(lambda: len(first._lifelines) == 1)

        async def refuses(*_: object) -> bool:
            await asyncio.Event().wait()
            return True

        monkeypatch.setattr(lifelines, "_refuses", refuses)
        monkeypatch.setattr(memberships, "SETTLE_S", 0.0)
        assert second._lifeline is not None
        second._lifeline.close()
        await until(lambda: any(each.at_eof() for each in first._lifelines.values()))
        assert len((await ended(first.settled())).gateways) == 2


async def test_a_dead_gateway_leads_nothing_also_while_its_node_cannot_be_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with members(2) as (_, (first, second)):
        await until(lambda: len(first.view.gateways) == 2)

        async def delete(path: str, version: int = -1) -> None:
            raise MetadataUnavailable("", path, 0.0, "refused")

        monkeypatch.setattr(first._store, "delete", delete)
        assert second._lifeline is not None
        assert second._running is not None
        second._running.cancel()
        second._lifeline.close()
        await until(lambda: len(first.view.gateways) == 1)
        await first.refresh()
        assert all(first.leads(log) for log in LOGS)


async def test_a_gateway_is_known_by_the_address_that_it_advertises() -> None:
    async with dlog.testing.cluster(bookies=1) as cluster:
        ledgers = await connect(cluster.uri)
        member = Membership(ledgers.store, host="broker.example.org", port=9092, listen="127.0.0.1")
        await member.start()
        try:
            (record,) = member.view.gateways
            assert record.address == "broker.example.org:9092"
            assert record.lifeline is not None
            assert record.lifeline.host == "broker.example.org"
        finally:
            await member.close()
            await ledgers.close()


async def test_a_gateway_without_its_session_leads_nothing_until_it_is_registered_again() -> None:
    async with members(1) as (cluster, (member,)):
        before = member.node_id
        assert all(member.leads(log) for log in LOGS)
        async with cluster.metadata_cut():
            assert not any(member.leads(log) for log in LOGS)
            assert member.node_id == -1
            assert member.last_view.gateways, "clients still learn where gateways were"
        await until(lambda: member.node_id > before)
        assert all(member.leads(log) for log in LOGS)


async def test_a_gateway_whose_node_was_deleted_registers_again() -> None:
    async with members(1) as (_, (member,)):
        before = member.node_id
        await member._store.delete(member._own_path)
        await until(lambda: member.node_id > before)


async def test_a_node_that_cannot_be_read_hides_no_gateway() -> None:
    async with members(1) as (_, (member,)):
        await member._store.create(f"{GATEWAYS_PATH}/9999999999", b"\xff")
        await member._store.create(f"{GATEWAYS_PATH}/no number", b"\xff")
        await member.refresh()
        assert [each.port for each in member.view.gateways] == [9092]
