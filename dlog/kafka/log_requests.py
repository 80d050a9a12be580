"""Requests about records: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

Each names topics and partitions; each partition has its own result, and a refusal of one does not
touch the others.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from dlog.kafka.access import GatewayAccess
from dlog.kafka.errors import KafkaRefusal, refusal_of
from dlog.kafka.led_logs import LedLogs, LedPartition
from dlog.kafka.listener import ClientSession
from dlog.kafka.protocol.topics import TopicRecord
from dlog.kafka.quotas import ClientThrottle
from dlog.kafka.topic_store import TopicStore
from dlog.kafka.wire import Entity, Values, WireRequest
from ledger.errors import LogError
from ledger.log_events import get_logger
from ledger.security.access import Permission

FETCH_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one response, whatever the client allows; one batch may be larger."""
FETCH_WAIT_S_MAX: Final = 60.0
PRODUCE_WAIT_S_MAX: Final = 300.0
LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4
NO_TRANSACTIONS: Final = "transactions are not supported; set no transactional.id"
_ACKS: Final = (-1, 0, 1)
_NO_EPOCH: Final = -1
_NOWHERE: Final = -1
_MS: Final = 1000
_log = get_logger(__name__)

PartitionWork = Callable[[LedPartition, Any], Awaitable[Values]]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A partition of a Fetch, as far as it can be served."""

    place: dict[str, Any]
    """Its part of the response."""
    partition: LedPartition
    offset: int
    bytes_max: int


class LogRequests:
    def __init__(
        self, topics: TopicStore, led: LedLogs, access: GatewayAccess, throttle: ClientThrottle
    ) -> None:
        self._topics, self._led, self._access, self._throttle = topics, led, access, throttle
        self._producing: set[asyncio.Future[Any]] = set()
        self._loop = asyncio.get_running_loop()
        self.errors = Counter[str]()
        """Of partitions that were answered with one, by Kafka's name of it."""
        self.produced_bytes = 0
        self.fetched_bytes = 0

    async def submit_produce(
        self, request: WireRequest, session: ClientSession
    ) -> "asyncio.Future[Values | None]":
        """Begin the appends in the order of the partitions; return what awaits their end."""
        body = request.body
        acks, throttle_ms = int(body.acks), 0
        await self._admitted(session)
        pending: list[tuple[str, int, asyncio.Future[Values]]] = []
        for topic in body.topic_data:
            for part in topic.partition_data:
                work, wait_ms = await self._begin_produce(body, topic.name, part, session)
                pending.append((topic.name, part.index, work))
                throttle_ms = max(throttle_ms, wait_ms)
        session.mute(throttle_ms)
        timeout_s = min(body.timeout.total_seconds(), PRODUCE_WAIT_S_MAX)
        done = self._loop.create_task(self._produced(pending, acks, timeout_s, throttle_ms))
        self._keep(done)
        return done

    async def _begin_produce(
        self, body: Entity, name: str, part: Entity, session: ClientSession
    ) -> tuple["asyncio.Future[Values]", int]:
        """Return the end of the append, and for how long the client is throttled."""
        try:
            _check_produce(body)
            partition = await self._partition(name, part.index, session, Permission.ADD)
        except KafkaRefusal as refusal:
            done: asyncio.Future[Values] = self._loop.create_future()
            done.set_result(_refused(refusal))
            return done, 0
        records = part.records or b""
        self.produced_bytes += len(records)
        task = self._loop.create_task(self._produce(partition, records, int(body.acks)))
        self._keep(task)
        return task, self._throttle.produced(session, partition.log, len(records))

    async def _produce(self, partition: LedPartition, records: bytes, acks: int) -> Values:
        try:
            produced = await partition.produce(records, acks=acks)
        except KafkaRefusal as refusal:
            if refusal.code is ErrorCode.unknown_server_error:  # clients print no sentence
                _log.warning("kafka_produce_refused", reason=str(refusal))
            return _refused(refusal)
        except LogError as error:
            return _refused(refusal_of(error))
        except Exception as error:  # noqa: BLE001 - a bug of ours ends this batch alone
            _log.exception("kafka_produce_failed", error=repr(error))
            return _refused(KafkaRefusal(ErrorCode.unknown_server_error, "an internal error"))
        return {
            "error_code": ErrorCode.none,
            "base_offset": produced.base_offset,
            "log_start_offset": produced.log_start_offset,
        }

    async def _produced(
        self,
        pending: list[tuple[str, int, "asyncio.Future[Values]"]],
        acks: int,
        timeout_s: float,
        throttle_ms: int,
    ) -> Values | None:
        """Return the response once all of *pending* are done, or the client's time is over."""
        if acks == 0:
            results = await asyncio.gather(*(work for _, _, work in pending))
            if any(result["error_code"] is not ErrorCode.none for result in results):
                # As Kafka: a client that waits for no answer learns of an error by its connection.
                raise ConnectionAbortedError
            return None
        undone = {work for _, _, work in pending if not work.done()}
        if undone:
            await asyncio.wait(undone, timeout=timeout_s)
        results_by_topic: dict[str, list[Values]] = {}
        for name, index, work in pending:
            result = work.result() if work.done() else _TIMED_OUT
            self._count(result["error_code"])
            results_by_topic.setdefault(name, []).append({"index": index, **result})
        return {
            "throttle_time": throttle_ms,
            "responses": [
                {"name": name, "partition_responses": results}
                for name, results in results_by_topic.items()
            ],
        }

    async def fetch(self, request: WireRequest, session: ClientSession) -> Values:
        """Return records as soon as there are enough, or the client's time is over."""
        body = request.body
        wait_s = min(body.max_wait.total_seconds(), FETCH_WAIT_S_MAX)
        await self._admitted(session)
        deadline = self._loop.time() + wait_s
        most = min(int(getattr(body, "max_bytes", FETCH_BYTES_MAX)), FETCH_BYTES_MAX)
        topics, wanted = await self._wanted(body, session)
        refused = any(
            part["error_code"] is not ErrorCode.none
            for topic in topics
            for part in topic["partitions"]
        )
        while True:
            watched = [(each, each.partition.high_watermark) for each in wanted]
            size, failed = await self._fetch_once(wanted, most, deadline)
            if size >= body.min_bytes or failed or refused:
                break
            if not await _moved(watched, deadline - self._loop.time()):
                break
        self.fetched_bytes += size
        throttle_ms = max((self._draw(each, session) for each in wanted), default=0)
        session.mute(throttle_ms)
        if failed or refused:
            for topic in topics:
                for part in topic["partitions"]:
                    self._count(part["error_code"])
        return {
            "throttle_time": throttle_ms,
            "error_code": ErrorCode.none,
            "session_id": 0,
            "responses": topics,
        }

    async def _admitted(self, session: ClientSession) -> None:
        if owed_s := self._throttle.owed_s(session):
            await asyncio.sleep(owed_s)

    def _draw(self, fetched: _Wanted, session: ClientSession) -> int:
        size = len(fetched.place["records"])
        return self._throttle.fetched(session, fetched.partition.log, size) if size else 0

    async def _wanted(
        self, body: Entity, session: ClientSession
    ) -> tuple[list[dict[str, Any]], list[_Wanted]]:
        topics: list[dict[str, Any]] = []
        wanted: list[_Wanted] = []
        for topic in body.topics:
            places: list[Values] = []
            topics.append({"topic": topic.topic, "partitions": places})
            for part in topic.partitions:
                place: dict[str, Any] = {"partition_index": part.partition, **_NOT_FETCHED}
                places.append(place)
                try:
                    partition = await self._partition(
                        topic.topic, part.partition, session, Permission.READ
                    )
                    _check_epoch(part, partition)
                except KafkaRefusal as refusal:
                    place["error_code"] = refusal.code
                else:
                    bytes_max = max(int(part.partition_max_bytes), 1)
                    wanted.append(_Wanted(place, partition, int(part.fetch_offset), bytes_max))
        return topics, wanted

    async def _fetch_once(
        self, wanted: list[_Wanted], most: int, deadline: float
    ) -> tuple[int, bool]:
        """Fetch into the places of *wanted*; return how many bytes, and whether one failed.

        What bookies have takes time: after *deadline* no further one is asked, so a request takes
        no longer than it allows and one read. Clients begin with another partition next time."""
        size, failed, begun = 0, False, False
        for each in wanted:
            partition, place = each.partition, each.place
            if begun and self._loop.time() > deadline:
                most = size
            begun = True
            try:
                if partition.failed.is_set():
                    raise _lost()
                # One batch at least goes to a client, however little it allows, but only to the
                # first partition that has one.
                records = b""
                if size < most:
                    records = await partition.fetch(each.offset, min(each.bytes_max, most - size))
                    if size and size + len(records) > most:
                        records = b""
            except KafkaRefusal as refusal:
                place["error_code"], failed = refusal.code, True
                records = b""
            except LogError as error:
                place["error_code"], failed = refusal_of(error).code, True
                records = b""
            place["records"] = records
            place["high_watermark"] = place["last_stable_offset"] = partition.high_watermark
            place["log_start_offset"] = partition.start_offset
            size += len(records)
        return size, failed

    async def list_offsets(self, request: WireRequest, session: ClientSession) -> Values:
        async def work(partition: LedPartition, part: Entity) -> Values:
            _check_epoch(part, partition)
            timestamp = int(part.timestamp)
            if timestamp == LATEST:
                return {"offset": partition.high_watermark, "leader_epoch": partition.epoch}
            if timestamp in (EARLIEST, EARLIEST_LOCAL):
                return {"offset": partition.start_offset}
            if timestamp < 0:
                raise KafkaRefusal(
                    ErrorCode.unsupported_for_message_format,
                    f"no offset is kept for the special timestamp {timestamp}",
                )
            found = await partition.offset_for_time(timestamp)
            if found is None:
                return {"offset": _NOWHERE, "timestamp": _NOWHERE}
            return {"offset": found[0], "timestamp": found[1]}

        topics = []
        for topic in request.body.topics:
            parts = await self._each(
                topic.name, "partition_index", topic.partitions, session, Permission.READ, work
            )
            topics.append({"name": topic.name, "partitions": parts})
        return {"topics": topics}

    async def offset_for_leader_epoch(self, request: WireRequest, session: ClientSession) -> Values:
        async def work(partition: LedPartition, part: Entity) -> Values:
            _check_epoch(part, partition)
            epoch, end = await partition.end_of_epoch(int(part.leader_epoch))
            return {"leader_epoch": epoch, "end_offset": end}

        topics = []
        for topic in request.body.topics:
            parts = await self._each(
                topic.topic, "partition", topic.partitions, session, Permission.READ, work
            )
            topics.append({"topic": topic.topic, "partitions": parts})
        return {"topics": topics}

    async def delete_records(self, request: WireRequest, session: ClientSession) -> Values:
        async def work(partition: LedPartition, part: Entity) -> Values:
            before = int(part.offset)
            if before == LATEST:
                before = partition.high_watermark
            if not 0 <= before <= partition.high_watermark:
                sentence = f"offset {before} is beyond the end, {partition.high_watermark}"
                raise KafkaRefusal(ErrorCode.offset_out_of_range, sentence)
            return {"low_watermark": await partition.delete_records(before)}

        topics = []
        for topic in request.body.topics:
            parts = await self._each(
                topic.name, "partition_index", topic.partitions, session, Permission.ADD, work
            )
            refused = {"low_watermark": _NOWHERE}
            topics.append({"name": topic.name, "partitions": [{**refused, **p} for p in parts]})
        return {"topics": topics}

    async def _each(
        self,
        topic: str,
        index_field: str,
        parts: Iterable[Entity],
        session: ClientSession,
        action: Permission,
        work: PartitionWork,
    ) -> list[Values]:
        """Do *work* for each of *parts*; return their results."""
        results: list[Values] = []
        for part in parts:
            index = int(getattr(part, index_field))
            try:
                partition = await self._partition(topic, index, session, action)
                result = {"error_code": ErrorCode.none, **await work(partition, part)}
            except KafkaRefusal as refusal:
                result = {"error_code": refusal.code}
            except LogError as error:
                result = {"error_code": refusal_of(error).code}
            self._count(result["error_code"])
            results.append({index_field: index, **result})
        return results

    async def _partition(
        self, name: str, index: int, session: ClientSession, action: Permission
    ) -> LedPartition:
        """Return the partition, which this gateway leads. Raises `KafkaRefusal`."""
        topic = self._topics.known.find(name)
        if topic is None or not 0 <= index < len(topic.logs):
            topic = await self._find(name)
        if 0 <= index < len(topic.logs):
            self._access.check(session.identity, action, topic.logs[index])
        return await self._led.partition(topic, index, follow=action is Permission.READ)

    async def _find(self, name: str) -> TopicRecord:
        try:
            return await self._topics.find(name)
        except LogError as error:
            raise refusal_of(error) from error

    def _count(self, code: ErrorCode) -> None:
        if code is not ErrorCode.none:
            self.errors[code.name] += 1

    def _keep(self, future: "asyncio.Future[Any]") -> None:
        """Hold *future*: it ends whether its client still waits or not."""
        self._producing.add(future)
        future.add_done_callback(self._let_go)

    def _let_go(self, future: "asyncio.Future[Any]") -> None:
        self._producing.discard(future)
        if not future.cancelled():
            future.exception()  # of acks=0, whose connection may be gone


