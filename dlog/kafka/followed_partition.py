"""One log that consumers read through this gateway while a native writer has it, or that is sealed.

To take a log over would fence its writer, which no consumer should do. So it is read as any reader
reads it: what is confirmed is asked of bookies, and nothing is written. A request to produce takes
it over once its writer has closed it (`check_left`), or at once if it is a log of Kafka's clients;
what followed it fails then, and is opened again as a partition that is led.
"""

import asyncio
from typing import Final, Self

from kio.schema.errors import ErrorCode

from dlog.aio.maintain.survey import was_left_open
from dlog.aio.port import Ledgers
from dlog.aio.read.tails import LogTail, TailTracker, acknowledged_end
from dlog.aio.store import ManifestNode
from dlog.kafka.consumer_reads import ConsumerReads, Movements, check_offset
from dlog.kafka.errors import KafkaRefusal, refusal_of
from dlog.kafka.partition import Produced
from dlog.manifest import Manifest
from dlog.protocol.edits import check_writable
from leader import is_led
from ledger.delays import Backoff
from ledger.errors import LogError
from ledger.log_events import get_logger
from ledger.metastore.port import MetadataStore

WAIT_S: Final = 5.0
"""How long bookies are asked at once whether there is more, or where the end is."""
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 5.0
_log = get_logger(__name__)


def is_for_others(manifest: Manifest) -> bool:
    """Return whether a log is followed rather than led: a program that is no gateway wrote it last,
    or nobody ever will."""
    return manifest.sealed or (manifest.epoch > 0 and not manifest.gateway)


async def check_left(store: MetadataStore, log: str, manifest: Manifest) -> None:
    """Raise `KafkaRefusal`, POLICY_VIOLATION, while a program leads *log* or has it open: to
    produce would fence it. `dlog log append` asks the same.

    Of a log with an election the candidates say who lives. Otherwise an open segment counts as a
    living writer: nothing tells one that is idle from one that has crashed."""
    try:
        check_writable(manifest, log)
        led = await is_led(store, log)
    except LogError as error:
        raise refusal_of(error) from error
    if led or (led is None and was_left_open(manifest)):
        raise KafkaRefusal(
            ErrorCode.policy_violation,
            f"log {log!r} is written by {manifest.owner or 'a program'}, or that ended without "
            "closing it: let it close the log, or give the log to Kafka's clients with "
            f"'dlog kafka topic create TOPIC --log {log}', where TOPIC is its name",
        )


class FollowedPartition:
    """Made by `open`; `dlog.kafka.led_logs.LedPartition`, of which nothing can be produced."""

    def __init__(
        self, node: ManifestNode, ledgers: Ledgers, manifest: Manifest, tail: LogTail
    ) -> None:
        self.log = node.log
        self.epoch = manifest.epoch
        self.failed = asyncio.Event()
        self._ledgers, self._node, self._tail = ledgers, node, tail
        self._movements = Movements()
        self._reads = ConsumerReads(ledgers, self.log, manifest.incarnation, self.epoch)
        self._following: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, log: str, ledgers: Ledgers) -> Self:
        """Raises what reading a log raises."""
        node = ManifestNode(ledgers.store, log)
        manifest, _ = await node.read()
        node.follow(manifest.incarnation)
        tracker = TailTracker(ledgers, log)
        tracker.follow(manifest.incarnation)
        try:
            followed = cls(node, ledgers, manifest, await tracker.poll())
        except BaseException:
            await tracker.close()
            raise
        followed._following = asyncio.create_task(followed._follow(tracker), name=f"follow {log}")
        return followed

    @property
    def start_offset(self) -> int:
        return self._tail.first_offset

    @property
    def high_watermark(self) -> int:
        return self._tail.next_offset

    async def check_left(self) -> None:
        """Raise `KafkaRefusal` while a program has the log; see `check_left`."""
        try:
            manifest, _ = await self._node.read()
        except LogError as error:
            raise refusal_of(error) from error
        if is_for_others(manifest):
            await check_left(self._ledgers.store, self.log, manifest)

    async def produce(self, batches: bytes, *, acks: int) -> Produced:  # noqa: ARG002 - refused
        raise KafkaRefusal(
            ErrorCode.not_leader_or_follower, f"log {self.log!r} is followed here, and not led"
        )

    async def delete_records(self, before: int) -> int:  # noqa: ARG002 - refused
        raise KafkaRefusal(
            ErrorCode.policy_violation,
            f"log {self.log!r} belongs to another writer: 'dlog log truncate'",
        )

    def movement(self, after: int) -> "asyncio.Future[None]":
        return self._movements.wait(after, self.high_watermark, over=self.failed.is_set())

    async def fetch(self, offset: int, bytes_max: int) -> bytes:
        end = self.high_watermark
        if offset > end:
            await self._check_beyond(offset)
            return b""
        check_offset(self.log, offset, self.start_offset, end)
        return b"".join(await self._reads.fetch(offset, end, bytes_max)) if offset < end else b""

    async def _check_beyond(self, offset: int) -> None:
        """Raise `KafkaRefusal` if *offset* is beyond all that was acknowledged. A consumer may have
        it from another gateway, which heard earlier of what is confirmed; told that it is out of
        range it would start again."""
        incarnation = self._tail.incarnation
        try:
            end = await acknowledged_end(
                self._ledgers, self._node, timeout_s=WAIT_S, incarnation=incarnation
            )
        except LogError as error:
            raise refusal_of(error) from error
        check_offset(self.log, offset, self.start_offset, end)

    async def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        return await self._reads.offset_for_time(timestamp_ms, self.high_watermark)

    async def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        return min(epoch, self.epoch), self.high_watermark

    async def close(self) -> None:
        """Idempotent."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        self._fail()
        await self._reads.close()

    async def _follow(self, tracker: TailTracker) -> None:
        """Learn what is confirmed, until the log has another writer."""
        backoff = Backoff(RETRY_S, RETRY_S_MAX)
        try:
            while not self.failed.is_set():
                try:
                    self._tail = await tracker.poll(wait_s=WAIT_S)
                    manifest, _ = await self._node.read(fresh=False)
                except LogError as error:
                    if not error.retryable:
                        _log.warning("kafka_partition_lost", log=self.log, error=str(error))
                        self._fail()
                        return
                    await asyncio.sleep(backoff.next())
                    continue
                backoff.reset()
                self._move()
                if manifest.epoch != self.epoch:
                    self._fail()
        finally:
            await tracker.close()

    def _fail(self) -> None:
        self.failed.set()
        self._move()

    def _move(self) -> None:
        self._movements.move(self.high_watermark, over=self.failed.is_set())
