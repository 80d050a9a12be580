"""confluent-kafka as a client of the benchmark.

    python -m benchmarks.peers.confluent SERVERS NAME=VALUE ...

Settings are the producer's; those that begin with `topic.` are of topics that it creates, with
`consumer.` of what reads them.
"""

import sys
import time
from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.loops import LONE_MAX
from benchmarks.peers.blocking import Appending, commands
from benchmarks.peers.commands import FIRST, PATIENCE_S, Answer, serve, told

_POLL_S: Final = 0.1
_BURST: Final = 100
_CONSUMED_MAX: Final = 10_000


class _Appending:
    """One thread sends, another hands out what was acknowledged."""

    def __init__(self, producer: Any, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._ended = Event()
        self._polling = Thread(target=self._poll)
        self._polling.start()

    def append(self, record: bytes, acknowledged: Callable[[], None]) -> None:
        def delivered(error: object, _: object) -> None:
            assert error is None, error
            acknowledged()

        self._producer.produce(self._topic, record, on_delivery=delivered)

    def close(self) -> None:
        self._producer.flush()
        self._ended.set()
        self._polling.join()

    def _poll(self) -> None:
        while not self._ended.is_set():
            self._producer.poll(_POLL_S)


class Confluent:
    def __init__(self, servers: str, settings: Mapping[str, str]) -> None:
        self._where: dict[str, Any] = {"bootstrap.servers": servers}
        self._topic = _under("topic.", settings)
        self._consuming = _under("consumer.", settings)
        self._producing = {
            k: v for k, v in settings.items() if not k.startswith(("topic.", "consumer."))
        }
        self._admin = AdminClient(self._where)

    def _producer(self, name: str) -> Any:
        if name not in self._admin.list_topics(timeout=PATIENCE_S).topics:
            topic = NewTopic(name, 1, 3, config=self._topic)
            self._admin.create_topics([topic])[name].result()
        return Producer(self._where | self._producing)

    def _begun(self, name: str) -> Any:
        producer = self._producer(name)
        producer.produce(name, FIRST)
        assert not producer.flush(PATIENCE_S), "the first record was not acknowledged"
        return producer

    def open(self, name: str) -> Appending:
        return _Appending(self._begun(name), name)

    def throughput(self, name: str, size: float, seconds: float) -> Answer:
        return self._append(self._begun(name), name, int(size), seconds, sys.maxsize)

    def fill(self, name: str, size: float, count: float) -> Answer:
        return self._append(self._producer(name), name, int(size), PATIENCE_S, int(count))

    def _append(self, producer: Any, name: str, size: int, seconds: float, most: int) -> Answer:
        payload, produce = bytes(size), producer.produce
        count, began = 0, time.perf_counter()
        while count < most and time.perf_counter() < began + seconds:
            burst = min(_BURST, most - count)
            for _ in range(burst):
                try:
                    produce(name, payload)
                except BufferError:  # its queue is full
                    while not _produced(producer, name, payload):
                        pass
            count += burst
            producer.poll(0)
        left = producer.flush(PATIENCE_S)
        assert not left, f"{left} records were not acknowledged"
        return {"records": count, "seconds": time.perf_counter() - began}

    def lone(self, name: str, size: float, seconds: float) -> Answer:
        producer, payload = self._begun(name), bytes(int(size))
        times: list[float] = []
        acknowledged: list[object] = []
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end and len(times) < LONE_MAX:
            acknowledged.clear()
            producer.produce(name, payload, on_delivery=lambda *told: acknowledged.append(told))
            while not acknowledged:
                producer.poll(1.0)
            times.append(time.perf_counter() - began)
        return told(times)

    def _consumer(self, name: str, offset: int) -> Any:
        own = {"group.id": "bench", "enable.auto.commit": "false"}
        consumer = Consumer(self._where | self._consuming | own)
        consumer.assign([TopicPartition(name, 0, offset)])
        return consumer

    def tail(self, name: str, seen: Callable[[bytes], bool]) -> None:
        consumer = self._consumer(name, OFFSET_END)
        while True:
            message = consumer.poll(1.0)
            if message is not None and seen(message.value()):
                break
        consumer.close()

    def read(self, name: str, count: float) -> Answer:
        began, found = time.perf_counter(), 0
        first_s, first = 0.0, 0
        consumer = self._consumer(name, OFFSET_BEGINNING)
        while found < count:
            for message in consumer.consume(_CONSUMED_MAX, 1.0):
                message.value()
                found += 1
            if found and not first:  # librdkafka finds the leader by looks half a second apart
                first_s, first = time.perf_counter() - began, found
        took = time.perf_counter() - began
        consumer.close()
        return {"seconds": took, "first_s": first_s, "first": first}


def _under(prefix: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {k.removeprefix(prefix): v for k, v in settings.items() if k.startswith(prefix)}


def _produced(producer: Any, name: str, payload: bytes) -> bool:
    producer.poll(_POLL_S)
    try:
        producer.produce(name, payload)
    except BufferError:
        return False
    return True


if __name__ == "__main__":
    client = Confluent(sys.argv[1], dict(pair.split("=", 1) for pair in sys.argv[2:]))
    own = {name: getattr(client, name) for name in ("throughput", "fill", "lone", "read")}
    serve(own | commands(client))
