"""Bugs of gateways: who leads, who is dead, and what a coordinator that was replaced says."""

import asyncio

from dlog.kafka.led_logs import LedLogs, LedPartition
from dlog.kafka.membership import Membership
from dlog.kafka.offsets_log import OffsetsLog
from dlog.kafka.partition import Partition
from leader import lifeline
from tests.simulation.mutations.mutation import Patch, mutation

_COORDINATOR = "tests/dlog/kafka/test_coordinator.py"
_MEMBERSHIP = "tests/dlog/kafka/test_membership.py"


@mutation(
    "133",
    gateways=True,
    drawn=False,
    test=f"{_COORDINATOR}::test_a_coordinator_that_was_replaced_unnoticed_tells_no_old_offsets",
)
def tells_offsets_without_asking_who_leads(patch: Patch) -> None:
    async def check_leads(self: OffsetsLog) -> None:
        self._check()

    patch.set(OffsetsLog, "_check_leads", check_leads)


@mutation("126", gateways=True)
def takes_a_silent_gateway_for_dead(patch: Patch) -> None:
    async def has_died(*_: object, **__: object) -> bool:
        await asyncio.sleep(1.0)
        return True

    patch.set(lifeline, "has_died", has_died)


@mutation(
    "126",
    gateways=True,
    test=f"{_MEMBERSHIP}::test_a_gateway_whose_node_was_deleted_registers_again",
)
def registers_once(patch: Patch) -> None:
    honest = Membership._register

    async def register(self: Membership) -> None:
        if self._running is None:
            await honest(self)

    patch.set(Membership, "_register", register)


@mutation("126", gateways=True)
def leads_every_log(patch: Patch) -> None:
    """Gateways take the logs from each other without end."""
    patch.set(Membership, "leads", lambda self, _log: self.is_member)


@mutation(
    "126",
    gateways=True,
    test="tests/dlog/kafka/test_led_logs.py::test_a_log_that_was_fenced_is_opened_again"
    "_after_a_pause",
)
def keeps_a_log_that_it_lost(patch: Patch) -> None:
    async def guard(_self: LedLogs, _log: str, _partition: LedPartition) -> None:
        return None

    patch.set(LedLogs, "_guard", guard)


@mutation(
    "125",
    gateways=True,
    test="tests/dlog/kafka/test_partition.py"
    "::test_what_follows_a_batch_that_is_refused_as_the_log_closes_is_no_gap",
)
def finds_gaps_in_a_log_that_it_closes(patch: Patch) -> None:
    patch.set(Partition, "_is_over", property(lambda self: self.failed.is_set()))