_NOT_FETCHED: Final[Mapping[str, Any]] = {
    "error_code": ErrorCode.none,
    "high_watermark": _NOWHERE,
    "last_stable_offset": _NOWHERE,
    "log_start_offset": _NOWHERE,
    "aborted_transactions": None,
    "preferred_read_replica": _NOWHERE,
    "records": b"",
}


def _refused(refusal: KafkaRefusal) -> Values:
    return {
        "error_code": refusal.code,
        "error_message": str(refusal),
        "base_offset": _NOWHERE,
        "log_start_offset": _NOWHERE,
    }


_TIMED_OUT: Final = _refused(
    KafkaRefusal(
        ErrorCode.request_timed_out,
        "the append was not confirmed in time; it may be yet, an idempotent producer tries again",
    )
)


def _check_produce(body: Entity) -> None:
    """Raises `KafkaRefusal` if nothing of the request can be appended."""
    if int(body.acks) not in _ACKS:
        raise KafkaRefusal(ErrorCode.invalid_required_acks, "acks is -1, 0 or 1")
    if getattr(body, "transactional_id", None) is not None:
        raise KafkaRefusal(ErrorCode.invalid_txn_state, NO_TRANSACTIONS)


def _check_epoch(part: Entity, partition: LedPartition) -> None:
    """Raises `KafkaRefusal` if the client knows another epoch of the leader."""
    known = int(getattr(part, "current_leader_epoch", _NO_EPOCH))
    if known in {_NO_EPOCH, partition.epoch}:
        return
    if known < partition.epoch:
        raise KafkaRefusal(ErrorCode.fenced_leader_epoch, f"the epoch is {partition.epoch} now")
    raise KafkaRefusal(ErrorCode.unknown_leader_epoch, f"the epoch is {partition.epoch} here")


def _lost() -> KafkaRefusal:
    return KafkaRefusal(ErrorCode.not_leader_or_follower, "the log was lost to another gateway")


async def _moved(watched: list[tuple[_Wanted, int]], timeout_s: float) -> bool:
    """Wait until a partition has more than it had; return False if none has in time."""
    if timeout_s <= 0:
        return False
    movements = [each.partition.movement(after) for each, after in watched]
    if not movements:
        await asyncio.sleep(timeout_s)
        return False
    try:
        done, _ = await asyncio.wait(
            movements, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        for movement in movements:
            movement.cancel()
    return bool(done)
