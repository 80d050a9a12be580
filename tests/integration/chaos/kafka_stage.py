"""Gateways under trouble, under producers and consumers of four families of Kafka's clients.

Idempotent producers send numbered records to each partition, groups read and commit. All that they
are told is compared with what a native reader finds in the logs, while it runs and at its end. The
writers of the stage are gateways, its readers the clients.
"""

import asyncio
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.peers.jars import PeerMissing, fetched
from benchmarks.peers.kafka import VERSION, artifacts
from dlog.aio import Log
from dlog.kafka.topic_store import TopicStore
from dlog.settings import LogSettings
from ledger.errors import LogError
from tests.integration.chaos.ensemble import free_ports
from tests.integration.chaos.faults import Maker, Making, cut, kinds, stopped
from tests.integration.chaos.faults import Stage as FaultStage
from tests.integration.chaos.kafka_history import KafkaHistory
from tests.integration.chaos.places import Places
from tests.integration.chaos.processes import Event, Member
from tests.integration.chaos.stage import FINISH_S, POLL_S, PROGRESS_S, Plan, Stage

TOPIC: Final = "orders"
PARTITIONS: Final = 4
PORT: Final = 9092
CLIENT: Final = "tests.integration.chaos.kafka_client"
JAVA: Final = "tests.integration.chaos.kafka_java"
BROKEN_GATEWAY: Final = "tests.integration.chaos.kafka_gateway"
SESSION_MS: Final = 6_000
JAVA_PER_S: Final = 30
ASK_EVERY_S: Final = 1.0
ASK_S: Final = 10.0
ORDERLY_S: Final = 30.0
USURP_S: Final = 5.0
NEVER: Final = (
    "OutOfOrder", "DuplicateSequence", "ProducerFenced", "InvalidProducerEpoch",
    "InvalidProducerId", "UnknownProducer", "Corrupt", "InvalidRecord", "FATAL",
    "OUT_OF_ORDER", "INVALID_PRODUCER", "CORRUPT", "INVALID_RECORD",
)  # fmt: skip
"""In an error of a producer: it was not allowed to repeat what was right."""
_JAVA_CLIENT: Final = """request.timeout.ms=6000
metadata.max.age.ms=2000
socket.connection.setup.timeout.ms=3000
reconnect.backoff.max.ms=500
default.api.timeout.ms=60000
"""
_JAVA_PRODUCER: Final = """enable.idempotence=true
acks=all
retries=2147483647
delivery.timeout.ms=300000
linger.ms=5
"""


class Client(NamedTuple):
    role: str
    family: str
    group: str = ""

    @property
    def name(self) -> str:
        return f"{self.family}-{self.role}"


PYTHON_CLIENTS: Final = (
    Client("producer", "confluent"),
    Client("producer", "kafka-python"),
    Client("producer", "aiokafka"),
    Client("consumer", "confluent", "mixed"),
    Client("consumer", "aiokafka", "mixed"),
    Client("consumer", "kafka-python", "plain"),
)
JAVA_CLIENTS: Final = (Client("producer", "java"), Client("consumer", "java", "plain"))


