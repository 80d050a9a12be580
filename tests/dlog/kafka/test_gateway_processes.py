"""Gateways that are processes on bookies that are processes: stopped, killed, followed."""

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

import dlog
from dlog.admin import verify_log
from dlog.aio.maintain.verify import VerifyReport
from dlog.errors import LedByGateway
from tests import clusters
from tests.dlog.kafka.clients import CLIENTS, CONFLUENT, KafkaClient
from tests.dlog.kafka.gateway_processes import GatewayProcess, gateway_process
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 6


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with clusters.running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.uri


def records(uri: str, log: str) -> list[bytes]:
    with dlog.Log.tail(log, uri=uri, follow=False) as reader:
        return [record.value for record in reader]


@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_a_client_produces_and_consumes(uri: str, client: KafkaClient) -> None:
    topic = f"by-{client}"
    values = [b"%d" % number for number in range(200)]
    with gateway_process(uri) as gateway:
        client.produce(gateway.bootstrap, topic, values)
        found = client.consume(gateway.bootstrap, topic, 0, len(values))
        assert gateway.stop() == ""
        assert gateway.process.returncode == 0
    assert [record.value for record in found] == values
    assert records(uri, topic) == values


def test_a_gateway_that_starts_again_goes_on_where_the_one_before_ended(uri: str) -> None:
    for number in range(3):
        with gateway_process(uri) as gateway:
            CONFLUENT.produce(gateway.bootstrap, "again", [b"%d" % number])
            assert gateway.stop() == ""
    assert records(uri, "again") == [b"0", b"1", b"2"]


