"""Groups of real clients while the gateway that coordinates them is killed."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests import clusters
from tests.dlog.kafka.clients import CONFLUENT
from tests.dlog.kafka.gateway_processes import GatewayProcess, gateway_process
from tests.dlog.kafka.group_clients import (
    AioConsumer,
    ConfluentConsumer,
    GroupConsumer,
    GroupKind,
    PythonConsumer,
    share,
    wait,
)
from tests.waiting import PATIENCE_S

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    # Clients leave sockets to gateways that are gone to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PARTITIONS = 4
EACH = 20
ASK_S = 5.0


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with clusters.running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.uri


def coordinator(admin: AdminClient, group: str, gateways: list[GatewayProcess]) -> GatewayProcess:
    [described] = admin.describe_consumer_groups([group]).values()
    node = described.result(PATIENCE_S).coordinator
    return next(each for each in gateways if each.bootstrap.endswith(f":{node.port}"))


def committed(bootstrap: str, group: str) -> dict[int, int]:
    """Ask anew each time: the client remembers a coordinator that is dead, and waits for it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [listed] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    try:
        found = listed.result(ASK_S).topic_partitions
    except (KafkaException, TimeoutError):
        return {}
    return {each.partition: each.offset for each in found}


@pytest.mark.parametrize("kind", [ConfluentConsumer, PythonConsumer, AioConsumer])
def test_a_group_goes_on_when_its_coordinator_is_killed(uri: str, kind: GroupKind) -> None:
    topic = group = f"of-{kind.__name__}"
    with ExitStack() as stack:
        gateways = [stack.enter_context(gateway_process(uri)) for _ in range(3)]
        bootstrap = ",".join(gateway.bootstrap for gateway in gateways)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        [created] = admin.create_topics([NewTopic(topic, PARTITIONS)]).values()
        created.result(PATIENCE_S)
        consumers = [kind(bootstrap, topic, group, "range") for _ in range(2)]
        wait(lambda: share(consumers, PARTITIONS), "two share the partitions")
        _produce(bootstrap, topic)
        wait(lambda: _seen(consumers) == _everything(1), "all is consumed")
        before: dict[int, int] = {}

        def all_committed() -> bool:
            before.update(committed(bootstrap, group))
            return len(before) == PARTITIONS

        wait(all_committed, "all is committed")
        victim = coordinator(admin, group, gateways)
        victim.kill()
        began = time.monotonic()
        gateways.remove(victim)
        _produce(bootstrap, topic)
        wait(lambda: _seen(consumers) == _everything(2), "all is consumed after the kill")
        everything = dict.fromkeys(range(PARTITIONS), 2 * EACH)
        wait(lambda: committed(bootstrap, group) == everything, "all is committed after the kill")
        print(f"{kind.__name__}: consumed and committed {time.monotonic() - began:.2f} s later")
        wait(lambda: share(consumers, PARTITIONS), "they share the partitions still")
        for consumer in consumers:
            consumer.stop()
        assert all(before[each] <= everything[each] for each in before)
        again = kind(bootstrap, topic, group, "range")
        wait(lambda: share([again], PARTITIONS), "another one has all partitions")
        _produce(bootstrap, topic)
        new = _everything(3) - _everything(2)
        wait(lambda: new <= _seen([again]), "it consumes what is new")
        assert _seen([again]) == new, "nothing that was committed comes again"
        again.stop()


def _produce(bootstrap: str, topic: str) -> None:
    for partition in range(PARTITIONS):
        values = [b"%d" % number for number in range(EACH)]
        CONFLUENT.produce(bootstrap, topic, values, partition=partition)


def _everything(rounds: int) -> set[tuple[int, int]]:
    return {
        (partition, offset) for partition in range(PARTITIONS) for offset in range(EACH * rounds)
    }


def _seen(consumers: list[GroupConsumer]) -> set[tuple[int, int]]:
    return {record for each in consumers for record in each.seen}
