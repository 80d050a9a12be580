"""Consumers of a group, each a simulated process, and what must hold of what they are told."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace as Body
from typing import Any, Final

from kio.schema.errors import ErrorCode

from dlog.kafka.coordinator import offsets_log
from tests.simulation.gateways.gateway import RegisteredGateway
from tests.simulation.kernel.invariants import InvariantError
from tests.simulation.kernel.network import Stream
from tests.simulation.logs.process import Process

GROUP: Final = "billing"
TOPIC: Final = "orders"
PARTITIONS: Final = 4
SESSION_S: Final = 2.0
REBALANCE_S: Final = 3.0
REQUEST_S: Final = 1.5
JOIN_S: Final = REBALANCE_S + 1.5
RETRY_S: Final = 0.1

ONE_GENERATION: Final = "a_generation_has_one_assignment"
NEVER_BACK: Final = "an_acknowledged_commit_never_goes_back"
INVARIANTS: Final = {
    ONE_GENERATION: "a generation has one leader, a member one assignment in it, a partition one "
    "member",
    NEVER_BACK: "a group is told of no offset below one whose commit was acknowledged before it "
    "asked",
}


@dataclass(slots=True)
class GroupOracle:
    leaders: dict[int, str] = field(default_factory=dict)
    """Of each generation."""
    assigned: dict[tuple[int, str], tuple[int, ...]] = field(default_factory=dict)
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    """Of a partition in a generation."""
    acknowledged: dict[int, int] = field(default_factory=dict)
    """The highest committed offset of each partition."""

    def joined(self, generation: int, leader: str) -> None:
        known = self.leaders.setdefault(generation, leader)
        if known != leader:
            story = f"generation {generation} is led by {known} and {leader}"
            raise InvariantError(ONE_GENERATION, GROUP, story)

    def synced(self, generation: int, member: str, partitions: tuple[int, ...]) -> None:
        known = self.assigned.setdefault((generation, member), partitions)
        if known != partitions:
            story = f"{member} has {known} and {partitions} in generation {generation}"
            raise InvariantError(ONE_GENERATION, GROUP, story)
        for partition in partitions:
            owner = self.owners.setdefault((generation, partition), member)
            if owner != member:
                story = f"{owner} and {member} have {partition} in generation {generation}"
                raise InvariantError(ONE_GENERATION, GROUP, story)

    def committed(self, offsets: Mapping[int, int]) -> None:
        for partition, offset in offsets.items():
            known = self.acknowledged.get(partition, 0)
            self.acknowledged[partition] = max(known, offset)

    def fetched(self, who: str, offsets: Mapping[int, int], floor: Mapping[int, int]) -> None:
        """*floor*: `acknowledged` when it was asked."""
        for partition, offset in floor.items():
            told = offsets.get(partition, 0)
            if told < offset:
                story = f"{who} was told {told} of {partition} after {offset} was acknowledged"
                raise InvariantError(NEVER_BACK, GROUP, story)


class Rejoin(Exception):
    """The member is in no generation now."""


class GroupConsumer:
    """A client of the classic protocol: one request after the other, and again what was lost."""

    def __init__(
        self, process: Process, gateways: Sequence[RegisteredGateway], oracle: GroupOracle
    ) -> None:
        self.process = process
        self.settled: tuple[int, tuple[int, ...]] | None = None
        """Generation and partitions that it has."""
        self.committed_at = 0.0
        self.leaving = False
        self._gateways, self._oracle = gateways, oracle
        self._random = process.world.scheduler.random
        self._streams: dict[str, Stream[tuple[Any]]] = {}
        self._coordinator: RegisteredGateway | None = None
        self._member_id, self._generation = "", -1

    async def run(self) -> None:
        while not self.leaving:
            try:
                await self._live()
            except Rejoin:
                self.settled = None
                await asyncio.sleep(self._random.uniform(0.0, RETRY_S))
        if self._member_id:
            members = [Body(member_id=self._member_id, group_instance_id=None)]
            await self._ask("leave_group", 4, REQUEST_S, members=members)
            self.process.mark("member_left")

    async def _live(self) -> None:
        partitions = await self._synced(await self._joined())
        self.process.note(f"has {partitions} in generation {self._generation}")
        self._oracle.synced(self._generation, self._member_id, partitions)
        positions = await self._fetched(partitions)
        self.settled = self._generation, partitions
        self.process.mark("member_settled")
        while not self.leaving:
            await asyncio.sleep(self._random.uniform(0.05, SESSION_S / 4))
            lot = self._random.random()
            if lot < 0.4:
                await self._beat()
            elif lot < 0.8:
                await self._commit(positions)
            else:
                await self._look()

    async def _joined(self) -> Mapping[str, Any]:
        while True:
            joined: Mapping[str, Any] | None = await self._ask(
                "join_group",
                5,
                JOIN_S,
                member_id=self._member_id,
                group_instance_id=None,
                session_timeout=timedelta(seconds=SESSION_S),
                rebalance_timeout=timedelta(seconds=REBALANCE_S),
                protocol_type="consumer",
                protocols=[Body(name="range", metadata=b"\0\1\0\0\0\1\0\6orders")],
            )
            if joined is not None and joined["error_code"] is ErrorCode.member_id_required:
                self._member_id = joined["member_id"]
                continue
            self._check(joined)
            assert joined is not None, "checked"
            self._member_id, self._generation = joined["member_id"], joined["generation_id"]
            self._oracle.joined(self._generation, joined["leader"])
            return joined

    async def _synced(self, joined: Mapping[str, Any]) -> tuple[int, ...]:
        assignments = []
        if joined["leader"] == self._member_id:
            names = [each["member_id"] for each in joined["members"]]
            self._random.shuffle(names)
            assignments = [
                Body(
                    member_id=name,
                    assignment=json.dumps(list(range(index, PARTITIONS, len(names)))).encode(),
                )
                for index, name in enumerate(names)
            ]
        synced = await self._ask(
            "sync_group",
            3,
            JOIN_S,
            member_id=self._member_id,
            group_instance_id=None,
            generation_id=self._generation,
            assignments=assignments,
        )
        self._check(synced)
        return tuple(json.loads(synced["assignment"]))

    async def _fetched(self, partitions: tuple[int, ...]) -> dict[int, int]:
        while True:
            floor = dict(self._oracle.acknowledged)
            wanted = [Body(group_id=GROUP, topics=None)]
            answer = await self._ask("offset_fetch", 8, REQUEST_S, groups=wanted)
            if answer is None:
                continue
            [group] = answer["groups"]
            if group["error_code"] is not ErrorCode.none:
                self._coordinator = None
                await asyncio.sleep(RETRY_S)
                continue
            offsets = self._told(group, floor)
            return {each: offsets.get(each, 0) for each in partitions}

    async def _look(self) -> None:
        """Ask any gateway what the group has committed, as a client does whose metadata is old."""
        up = [each for each in self._gateways if each.process.host.up]
        floor = dict(self._oracle.acknowledged)
        request = Body(version=8, body=Body(groups=[Body(group_id=GROUP, topics=None)]))

        async def ask(gateway: RegisteredGateway) -> Any:
            return (
                None
                if gateway.groups is None
                else await gateway.groups.offset_fetch(request, gateway)
            )

        answer = await self._call(self._random.choice(up), ask, REQUEST_S) if up else None
        if answer is not None and answer["groups"][0]["error_code"] is ErrorCode.none:
            self._told(answer["groups"][0], floor)

    def _told(self, group: Mapping[str, Any], floor: Mapping[int, int]) -> dict[int, int]:
        offsets = {
            each["partition_index"]: each["committed_offset"]
            for topic in group["topics"]
            for each in topic["partitions"]
        }
        self._oracle.fetched(self.process.name, offsets, floor)
        self.process.mark("offsets_fetched")
        return offsets

    async def _beat(self) -> None:
        beaten = await self._ask(
            "heartbeat",
            3,
            REQUEST_S,
            member_id=self._member_id,
            group_instance_id=None,
            generation_id=self._generation,
        )
        if beaten is not None:
            self._check(beaten)

    async def _commit(self, positions: dict[int, int]) -> None:
        for partition in positions:
            positions[partition] += self._random.randint(0, 3)
        offsets = dict(positions)
        committed = await self._ask(
            "offset_commit",
            7,
            REQUEST_S,
            member_id=self._member_id,
            group_instance_id=None,
            generation_id_or_member_epoch=self._generation,
            topics=[
                Body(
                    name=TOPIC,
                    partitions=[
                        Body(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=-1,
                            committed_metadata=None,
                        )
                        for partition, offset in offsets.items()
                    ],
                )
            ],
        )
        if committed is None or not offsets:
            return
        codes = {each["error_code"] for each in committed["topics"][0]["partitions"]}
        self._check({"error_code": next(iter(codes))})
        self._oracle.committed(offsets)
        self.committed_at = self.process.world.scheduler.now
        self.process.note(f"has committed {offsets}")
        self.process.mark("offsets_committed")

    def _check(self, answer: Mapping[str, Any] | None) -> None:
        """Raise `Rejoin` if there is no answer, or one that is an error."""
        code = None if answer is None else answer["error_code"]
        if code is ErrorCode.none:
            return
        self.process.mark(f"group_{'silent' if code is None else code.name}")
        if code is ErrorCode.unknown_member_id:
            self._member_id = ""
        if code not in {ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation}:
            self._coordinator = None
        raise Rejoin

    # Requests.

    async def _ask(self, api: str, version: int, timeout_s: float, **fields: Any) -> Any:
        """Return the answer of whoever coordinates the group; None: there is none in time."""
        coordinator = await self._found()
        request = Body(version=version, body=Body(group_id=GROUP, **fields))

        async def ask(gateway: RegisteredGateway) -> Any:
            if gateway.groups is None:
                return None
            return await getattr(gateway.groups, api)(request, gateway)

        answer = await self._call(coordinator, ask, timeout_s)
        if answer is None:
            self._coordinator = None
        return answer

    async def _found(self) -> RegisteredGateway:
        """Return the gateway that coordinates the group, as some gateway says."""
        while self._coordinator is None:
            up = [each for each in self._gateways if each.process.host.up]
            if up:
                port = await self._call(self._random.choice(up), _leader_of_group, REQUEST_S)
                named = [each for each in up if each.port == port]
                self._coordinator = named[-1] if named else None
            if self._coordinator is None:
                await asyncio.sleep(RETRY_S)
        return self._coordinator

    async def _call(
        self,
        gateway: RegisteredGateway,
        work: Callable[[RegisteredGateway], Coroutine[Any, Any, Any]],
        timeout_s: float,
    ) -> Any:
        """Do *work* in the process of *gateway*; return its result, or None."""
        loop, network = self.process.loop, self.process.world.network
        answer: asyncio.Future[Any] = loop.create_future()
        arrived: list[int] = []

        def handle(connection: int, reply: Callable[[tuple[Any]], None]) -> None:
            if arrived:
                return
            arrived.append(connection)

            def begin() -> None:
                if answer.done():  # the client has closed the connection; no request comes twice
                    return
                gateway.process.loop.create_task(work(gateway)).add_done_callback(ended)

            def ended(task: "asyncio.Task[Any]") -> None:
                if not task.cancelled():
                    reply((task.result(),))

            gateway.process.loop.call_soon(begin)

        def done(outcome: tuple[Any] | None) -> None:
            loop.call_soon(settle, None if outcome is None else outcome[0])

        def settle(value: Any) -> None:
            if not answer.done():
                answer.set_result(value)

        stream: Stream[tuple[Any]] = Stream(
            network, self.process.host, gateway.process.host, timeout_s=timeout_s
        )
        stream.request(handle, done)
        return await answer


async def _leader_of_group(gateway: RegisteredGateway) -> int | None:
    """Return the port of the gateway that coordinates the group, by this one's view."""
    if gateway.membership is None:
        return None
    leader = (await gateway.membership.settled()).leader_of(offsets_log(GROUP))
    return None if leader is None else leader.port
