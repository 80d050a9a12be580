"""Groups over real logs: answers only behind the log, takeovers, snapshots, requests of Kafka's."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace as Body
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from dlog.aio import Log
from dlog.aio.admin import list_consumers
from dlog.aio.maintain.lifecycle import ensure_log
from dlog.aio.store import ManifestNode
from dlog.kafka import group_mirror
from dlog.kafka import offsets_log as offsets_logs
from dlog.kafka.coordinator import OFFSETS_LOGS, GroupCoordinator, offsets_log
from dlog.kafka.errors import KafkaRefusal
from dlog.kafka.group_requests import GroupRequests
from dlog.kafka.protocol import group_offsets
from ledger.errors import MetadataUnavailable
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.waiting import ended, settled, until

GROUP = "billing"
LOG = offsets_log(GROUP)
NONE = ErrorCode.none


@dataclass
class Gateway:
    """One gateway: which logs it leads is what the test says."""

    cluster: FakeCluster
    ledgers: FakeLedgers
    leads: set[str] = field(default_factory=lambda: set(OFFSETS_LOGS))
    client_id: str = "app"
    host: str = "10.0.0.1"
    session_s: int = 30
    identity: str = ""
    readable: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.coordinator = GroupCoordinator(
            self.ledgers,
            leads=lambda log: log in self.leads,
            log_of=lambda topic, partition: topic if partition == 0 else None,
            owner="gateway",
            initial_delay_ms=0,
            mirror_s=3600.0,
        )
        self.requests = GroupRequests(self.coordinator, self)

    def may_join(self, identity: str) -> bool:
        return identity != "nobody"

    def may_read(self, identity: str, topic: str, _partition: int) -> bool:
        return identity == "" or topic in self.readable

    async def ask(self, api: str, version: int, **fields: Any) -> Any:
        request = Body(version=version, body=Body(group_id=GROUP, **fields))
        return await getattr(self.requests, api)(request, self)

    async def join(self, member_id: str = "", *, instance: str | None = None) -> Any:
        """Join as clients do, with the id that is asked for; return the values of the answer."""
        fields: Mapping[str, Any] = {
            "group_instance_id": instance,
            "session_timeout": timedelta(seconds=self.session_s),
            "rebalance_timeout": timedelta(seconds=60),
            "protocol_type": "consumer",
            "protocols": [Body(name="range", metadata=b"\0\1\0\0\0\1\0\6orders")],
        }
        answer = await self.ask("join_group", 5, member_id=member_id, **fields)
        if answer["error_code"] is ErrorCode.member_id_required:
            answer = await self.ask("join_group", 5, member_id=answer["member_id"], **fields)
        return answer

    async def sync(self, joined: Any, assignments: Mapping[str, bytes] = {}) -> Any:
        return await self.ask(
            "sync_group",
            3,
            member_id=joined["member_id"],
            generation_id=joined["generation_id"],
            assignments=[Body(member_id=k, assignment=v) for k, v in assignments.items()],
        )

    async def member(self) -> Any:
        """Join, assign and sync as the only member."""
        joined = await self.join()
        assert joined["error_code"] is NONE
        synced = await self.sync(joined, {joined["member_id"]: b"all"})
        assert synced["assignment"] == b"all"
        return joined

    async def beat(self, joined: Any) -> ErrorCode:
        answer = await self.ask(
            "heartbeat",
            3,
            member_id=joined["member_id"],
            generation_id=joined["generation_id"],
            group_instance_id=None,
        )
        return ErrorCode(answer["error_code"])

    async def commit(
        self, joined: Any, offset: int, *, topic: str = "orders", partition: int = 0,
        metadata: str | None = None,
    ) -> ErrorCode:  # fmt: skip
        committed = Body(
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=3,
            committed_metadata=metadata,
        )
        answer = await self.ask(
            "offset_commit",
            7,
            member_id=joined["member_id"] if joined else "",
            generation_id_or_member_epoch=joined["generation_id"] if joined else -1,
            group_instance_id=None,
            topics=[Body(name=topic, partitions=[committed])],
        )
        return ErrorCode(answer["topics"][0]["partitions"][0]["error_code"])

    async def fetch(self, group: str = GROUP) -> dict[tuple[str, int], int]:
        request = Body(version=8, body=Body(groups=[Body(group_id=group, topics=None)]))
        [answer] = (await self.requests.offset_fetch(request, self))["groups"]
        assert answer["error_code"] is NONE
        return {
            (topic["name"], each["partition_index"]): each["committed_offset"]
            for topic in answer["topics"]
            for each in topic["partitions"]
        }


@asynccontextmanager
async def gateways(count: int = 1) -> AsyncIterator[list[Gateway]]:
    cluster = FakeCluster()
    ledgers = cluster.client()
    made = [Gateway(cluster, ledgers) for _ in range(count)]
    try:
        yield made
    finally:
        for gateway in made:
            await gateway.coordinator.close()


async def test_a_member_joins_syncs_and_commits() -> None:
    async with gateways() as [gateway]:
        joined = await gateway.member()
        assert joined["members"][0]["metadata"].endswith(b"orders")
        assert joined["leader"] == joined["member_id"]
        assert joined["member_id"].startswith("app-")
        assert await gateway.beat(joined) is NONE
        assert await gateway.commit(joined, 42) is NONE
        assert await gateway.fetch() == {("orders", 0): 42}
        assert await gateway.fetch("unknown") == {}


async def test_what_is_not_in_the_log_is_not_acknowledged() -> None:
    async with gateways() as [gateway]:
        joined = await gateway.member()
        gateway.cluster.hold()
        commit = asyncio.create_task(gateway.commit(joined, 42))
        await settled()
        assert not commit.done()
        assert await gateway.fetch() == {}, "nor does anybody see it"
        gateway.cluster.release()
        assert await ended(commit) is NONE


async def test_a_takeover_finds_members_and_offsets() -> None:
    async with gateways(2) as [first, second]:
        joined = await first.member()
        assert await first.commit(joined, 42) is NONE
        assert await second.beat(joined) is NONE
        assert await second.fetch() == {("orders", 0): 42}
        synced = await second.sync(joined)
        assert synced["assignment"] == b"all"


async def test_a_coordinator_that_was_replaced_unnoticed_tells_no_old_offsets() -> None:
    async with gateways(2) as [first, second]:
        joined = await first.member()
        assert await first.commit(joined, 42) is NONE
        assert await second.commit(joined, 43) is NONE
        request = Body(version=8, body=Body(groups=[Body(group_id=GROUP, topics=None)]))
        [answer] = (await first.requests.offset_fetch(request, first))["groups"]
        assert answer["error_code"] is ErrorCode.not_coordinator
        assert await second.fetch() == {("orders", 0): 43}


async def test_offsets_are_not_told_while_nobody_knows_who_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gateways() as [gateway]:
        joined = await gateway.member()
        assert await gateway.commit(joined, 42) is NONE

        async def read(self: ManifestNode, **_: bool) -> Any:
            raise MetadataUnavailable("memory:", "get", 1.0)

        monkeypatch.setattr(ManifestNode, "read", read)
        request = Body(version=8, body=Body(groups=[Body(group_id=GROUP, topics=None)]))
        [answer] = (await gateway.requests.offset_fetch(request, gateway))["groups"]
        assert answer["error_code"] is ErrorCode.not_coordinator
        monkeypatch.undo()
        assert await gateway.fetch() == {("orders", 0): 42}


async def test_a_takeover_between_join_and_sync_continues_the_generation() -> None:
    async with gateways(2) as [first, second]:
        joined = await first.join()
        synced = await second.sync(joined, {joined["member_id"]: b"all"})
        assert synced["assignment"] == b"all"
        assert await second.beat(joined) is NONE


async def test_requests_that_wait_while_the_log_is_taken_over_look_for_the_coordinator() -> None:
    async with gateways(2) as [first, second]:
        joined = await first.member()
        waiting = asyncio.create_task(first.join())
        await settled()
        assert not waiting.done(), "the first member has to join again"
        await second.beat(joined)
        assert await first.commit(joined, 42) is ErrorCode.not_coordinator
        assert (await ended(waiting))["error_code"] is ErrorCode.not_coordinator
        assert await second.fetch() == {}


async def test_a_log_that_was_lost_just_now_is_left_alone() -> None:
    async with gateways(2) as [first, second]:
        joined = await first.member()
        await second.beat(joined)
        assert await first.commit(joined, 42) is ErrorCode.not_coordinator
        assert await first.beat(joined) is ErrorCode.coordinator_not_available
        assert await second.commit(joined, 43) is NONE, "it was not disturbed"


async def test_a_gateway_that_does_not_lead_the_log_lets_it_go() -> None:
    async with gateways() as [gateway]:
        joined = await gateway.member()
        gateway.leads.clear()
        assert await gateway.beat(joined) is ErrorCode.not_coordinator
        assert (await gateway.join())["error_code"] is ErrorCode.not_coordinator
        assert (await gateway.ask("list_groups", 4, states_filter=()))["groups"] == []
        gateway.leads.add(LOG)
        assert await gateway.beat(joined) is NONE


async def test_an_append_that_fails_ends_the_coordinator() -> None:
    """What became of it, the next one reads in the log."""
    async with gateways() as [gateway]:
        joined = await gateway.member()
        log = await gateway.coordinator.led(GROUP)

        async def fails(*_: object) -> int:
            raise MetadataUnavailable("memory:", "append", 1.0)

        log._append = fails  # type: ignore[method-assign,assignment]
        assert await gateway.commit(joined, 42) is ErrorCode.not_coordinator
        assert log.failed.is_set()


async def test_the_log_is_compacted_and_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_logs, "SNAPSHOT_BYTES_MIN", 2000)
    monkeypatch.setattr(group_offsets, "_OFFSET_CHARGE", 1)
    monkeypatch.setattr(group_offsets, "_GROUP_CHARGE", 1)
    async with gateways(2) as [first, second]:
        joined = await first.member()
        for offset in range(300):
            assert await first.commit(joined, offset, partition=offset % 3) is NONE
        node = ManifestNode(first.ledgers.store, LOG)
        await until(lambda: not first.coordinator._open[LOG]._queue)
        manifest, _ = await node.read()
        assert manifest.trim_offset > 200
        assert await second.beat(joined) is NONE
        expected = {("orders", 0): 297, ("orders", 1): 298, ("orders", 2): 299}
        assert await second.fetch() == expected


async def test_a_truncation_that_fails_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_logs, "SNAPSHOT_BYTES_MIN", 500)

    async def truncate(*_: object, **__: object) -> None:
        raise MetadataUnavailable("memory:", "set", 1.0)

    async with gateways(2) as [first, second]:
        joined = await first.member()
        monkeypatch.setattr(Log, "truncate", truncate)
        for offset in range(100):
            assert await first.commit(joined, offset) is NONE
        assert await second.fetch() == {("orders", 0): 99}


async def test_a_record_that_cannot_be_read_stops_the_groups_of_its_log() -> None:
    async with gateways() as [gateway]:
        node = ManifestNode(gateway.ledgers.store, LOG)
        await ensure_log(gateway.ledgers, node, None, own=True)
        async with Log.open(LOG, create=False, client=gateway.ledgers) as log:
            await log.append(b"\xff")
        with pytest.raises(KafkaRefusal, match="is not one of a consumer group") as refused:
            await gateway.coordinator.led(GROUP)
        assert refused.value.code is ErrorCode.coordinator_not_available
        assert (await gateway.join())["error_code"] is ErrorCode.coordinator_not_available


async def test_a_client_that_goes_while_it_waits_is_no_member_that_leaves() -> None:
    async with gateways() as [gateway]:
        joined = await gateway.member()
        waiting = asyncio.create_task(gateway.join())
        await settled()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        again = await gateway.join(joined["member_id"])
        assert again["generation_id"] == joined["generation_id"] + 1
        assert len(again["members"]) == 2


async def test_members_leave_by_name_and_the_group_can_be_deleted() -> None:
    async with gateways(2) as [gateway, other]:
        joined = await gateway.member()
        await gateway.commit(joined, 42)
        deletion = Body(version=2, body=Body(groups_names=[GROUP, "unknown"]))
        [refused, unknown] = (await gateway.requests.delete_groups(deletion, gateway))["results"]
        assert refused["error_code"] is ErrorCode.non_empty_group
        assert unknown["error_code"] is ErrorCode.group_id_not_found
        leaver = Body(member_id=joined["member_id"], group_instance_id=None)
        stranger = Body(member_id="x", group_instance_id=None)
        left = await gateway.ask("leave_group", 3, members=[leaver, stranger])
        assert [each["error_code"] for each in left["members"]] == [
            NONE,
            ErrorCode.unknown_member_id,
        ]
        assert await gateway.fetch() == {("orders", 0): 42}
        await until(lambda: not gateway.coordinator._open[LOG]._led)
        [deleted, _] = (await gateway.requests.delete_groups(deletion, gateway))["results"]
        assert deleted["error_code"] is NONE
        assert await gateway.fetch() == {}
        assert await other.fetch() == {}, "nor does the log know of it"


async def test_a_generation_continues_its_count_after_everybody_left() -> None:
    async with gateways(2) as [first, second]:
        joined = await first.member()
        await first.ask("leave_group", 1, member_id=joined["member_id"])
        again = await first.member()
        assert again["generation_id"] > joined["generation_id"]
        await first.ask("leave_group", 1, member_id=again["member_id"])
        await until(lambda: not first.coordinator._open[LOG]._led)
        assert (await second.member())["generation_id"] > again["generation_id"]


async def test_groups_are_listed_and_described() -> None:
    async with gateways() as [gateway]:
        joined = await gateway.member()
        request = Body(version=5, body=Body(states_filter=("Stable",), types_filter=("Classic",)))
        listed = await gateway.requests.list_groups(request, gateway)
        assert [each["group_id"] for each in listed["groups"]] == [GROUP]
        request = Body(version=5, body=Body(states_filter=("empty",), types_filter=()))
        assert (await gateway.requests.list_groups(request, gateway))["groups"] == []
        request = Body(version=5, body=Body(groups=[GROUP, "unknown"]))
        described = await gateway.requests.describe_groups(request, gateway)
        [group, unknown] = described["groups"]
        assert (group["group_state"], group["protocol_data"]) == ("Stable", "range")
        [member] = group["members"]
        assert (member["member_id"], member["client_host"]) == (joined["member_id"], "/10.0.0.1")
        assert member["member_assignment"] == b"all"
        assert (unknown["group_state"], unknown["error_code"]) == ("Dead", NONE)
        request = Body(version=6, body=Body(groups=["unknown"]))
        [unknown] = (await gateway.requests.describe_groups(request, gateway))["groups"]
        assert unknown["error_code"] is ErrorCode.group_id_not_found


async def test_offsets_of_topics_that_nobody_reads_are_deleted() -> None:
    async with gateways() as [gateway]:
        joined = await gateway.member()
        await gateway.commit(joined, 42)
        await gateway.commit(joined, 43, topic="other")
        partitions = [Body(partition_index=0)]
        topics = [Body(name=name, partitions=partitions) for name in ("orders", "other")]
        answer = await gateway.ask("offset_delete", 0, topics=topics)
        assert [each["partitions"][0]["error_code"] for each in answer["topics"]] == [
            ErrorCode.group_subscribed_to_topic,
            NONE,
        ]
        assert await gateway.fetch() == {("orders", 0): 42}


async def test_offsets_that_cannot_be_kept_are_refused_one_by_one() -> None:
    async with gateways() as [gateway]:
        joined = await gateway.member()
        long = await gateway.commit(joined, 42, metadata="x" * 4097)
        assert long is ErrorCode.offset_metadata_too_large
        assert await gateway.commit(joined, -1) is ErrorCode.offset_out_of_range
        unknown = await gateway.commit(joined, 1, topic="x" * 250)
        assert unknown is ErrorCode.unknown_topic_or_partition
        assert await gateway.fetch() == {}


async def test_a_client_without_membership_commits_to_an_empty_group() -> None:
    async with gateways() as [gateway]:
        assert await gateway.commit(None, 42) is NONE
        await gateway.member()
        assert await gateway.commit(None, 43) is ErrorCode.unknown_member_id
        assert await gateway.fetch() == {("orders", 0): 42}


async def test_offsets_of_a_group_that_is_empty_for_long_expire() -> None:
    async with gateways() as [gateway]:
        assert await gateway.commit(None, 42) is NONE
        log = await gateway.coordinator.led(GROUP)
        log.expire()
        await settled()
        assert await gateway.fetch() == {("orders", 0): 42}
        for key, committed in list(log.state.groups[GROUP].offsets.items()):
            old = committed.committed_ms - group_offsets.RETENTION_MS - 1
            aged = group_offsets.CommittedOffset(committed.offset, -1, "", old)
            log.state.groups[GROUP].offsets[key] = aged
        log.expire()
        await until(lambda: not log.state.groups)
        assert await gateway.fetch() == {}


async def test_a_client_commits_offsets_of_what_it_may_read() -> None:
    async with gateways() as [gateway]:
        joined = await gateway.member()
        assert await gateway.commit(joined, 1, topic="secret") is NONE
        gateway.identity, gateway.readable = "app:web", frozenset(["orders"])
        assert await gateway.commit(joined, 42) is NONE
        refused = await gateway.commit(joined, 43, topic="secret")
        assert refused is ErrorCode.topic_authorization_failed
        assert await gateway.fetch() == {("orders", 0): 42}
        gateway.identity = "nobody"
        assert await gateway.beat(joined) is ErrorCode.group_authorization_failed
        assert (await gateway.join())["error_code"] is ErrorCode.group_authorization_failed
        request = Body(version=4, body=Body(states_filter=()))
        listed = await gateway.requests.list_groups(request, gateway)
        assert listed["error_code"] is ErrorCode.group_authorization_failed
        gateway.identity = ""
        assert await gateway.fetch() == {("orders", 0): 42, ("secret", 0): 1}


async def test_an_id_of_a_group_has_a_bound() -> None:
    async with gateways() as [gateway]:
        with pytest.raises(KafkaRefusal, match="1024 bytes") as refused:
            await gateway.coordinator.led("x" * 1025)
        assert refused.value.code is ErrorCode.invalid_group_id


async def test_a_silent_member_is_removed_by_the_clock() -> None:
    async with gateways() as [gateway]:
        gateway.session_s = 1
        await gateway.member()
        await until(lambda: not gateway.coordinator._open[LOG]._led)
        request = Body(version=5, body=Body(groups=[GROUP]))
        [group] = (await gateway.requests.describe_groups(request, gateway))["groups"]
        assert (group["group_state"], group["members"]) == ("Empty", [])


async def mirrored(gateway: Gateway) -> dict[str, int]:
    await gateway.coordinator._mirror.write()
    consumers = await list_consumers("orders", client=gateway.ledgers)
    return {each.name: each.position for each in consumers}


async def test_what_a_group_has_committed_is_a_consumer_of_the_log() -> None:
    async with gateways(2) as [first, second]:
        async with Log.open("orders", client=first.ledgers) as log:
            await log.append_many([b"x"] * 50)
        joined = await first.member()
        assert await mirrored(first) == {}
        await first.commit(joined, 20)
        await first.commit(joined, 30)
        await first.commit(joined, 9, partition=1)  # of no log
        assert await mirrored(first) == {"kafka/billing": 30}
        await first.commit(joined, 40)
        assert await mirrored(first) == {"kafka/billing": 40}
        await first.commit(joined, 5)
        assert await mirrored(first) == {"kafka/billing": 5}, "retention waits for it again"
        await first.commit(joined, 45)
        assert await second.beat(joined) is NONE
        assert await mirrored(second) == {"kafka/billing": 45}
        await second.ask("leave_group", 1, member_id=joined["member_id"])
        deletion = Body(version=2, body=Body(groups_names=[GROUP]))
        await until(lambda: not second.coordinator._open[LOG]._led)
        await second.requests.delete_groups(deletion, second)
        assert await mirrored(second) == {}


async def test_a_gateway_that_lost_the_group_moves_its_consumer_no_more() -> None:
    async with gateways(2) as [first, second]:
        async with Log.open("orders", client=first.ledgers) as log:
            await log.append_many([b"x"] * 50)
        joined = await first.member()
        await first.commit(joined, 20)
        await mirrored(first)
        first.coordinator._mirror.note(LOG, GROUP, ("orders", 0), 30)
        assert await second.beat(joined) is NONE
        await second.commit(joined, 10)
        assert await mirrored(second) == {"kafka/billing": 10}
        assert await mirrored(first) == {"kafka/billing": 10}


async def test_a_consumer_waits_for_the_metadata_store() -> None:
    async with gateways() as [gateway]:
        async with Log.open("orders", client=gateway.ledgers) as log:
            await log.append_many([b"x"] * 50)
        await gateway.commit(await gateway.member(), 20)
        mirror = gateway.coordinator._mirror

        async def unavailable(*_: object) -> None:
            raise MetadataUnavailable("memory:", "set", 1.0)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mirror, "_write", unavailable)
            await mirror.write()
        assert await mirrored(gateway) == {"kafka/billing": 20}


async def test_a_mirror_that_drops_commits_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_mirror, "NOTES_MAX", 2)
    async with gateways() as [gateway]:
        mirror = gateway.coordinator._mirror
        for partition in range(4):
            mirror.note(LOG, GROUP, ("orders", partition), 1)
        mirror.note(LOG, GROUP, ("orders", 0), 2)
        assert list(mirror._notes.values()) == [2, 1]
    assert caplog.text.count("group_mirror_full") == 1
