"""A simulated process of a gateway: it registers, leads logs by the rule, coordinates groups."""

import asyncio
from typing import Final
from uuid import UUID

from dlog.kafka.coordinator import GroupCoordinator
from dlog.kafka.errors import KafkaRefusal
from dlog.kafka.group_requests import GroupRequests
from dlog.kafka.led_logs import LedLogs, LedPartition
from dlog.kafka.membership import Membership
from dlog.kafka.partition import Partition
from dlog.kafka.protocol.topics import TopicRecord
from ledger.errors import LogError
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import LogProfile
from tests.simulation.partitions.gateway import Gateway
from tests.simulation.partitions.oracle import PartitionOracle, Producer

REGISTER_AGAIN_S: Final = 0.5
INITIAL_DELAY_MS: Final = 20
LATE: Final = 0.7
"""How probably a log that was closed is asked once more."""


class RegisteredGateway(Gateway):
    """Asks itself for the log as its clients do, whether its view has it lead or not."""

    client_id, host, identity = "member", "10.0.0.1", ""

    def __init__(
        self,
        process: Process,
        port: int,
        log: str,
        profile: LogProfile,
        oracle: PartitionOracle,
        producers: list[Producer],
    ) -> None:
        """*port*: one that starts again has that of before, and leads the same logs."""
        super().__init__(process, log, profile, oracle, producers)
        self.port = port
        self.membership: Membership | None = None
        self.led: LedLogs | None = None
        self.groups: GroupRequests | None = None
        self._coordinator: GroupCoordinator | None = None
        self._topic = TopicRecord(name=log, id=UUID(int=1), logs=(log,), settings={})

    async def run(self) -> None:
        await self._register()
        while True:
            await asyncio.sleep(self._random.choice(self._profile.thinks_s) * self._random.random())
            await self._lead()

    async def _register(self) -> None:
        while self.membership is None:
            membership = Membership(
                self.process.store,
                host=self.process.sockets.address,
                port=self.port,
                changed=self._changed,
            )
            self.led = LedLogs(membership, self._open)
            try:
                await membership.start()
            except LogError as error:
                self.process.note(f"is not registered: {error}")
                await asyncio.sleep(REGISTER_AGAIN_S)
            else:
                self.membership = membership
        self._coordinator = GroupCoordinator(
            self.process.ledgers,
            leads=self.membership.leads,
            log_of=lambda *_: None,
            owner=self.process.name,
            initial_delay_ms=INITIAL_DELAY_MS,
            mirror_s=1e6,
        )
        self.groups = GroupRequests(self._coordinator, self)
        self.process.mark("gateway_registered")

    def may_join(self, _identity: str) -> bool:
        return True

    def may_read(self, _identity: str, _topic: str, _partition: int) -> bool:
        return True

    def _changed(self) -> None:
        if self.membership is None:
            return
        self.process.note(f"sees {[each.address for each in self.membership.view.gateways]}")
        assert self.led is not None
        self.led.view_changed()
        if self._coordinator is not None:
            self._coordinator.view_changed()

    async def _open(self, log: str, topic: TopicRecord, *, follow: bool) -> LedPartition:
        assert topic is self._topic
        assert not follow
        self.opening = True
        self._asked = self.process.world.scheduler.steps
        try:
            partition = await Partition.open(log, self.process.ledgers, owner=self.process.name)
        except LogError as error:
            self._failed(error)
            raise
        finally:
            self.opening = False
        self._opened(partition)
        return partition

    async def _lead(self) -> None:
        assert self.led is not None
        try:
            partition = await self.led.partition(self._topic, 0)
        except KafkaRefusal:
            self.process.mark("gateway_does_not_lead")
            return
        assert isinstance(partition, Partition)
        self.partition = partition
        try:
            await self._serve(partition)
        finally:
            self.partition = None

    def _leads(self, partition: Partition) -> bool:
        """Whether *partition* is asked further. Requests that got it before it is closed ask it
        afterwards."""
        assert self.led is not None
        return self.led.opened(self.log) is partition or self._random.random() < LATE

    @property
    def leads_now(self) -> bool:
        """Whether it has the log open, and can be asked."""
        return self.led is not None and self.led.opened(self.log) is not None
