"""One log that consumers read through this gateway while a native writer has it, or that is sealed.

To take a log over would fence its writer, which no consumer should do. So it is read as any reader
reads it: what is confirmed is asked of bookies, and nothing is written. The first request to
produce takes it over; what followed it fails then, and is opened again as a partition that is led.
"""

import asyncio
from contextlib import suppress
from typing import Final, Self

from kio.schema.errors import ErrorCode

from dlog.aio.port import Ledgers
from dlog.aio.read.places import start_offset
from dlog.aio.read.reader import Reader
from dlog.aio.read.tails import LogTail, TailTracker
from dlog.aio.store import ManifestNode
from dlog.kafka.errors import KafkaRefusal, refusal_of
from dlog.kafka.partition import CATCH_UP_BYTES, CATCH_UPS_MAX, CatchUp, Produced
from dlog.manifest import Manifest
from dlog.position import Timestamp
from dlog.protocol.gateway_record import GATEWAY_OWNER
from ledger.delays import Backoff
from ledger.errors import LogError
from ledger.log_events import get_logger

WAIT_S: Final = 5.0
"""How long bookies are asked at once whether there is more."""
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 5.0
_log = get_logger(__name__)


def is_for_others(manifest: Manifest) -> bool:
    """Return whether a log is followed rather than led: a program that is no gateway wrote it last,
    or nobody ever will."""
    owned = bool(manifest.owner) and not manifest.owner.startswith(GATEWAY_OWNER)
    return manifest.sealed or owned


class FollowedPartition:
    """Made by `open`; `dlog.kafka.led_logs.LedPartition`, of which nothing can be produced."""

    def __init__(self, ledgers: Ledgers, manifest: Manifest, tracker: TailTracker) -> None:
        self.epoch = manifest.epoch
        self.failed = asyncio.Event()
        self._ledgers, self._manifest, self._tracker = ledgers, manifest, tracker
        self._tail: LogTail | None = None
        self._movements: set[tuple[int, asyncio.Future[None]]] = set()
        self._reading: dict[int, CatchUp] = {}
        """By the offset that is read next, the one used last at the end."""
        self._following: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, log: str, ledgers: Ledgers) -> Self:
        """Raises what reading a log raises."""
        manifest, _ = await ManifestNode(ledgers.store, log).read()
        tracker = TailTracker(ledgers, log)
        tracker.follow(manifest.incarnation)
        followed = cls(ledgers, manifest, tracker)
        try:
            followed._tail = await tracker.poll()
        except BaseException:
            await tracker.close()
            raise
        followed._following = asyncio.create_task(followed._follow(), name=f"follow {log}")
        return followed

    @property
    def _end(self) -> LogTail:
        assert self._tail is not None, "it was opened"
        return self._tail

    @property
    def log(self) -> str:
        return self._end.log

    @property
    def start_offset(self) -> int:
        return self._end.first_offset

    @property
    def high_watermark(self) -> int:
        return self._end.next_offset

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
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.high_watermark > after or self.failed.is_set():
            future.set_result(None)
        else:
            movement = (after, future)
            self._movements.add(movement)
            future.add_done_callback(lambda _: self._movements.discard(movement))
        return future

    async def fetch(self, offset: int, bytes_max: int) -> bytes:
        end = self.high_watermark
        if not self.start_offset <= offset <= end:
            raise KafkaRefusal(
                ErrorCode.offset_out_of_range,
                f"log {self.log!r} has the offsets {self.start_offset} to {end}, not {offset}",
            )
        if offset == end:
            return b""
        reading = self._reading.pop(offset, None) or CatchUp(
            self._reader_from(offset), offset, self.epoch
        )
        try:
            batches = await reading.read(bytes_max)
        except LogError as error:
            await reading.close()
            raise refusal_of(error) from error
        except BaseException:
            await reading.close()
            raise
        await self._keep(reading)
        return b"".join(batches)

    async def _keep(self, reading: CatchUp) -> None:
        if reading.at_end or self.failed.is_set():
            await reading.close()
            return
        replaced = self._reading.pop(reading.position, None)
        self._reading[reading.position] = reading
        if replaced is None and len(self._reading) > CATCH_UPS_MAX:
            replaced = self._reading.pop(next(iter(self._reading)))
        if replaced is not None:
            await replaced.close()

    async def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        try:
            offset = await start_offset(
                self._ledgers, self._node(), Timestamp(timestamp_ms), beyond_end="wait"
            )
        except LogError as error:
            raise refusal_of(error) from error
        return (offset, timestamp_ms) if offset < self.high_watermark else None

    async def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        return min(epoch, self.epoch), self.high_watermark

    async def close(self) -> None:
        """Idempotent."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        self._fail()
        readings, self._reading = list(self._reading.values()), {}
        for reading in readings:
            await reading.close()
        await self._tracker.close()

    def _reader_from(self, offset: int) -> Reader:
        return Reader(
            self._ledgers,
            self._node(),
            offset,
            stop=self.high_watermark,
            incarnation=self._manifest.incarnation,
            read_ahead_bytes=CATCH_UP_BYTES,
            as_stored=True,
        )

    def _node(self) -> ManifestNode:
        node = ManifestNode(self._ledgers.store, self.log)
        node.follow(self._manifest.incarnation)
        return node

    async def _follow(self) -> None:
        """Learn what is confirmed, until the log has another writer."""
        backoff = Backoff(RETRY_S, RETRY_S_MAX)
        while not self.failed.is_set():
            try:
                self._tail = await self._tracker.poll(wait_s=WAIT_S)
                manifest, _ = await self._node().read(fresh=False)
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

    def _fail(self) -> None:
        self.failed.set()
        self._move()

    def _move(self) -> None:
        end, over = self.high_watermark, self.failed.is_set()
        for movement in [each for each in self._movements if over or end > each[0]]:
            self._movements.discard(movement)
            with suppress(asyncio.InvalidStateError):
                movement[1].set_result(None)
