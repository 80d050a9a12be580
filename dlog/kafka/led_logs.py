"""The logs that this gateway leads: opened at the first request, closed when it leads them no more.

To open a log is to take it over: its former leader is fenced, whatever it believes. A log that was
fenced, or could not be opened, is opened again only after the view was read again and a pause that
grows, so that two gateways whose views differ do not take a log from one another for long.
"""

import asyncio
from contextlib import suppress
from typing import Final, Protocol

from kio.schema.errors import ErrorCode

from dlog.kafka.errors import KafkaRefusal, refusal_of
from dlog.kafka.followed_partition import FollowedPartition
from dlog.kafka.membership import Membership
from dlog.kafka.protocol.topics import TopicRecord
from ledger.delays import Backoff
from ledger.errors import LogError
from ledger.log_events import get_logger

PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 5.0
OPEN_MAX: Final = 20_000
"""Logs that one gateway has open."""
OPENINGS_MAX: Final = 16
"""At a time; others wait."""
_log = get_logger(__name__)


class ProduceResult(Protocol):
    @property
    def base_offset(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...


class LedPartition(Protocol):
    """One log that this gateway leads; `dlog.kafka.partition.Partition` is this.

    Its calls raise `KafkaRefusal`."""

    log: str
    failed: asyncio.Event
    """Set once it was fenced, or cannot be used any more."""

    @property
    def epoch(self) -> int: ...
    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""

    @property
    def high_watermark(self) -> int:
        """The offset after the last confirmed record."""

    async def produce(self, batches: bytes, *, acks: int) -> ProduceResult:
        """Append a batch. Its place in the log is settled before the first await."""

    async def fetch(self, offset: int, bytes_max: int) -> bytes:
        """Return whole batches from that of *offset* on, one at least; nothing at the end."""

    def movement(self, after: int) -> "asyncio.Future[None]":
        """Return what is done once the high watermark is above *after*, or the partition failed or
        was closed. The caller cancels it when it no longer waits."""

    async def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None: ...
    async def end_of_epoch(self, epoch: int) -> tuple[int, int]: ...
    async def delete_records(self, before: int) -> int: ...
    async def close(self) -> None: ...


class PartitionOpener(Protocol):
    """Opens a log, which is one of a topic: takes it over, or, to *follow* it, may leave it to the
    writer that has it."""

    async def __call__(self, log: str, topic: TopicRecord, *, follow: bool) -> LedPartition: ...


class LedLogs:
    def __init__(self, membership: Membership, open_partition: PartitionOpener) -> None:
        self._membership = membership
        self._open_partition = open_partition
        self._logs: dict[str, asyncio.Task[LedPartition]] = {}
        self._guards: dict[str, asyncio.Task[None]] = {}
        """What waits for the failure of each open log."""
        self._pauses: dict[str, tuple[Backoff, float]] = {}
        """Of logs that failed: until when they are not opened."""
        self._openings = asyncio.Semaphore(OPENINGS_MAX)
        self._closing: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self.takeovers = 0

    def __len__(self) -> int:
        return len(self._logs)

    def opened(self, log: str) -> LedPartition | None:
        """Return the log if it is open and usable."""
        opening = self._logs.get(log)
        if opening is None or not opening.done():
            return None
        if opening.cancelled() or opening.exception() is not None:
            return None
        partition = opening.result()
        return None if partition.failed.is_set() else partition

    async def partition(
        self, topic: TopicRecord, index: int, *, follow: bool = False
    ) -> LedPartition:
        """Return partition *index* of *topic*, opened if need be. *follow*: one that another writer
        has will do.

        Raises `KafkaRefusal`: NOT_LEADER_OR_FOLLOWER if another gateway leads it, POLICY_VIOLATION
        if a program does."""
        if not 0 <= index < len(topic.logs):
            sentence = f"topic {topic.name!r} has {len(topic.logs)} partitions"
            raise KafkaRefusal(ErrorCode.unknown_topic_or_partition, sentence)
        log = topic.logs[index]
        if not self._membership.leads(log):
            self.release(log)
            raise _not_leader(log)
        opened = self.opened(log)
        if opened is not None and (follow or not isinstance(opened, FollowedPartition)):
            return opened
        partition = await self._usable(log, topic, follow=follow or not topic.belongs_to_kafka)
        if isinstance(partition, FollowedPartition) and not follow:
            if not topic.belongs_to_kafka:
                await partition.check_left()  # before its consumers are disturbed
            if self.opened(log) is partition:  # else another request has released it
                self.release(log)
            partition = await self._usable(log, topic, follow=False)
        return partition

    async def _usable(self, log: str, topic: TopicRecord, *, follow: bool) -> LedPartition:
        partition = self.opened(log)
        if partition is not None:
            return partition
        opening = self._logs.get(log)
        if opening is None:
            opening = self._begin(log, topic, follow=follow)
        try:
            return await asyncio.shield(opening)
        except LogError as error:
            raise refusal_of(error) from error
        except asyncio.CancelledError:
            if opening.cancelled():  # it was released meanwhile
                raise _not_leader(log) from None
            raise

    def release(self, log: str) -> None:
        """Close *log*, if it is open, in the background."""
        opening = self._logs.pop(log, None)
        guard = self._guards.pop(log, None)
        if guard is not None:
            guard.cancel()
        if opening is not None:
            closing = self._loop.create_task(_close(opening), name=f"close {log}")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def view_changed(self) -> None:
        """Close what this gateway does not lead any more."""
        for log in tuple(self._logs):
            if not self._membership.leads(log):
                self.release(log)

    async def close(self) -> None:
        """Close all logs: what was produced is confirmed, and their next leaders have nothing to
        recover. Idempotent."""
        self._closed = True
        for log in tuple(self._logs):
            self.release(log)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _begin(self, log: str, topic: TopicRecord, *, follow: bool) -> asyncio.Task[LedPartition]:
        if self._closed or len(self._logs) >= OPEN_MAX:
            sentence = "the gateway stops" if self._closed else f"it leads {OPEN_MAX} logs already"
            raise KafkaRefusal(ErrorCode.not_leader_or_follower, sentence)
        _, until = self._pauses.get(log, (None, 0.0))
        if self._loop.time() < until:
            raise KafkaRefusal(
                ErrorCode.not_leader_or_follower,
                f"log {log!r} was lost to another gateway, or could not be opened; try again",
            )
        opening = self._loop.create_task(self._open(log, topic, follow), name=f"open {log}")
        self._logs[log] = opening
        opening.add_done_callback(lambda done: self._opened(log, done))
        return opening

    async def _open(self, log: str, topic: TopicRecord, follow: bool) -> LedPartition:  # noqa: FBT001
        async with self._openings:
            return await self._open_partition(log, topic, follow=follow)

    def _opened(self, log: str, opening: asyncio.Task[LedPartition]) -> None:
        if opening.cancelled() or opening.exception() is not None:
            if self._logs.get(log) is opening:
                del self._logs[log]
                self._pause(log)
            return
        self.takeovers += not isinstance(opening.result(), FollowedPartition)
        if self._logs.get(log) is opening:
            guard = self._guard(log, opening.result())
            self._guards[log] = self._loop.create_task(guard, name=f"guard {log}")

    def _pause(self, log: str) -> None:
        backoff, _ = self._pauses.get(log, (Backoff(PAUSE_S, PAUSE_S_MAX), 0.0))
        self._pauses[log] = backoff, self._loop.time() + backoff.next()

    async def _guard(self, log: str, partition: LedPartition) -> None:
        began = self._loop.time()
        await partition.failed.wait()
        _log.warning("kafka_partition_lost", log=log, epoch=partition.epoch)
        if self._loop.time() - began > PAUSE_S_MAX:
            self._pauses.pop(log, None)
        self._pause(log)
        self._guards.pop(log, None)
        self.release(log)
        with suppress(LogError):
            await self._membership.refresh()


async def _close(opening: asyncio.Task[LedPartition]) -> None:
    """Close what *opening* opened, or will have opened."""
    try:
        partition = await opening
    except (Exception, asyncio.CancelledError):  # noqa: BLE001 - then there is nothing to close
        return
    try:
        await partition.close()
    except (LogError, KafkaRefusal) as error:
        _log.info("kafka_partition_not_closed", error=str(error))


def _not_leader(log: str) -> KafkaRefusal:
    return KafkaRefusal(
        ErrorCode.not_leader_or_follower, f"another gateway leads log {log!r}; ask for metadata"
    )