class Stream:
    """An idempotent producer that sends numbers to all partitions, one after the other."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.acked: dict[int, list[int]] = defaultdict(list)
        self.errors: list[object] = []
        self.sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "message.timeout.ms": round(PATIENCE_S * 4000),
            }
        )

    def send(self, count: int) -> None:
        for _ in range(count):
            number = self.sent
            self.sent += 1
            self._producer.produce(
                self.topic,
                b"%d" % number,
                partition=number % PARTITIONS,
                on_delivery=lambda error, message, number=number: self._done(error, number),
            )
            self._producer.poll(0)

    def _done(self, error: object, number: int) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acked[number % PARTITIONS].append(number)

    def until(self, acknowledged: int) -> None:
        """Wait until so many are."""

        def reached() -> bool:
            self._producer.poll(0.01)
            return self.acknowledged >= acknowledged

        wait_until(reached, f"{acknowledged} records are acknowledged", timeout_s=2 * PATIENCE_S)

    def finish(self) -> None:
        left = self._producer.flush(PATIENCE_S * 2)
        assert left == 0, f"{left} records are not acknowledged"

    @property
    def acknowledged(self) -> int:
        return sum(map(len, self.acked.values()))


def test_nothing_is_lost_or_doubled_when_a_gateway_is_killed_under_a_producer(uri: str) -> None:
    topic = "killed"
    with ExitStack() as stack:
        gateways = [stack.enter_context(gateway_process(uri)) for _ in range(3)]
        bootstrap = ",".join(gateway.bootstrap for gateway in gateways)
        create(uri, topic)
        stream = Stream(bootstrap, topic)
        stream.send(300)
        stream.until(300)
        for victim in gateways[:2]:
            before = stream.acknowledged
            stream.send(300)
            victim.kill()
            began = time.monotonic()
            counts = {partition: len(stream.acked[partition]) for partition in range(PARTITIONS)}
            stream.send(300)
            stream.until(before + 600)
            print(f"all acknowledged {time.monotonic() - began:.3f} s after the kill, of {counts}")
        stream.finish()
        gateways[2].stop()  # in order: the end of a log whose leader was killed is not certain
    assert stream.errors == []
    for partition in range(PARTITIONS):
        wanted = list(range(partition, stream.sent, PARTITIONS))
        assert stream.acked[partition] == wanted
        assert [int(value) for value in records(uri, f"{topic}-{partition}")] == wanted
        report: VerifyReport = verify_log(f"{topic}-{partition}", uri=uri)
        assert not report.faults


def create(uri: str, topic: str) -> None:
    command = [sys.executable, "-m", "dlog.cli", "kafka", "topic", "create", topic]
    subprocess.run(
        [*command, "--partitions", str(PARTITIONS), "--uri", uri],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def test_a_client_without_the_killed_gateway_finds_its_logs_at_the_others(
    uri: str, tmp_path: Path
) -> None:
    with gateway_process(uri) as survivor, gateway_process(uri) as victim:
        create(uri, "moved")
        for partition in range(PARTITIONS):
            CONFLUENT.produce(victim.bootstrap, "moved", [b"1"], partition=partition)
        victim.kill()
        for partition in range(PARTITIONS):
            CONFLUENT.produce(survivor.bootstrap, "moved", [b"2"], partition=partition)
            found = CONFLUENT.consume(survivor.bootstrap, "moved", partition, 2)
            assert [record.value for record in found] == [b"1", b"2"]


def test_a_killed_gateway_keeps_no_native_writer_out(uri: str) -> None:
    with gateway_process(uri) as gateway:
        CONFLUENT.produce(gateway.bootstrap, "left", [b"1"])
        with pytest.raises(LedByGateway):
            dlog.Log.open("left", uri=uri)
        gateway.kill()  # its session lives on: its lifeline tells
        with dlog.Log.open("left", uri=uri) as log:
            log.append(b"2")
    assert records(uri, "left") == [b"1", b"2"]


def test_passwords_that_are_set_at_the_shell_let_clients_in_until_they_are_removed(
    uri: str,
) -> None:
    def shell(*words: str, stdin: str = "") -> None:
        command = [sys.executable, "-m", "dlog.cli", *words, "--uri", uri]
        subprocess.run(command, input=stdin, text=True, check=True, capture_output=True)

    def settings(gateway: GatewayProcess, password: str) -> dict[str, str]:
        return {
            "bootstrap.servers": gateway.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": password,
        }

    def produced(gateway: GatewayProcess, password: str) -> str:
        """Return the error that a producer meets first, empty: none."""
        met: list[str] = []

        def failed(error: KafkaError) -> None:
            if error.code() != KafkaError._TRANSPORT:  # of a broker that was killed: it asks others
                met.append(error.name())

        producer = Producer({**settings(gateway, password), "error_cb": failed})
        producer.produce(
            "private", b"1", on_delivery=lambda error, _: met.append(error.name() if error else "")
        )
        wait_until(lambda: producer.poll(0.05) >= 0 and bool(met), "it is in, or it is not")
        producer.purge()
        return met[0]

    shell("kafka", "user", "add", "alice", stdin="wonderland\n")
    shell("access", "grant", "user:alice", "writer", "private")
    with (
        gateway_process(uri, "--scram", "--sasl-without-tls") as first,
        gateway_process(uri, "--scram", "--sasl-without-tls") as second,
    ):
        assert produced(first, "wonderland") == ""
        assert produced(second, "wonderland") == ""
        assert produced(first, "underground") == "_AUTHENTICATION"
        first.kill()
        assert produced(second, "wonderland") == ""
        shell("kafka", "user", "remove", "alice")
        wait_until(lambda: produced(second, "wonderland") == "_AUTHENTICATION", "it is told")
    assert records(uri, "private") == [b"1"] * len(records(uri, "private"))


def test_a_port_in_use_is_said_in_a_sentence(uri: str) -> None:
    with gateway_process(uri) as gateway:
        refused = subprocess.run(
            [sys.executable, "-m", "dlog.cli", "kafka", "start", "--listen", gateway.bootstrap],
            env={**os.environ, "DLOG_URI": uri},
            capture_output=True,
            text=True,
            check=False,
        )
    assert refused.returncode == 1
    assert "another process listens there" in refused.stderr
    assert "Traceback" not in refused.stderr