class KafkaStage(Stage):
    def __init__(
        self,
        plan: Plan,
        directory: Path,
        places: Places,
        why_not_apart: str,
        *,
        bug: str = "",
        java: bool = True,
    ) -> None:
        self.clients = PYTHON_CLIENTS + (JAVA_CLIENTS if java else ())
        plan = replace(plan, readers=len(self.clients), truncates=False)
        super().__init__(plan, directory, places, why_not_apart)
        self.kafka = KafkaHistory(PARTITIONS)
        self.kafka.broken = self.history.broken
        self.groups = sorted({client.group for client in self.clients if client.group})
        self.returns: dict[str, float] = defaultdict(float)
        """The longest time, by fault, in which a group read again once that was over."""
        self._bug = bug
        self._ports: list[int] = []
        self._logs: list[str] = []
        self._moved: dict[str, float] = defaultdict(float)
        """When a partition, or a group, got on last."""
        self._prefixes: dict[str, int] = {}
        self._ready: set[str] = set()
        """Lives of clients that end in order when they are told to."""
        self._lives = 0
        self._usurped = 0
        self._clock = time.time() - time.monotonic()
        self._told: Counter[str] = Counter()
        self._asking: dict[str, Consumer] = {}
        """By group."""
        self._one_question = asyncio.Lock()
        """Answers are compared in the order in which they were given."""

    # Processes.

    @property
    def bootstrap(self) -> str:
        return ",".join(
            f"{gateway.place.host}:{port}"
            for gateway, port in zip(self.writers, self._ports, strict=True)
        )

    async def _create_logs(self, settings: LogSettings) -> None:
        for member, client in zip(self.readers, self.clients, strict=True):
            member.name = client.name
        count = len(self.writers)
        self._ports = [PORT] * count if self._places.apart else free_ports(count)
        assert self._client is not None
        topic = await TopicStore(self._client).create(
            TOPIC, PARTITIONS, {"roll_age_s": str(settings.roll_age_s)}
        )
        self._logs = list(topic.logs)
        for number, log in enumerate(topic.logs):
            self._beside(self._tail(number, log))
        self._beside(self._ask_for_commits())

    async def start_writer(self, writer: Member) -> None:
        self._finished.discard(writer.name)
        port = self._ports[self.writers.index(writer)]
        module = ["dlog.cli"] if not self._bug else [BROKEN_GATEWAY, self._bug]
        listen = f"{writer.place.host}:{port}"
        options = ["--json", "--uri", self.cluster.uri, "--listen", listen]
        await writer.start(*module, "kafka", "start", *options)

    async def start_reader(self, reader: Member) -> None:
        client = self.clients[self.readers.index(reader)]
        self._lives += 1
        prefix = self._prefixes[reader.name] = self._lives
        name = client.group or str(prefix)
        self._forget(reader)
        if client.family == "java":
            await self._start_java(reader, client, name)
            return
        where = (self.bootstrap, TOPIC, str(PARTITIONS), name)
        await reader.start(CLIENT, client.role, client.family, *where)

    async def _start_java(self, reader: Member, client: Client, name: str) -> None:
        path = self._directory / f"{client.role}.properties"
        path.write_text(_JAVA_CLIENT + (_JAVA_PRODUCER if client.role == "producer" else ""))
        common = ["--bootstrap-server", self.bootstrap, "--topic", TOPIC]
        common += ["--command-config", str(path)]
        if client.role == "producer":
            rate = ["--throughput", str(JAVA_PER_S), "--value-prefix", name]
            await reader.start(JAVA, "VerifiableProducer", *common, *rate)
        else:
            group = ["--group-id", name, "--verbose", "--session-timeout", str(SESSION_MS)]
            group += ["--reset-policy", "earliest"]
            await reader.start(JAVA, "VerifiableConsumer", *common, *group)

    def _forget(self, consumer: Member) -> None:
        """It has no partitions any more, being another process now."""
        self.kafka.revoked(consumer.name, list(range(PARTITIONS)))

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._stack.callback(task.cancel)

    # What is said.

    def hear(self, member: Member, event: Event) -> None:
        if "bootstrap" in event:
            self.happened["starts of gateways"] += 1
            return
        name, kafka = event["name"], self.kafka
        if name == "record_data":  # Java's
            name = "records_read"
            event["records"] = [[event["partition"], event["offset"], event["value"]]]
        at = event["timestamp"] / 1000 - self._clock
        broken = len(kafka.broken)
        group = self.clients[self.readers.index(member)].group
        match name:
            case "producer_send_success":
                partition, offset = event["partition"], event["offset"]
                offset = -1 if offset is None else offset  # of a repetition
                kafka.sent(event["value"], partition, offset)
                self._tell(f"records acknowledged to {member.name}")
                now = time.monotonic()
                self.history.times.append(now)
                self._moved[f"partition {partition}"] = now
            case "producer_send_error":
                self._refused(member, event)
            case "partitions_assigned":
                kafka.assigned(member.name, _partitions(event))
                self.happened[f"assignments to {member.name}"] += 1
            case "partitions_revoked":
                kafka.revoked(member.name, _partitions(event))
            case "records_read":
                for partition, offset, value in event["records"]:
                    self._read(member, group, partition, offset, value, at)
            case "offsets_committed":
                self._commit(member, group, event)
            case "startup_complete":  # Java's say it too
                self._ready.add(member.life)
            case "shutdown_complete":
                self._finished.add(member.name)
            case _:  # what Java's tools tell besides, and errors that a client tries again after
                if "error" in event:
                    self.happened[f"{member.name}: {event['error'][:60]}"] += 1
        for sentence in kafka.broken[broken:]:
            self._broke(sentence)

    def _tell(self, what: str, count: int = 1) -> None:
        self._told[what] += count

    def _read(
        self, member: Member, group: str, partition: int, offset: int, value: str, at: float
    ) -> None:
        self.kafka.read(group, member.name, partition, offset, value, at)
        self._tell(f"records read by {member.name}")
        self._moved[f"group {group}"] = time.monotonic()

    def _commit(self, member: Member, group: str, event: Event) -> None:
        if not event["success"]:
            self.happened[f"commits refused to {member.name}"] += 1
            return
        self._tell(f"commits of {member.name}")
        for each in event["offsets"]:
            self.kafka.commit(group, each["partition"], each["offset"])

    def _refused(self, member: Member, event: Event) -> None:
        self.history.refused += 1
        error = f"{event['exception']}: {event['message']}"
        self.happened[f"{member.name} gave a record up: {error[:100]}"] += 1
        if any(word in error for word in NEVER):
            self.kafka.broken.append(f"{member.life} was refused {event['value']}: {error}")

    def _broke(self, sentence: str) -> None:
        self.note(f"BROKE A PROMISE: {sentence}")
        self._stop.set()

    # The logs themselves.

    async def _tail(self, partition: int, log: str) -> None:
        while True:
            position = len(self.kafka.logs[partition])
            try:
                async with await Log.tail(log, start=position, client=self._client) as reader:
                    async for record in reader:
                        self._found(partition, record.offset, record.value)
            except LogError as error:
                self.happened[f"native reader: {type(error).__name__}"] += 1
                if not error.retryable:
                    self._broke(f"the native reader of {log} ended: {error}")
                await asyncio.sleep(POLL_S)

    def _found(self, partition: int, offset: int, value: bytes) -> None:
        broken = len(self.kafka.broken)
        self.kafka.found(value.decode(), partition, offset)
        for sentence in self.kafka.broken[broken:]:
            self._broke(sentence)

    async def _ask_for_commits(self) -> None:
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            for group in self.groups:
                with suppress(KafkaException):
                    await self._ask_for_commits_of(group)

    async def _ask_for_commits_of(self, group: str) -> dict[int, int]:
        """As a consumer of the group does that is no member of it. Raises `KafkaException`."""
        if group not in self._asking:
            settings = {"bootstrap.servers": self.bootstrap, "log_level": 0, "group.id": group}
            self._asking[group] = Consumer(settings)
        async with self._one_question:
            since = dict(self.kafka.committed)
            offsets = await asyncio.to_thread(_committed, self._asking[group])
            broken = len(self.kafka.broken)
            now = time.monotonic()
            for partition, offset in offsets.items():
                self.kafka.stored(group, partition, offset, since, now)
        self._tell("questions for committed offsets")
        for sentence in self.kafka.broken[broken:]:
            self._broke(sentence)
        return offsets

    # Trouble.

    async def usurp(self) -> None:
        """Take a log from its gateway and append to it, as a program does that does not know."""
        assert self._client is not None
        self._usurped += 1
        log = self._logs[self._usurped % PARTITIONS]
        with suppress(LogError, TimeoutError):
            # The gateway takes it back with the next batch: one of them has to give in.
            async with asyncio.timeout(USURP_S):
                taking = Log.open(log, client=self._client, owner="usurper", take_over=True)
                async with await taking as taken:
                    self.happened["takeovers by a native writer"] += 1
                    await taken.append(f"0.{self._usurped}".encode())
                    self.happened["records of a native writer"] += 1

    async def end_gateway(self, gateway: Member) -> None:
        """End it in order."""
        self._finished.add(gateway.name)
        gateway.signal(signal.SIGTERM)
        await self._until(lambda: not gateway.running, ORDERLY_S, f"the end of {gateway.life}")
        await gateway.kill()

    def _lines(self) -> list[Coroutine[Any, Any, None]]:
        made = kinds(zookeepers=self._plan.zookeepers, cuts=self._places.apart)
        others = {
            kind: maker
            for kind, maker in made.appends.items()
            if "bookie" in kind or "ZooKeeper" in kind or kind == "take the log"
        }
        gateways = {
            "kill a gateway": _kill_gateways(1),
            "kill all gateways": _kill_gateways(len(self.writers)),
            "end a gateway": self._end_a_gateway(),
            "stop a gateway": _stop(lambda stage: stage.writers),
        }
        clients = {
            "kill a client": self._kill_client(),
            "stop a client": _stop(lambda stage: stage.readers),
        }
        if self._places.apart:
            gateways["cut a gateway off"] = _cut(lambda stage: stage.writers)
            clients["cut a client off"] = _cut(lambda stage: stage.readers)
        return [
            self._line("appends", others | gateways),
            self._line("readers", clients, rest_s=(2.0, 6.0)),
        ]

    def _end_a_gateway(self) -> Maker:
        @asynccontextmanager
        async def making(_: FaultStage, random: Random) -> AsyncIterator[str]:
            gateway = random.choice(self.writers)
            await self.end_gateway(gateway)
            yield gateway.life
            await self.start_writer(gateway)

        return making

    def _kill_client(self) -> Maker:
        @asynccontextmanager
        async def making(_: FaultStage, random: Random) -> AsyncIterator[str]:
            client = random.choice(self.readers)
            await client.kill()
            yield f"{client.name} of life {client.lives}"
            await self.start_reader(client)

        return making

    async def _acknowledged_after(self, since: float, what: str) -> float:
        """Return when every partition took records again; every group has read since."""
        partitions = [f"partition {number}" for number in range(PARTITIONS)]
        wanted = [*partitions, *(f"group {group}" for group in self.groups)]

        def late() -> list[str]:
            return [each for each in wanted if self._moved[each] <= since]

        returned = set[str]()

        def all_moved() -> bool:
            still = late()
            for group in self.groups:
                if group not in returned and f"group {group}" not in still:
                    returned.add(group)
                    waited = self._moved[f"group {group}"] - since
                    self.returns[what] = max(self.returns[what], waited)
            return not still or bool(self.kafka.broken)

        try:
            await self._until(all_moved, PROGRESS_S, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; {late()} did not move after {what}") from None
        return max((self._moved[each] for each in partitions), default=since)

    # The end.

    def _of(self, role: str) -> Iterable[Member]:
        return (m for m, c in zip(self.readers, self.clients, strict=True) if c.role == role)

    async def _finish(self) -> int:
        if self.kafka.broken:
            return 0
        self.note("the trouble is over")
        await self._acknowledged_after(time.monotonic(), "all trouble")
        await self._end_clients("producer")
        ends = [await Log.end_of(log, client=self._client) for log in self._logs]
        self.note(f"the partitions end at {ends}")

        def lacking() -> list[str]:
            read = {
                f"{group}/{number}": self.kafka.next_of(group, number)
                for group in self.groups
                for number in range(PARTITIONS)
            }
            read |= {f"log/{number}": len(log) for number, log in enumerate(self.kafka.logs)}
            return [f"{who} is at {at}" for who, at in read.items() if at < ends[int(who[-1])]]

        try:
            await self._until(lambda: not lacking(), FINISH_S, "all is read")
        except AssertionError as error:
            raise AssertionError(f"{error}: {lacking()}") from None
        await self._end_clients("consumer")
        for group in self.groups:
            stored = await self._ask_for_commits_of(group)
            if [stored.get(number) for number in range(PARTITIONS)] != ends:
                self.kafka.broken.append(f"{group} ended with {stored} committed of {ends}")
        for gateway in self.writers:
            await self.end_gateway(gateway)
        return sum(ends)

    async def _end_clients(self, role: str) -> None:
        members = list(self._of(role))
        for member in members:
            member.signal(signal.SIGCONT)

        def are_ready() -> bool:
            return all(member.life in self._ready for member in members)

        await self._until(are_ready, FINISH_S, f"the start of all {role}s")
        for member in members:
            member.signal(signal.SIGTERM)
        names = {member.name for member in members}
        try:
            await self._until(lambda: self._finished >= names, FINISH_S, f"the end of all {role}s")
        except AssertionError as error:
            raise AssertionError(f"{error}: {names - self._finished} did not") from None

    async def _check(self, _: int) -> None:
        for partition, log in enumerate(self._logs if not self.kafka.broken else ()):
            found: list[str] = []
            async with await Log.tail(log, follow=False, client=self._client) as reader:
                async for record in reader:
                    found.append(record.value.decode())  # noqa: PERF401
            if found != self.kafka.logs[partition]:
                self.kafka.broken.append(f"{log} was read anew, and differs from what was read")
        broken = self.kafka.check(self.groups) if not self.kafka.broken else self.kafka.broken
        self.note(f"{len(broken)} promises broken")
        assert not broken, f"{len(broken)} promises broken:\n" + "\n".join(broken[:20])

    def _acknowledged(self) -> str:
        found = sum(map(len, self.kafka.logs))
        count = len(self.kafka.acknowledged)
        return f"{count} records acknowledged, {found} in {PARTITIONS} logs"

    def report(self) -> None:
        super().report()
        for what, count in sorted(self._told.items()):
            print(f"  {count:6}  {what}")
        for what, longest in sorted(self.returns.items(), key=lambda pair: -pair[1]):
            print(f"{longest:6.2f} s until all groups read again, at most, after {what}")


def java_clients() -> str:
    """Return why there are none of Java's; nothing if there are."""
    try:
        fetched(artifacts(VERSION))
    except PeerMissing as error:
        return str(error)
    return ""


def _partitions(event: Event) -> list[int]:
    return [each["partition"] for each in event["partitions"]]


def _committed(consumer: Consumer) -> dict[int, int]:
    """Raises `KafkaException`."""
    wanted = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
    found = consumer.committed(wanted, timeout=ASK_S)
    return {each.partition: each.offset for each in found if each.offset >= 0}


_Choice = Callable[[FaultStage], list[Member]]


def _kill_gateways(count: int) -> Maker:
    @asynccontextmanager
    async def making(stage: FaultStage, random: Random) -> AsyncIterator[str]:
        gateways = random.sample(stage.writers, count)
        for gateway in gateways:
            await gateway.kill()
        yield ", ".join(gateway.life for gateway in gateways)
        for gateway in gateways:
            await stage.start_writer(gateway)

    return making


def _stop(members: _Choice) -> Maker:
    def making(stage: FaultStage, random: Random) -> Making:
        member = random.choice(members(stage))
        return stopped(member.signal, member.name)

    return making


def _cut(members: _Choice) -> Maker:
    def making(stage: FaultStage, random: Random) -> Making:
        member = random.choice(members(stage))
        return cut(member.place, member.name)

    return making
