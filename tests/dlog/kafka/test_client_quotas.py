"""Quotas of Kafka's clients: what is drawn, for how long a connection is muted, and a real client
that is slowed down and gets everything."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

import dlog.testing
from dlog.aio.namespace_connection import connect
from dlog.kafka.gateway import Gateway, GatewayOptions, gateway
from dlog.kafka.listener import ClientSession
from dlog.kafka.quotas import MUTE_NS_MAX, ClientThrottle
from dlog.kafka.wire import METADATA
from ledger.errors import InvalidGrant, InvalidQuota
from ledger.security.access import Grant, Role
from ledger.security.documents import change_quotas
from ledger.security.quotas import BYTES_S_MIN, NS, Quota, Quotas, Subject
from tests.dlog.kafka.test_listener import Caller, listening
from tests.waiting import PATIENCE_S, until

MS_NS: Final = 1_000_000
SLOW: Final = "client:slow*"


class Clock:
    def __init__(self) -> None:
        self.now_ns = 5 * NS

    def __call__(self) -> int:
        return self.now_ns


def throttle(*quotas: Quota) -> tuple[ClientThrottle, Clock]:
    clock = Clock()
    made = ClientThrottle(clock_ns=clock)
    made.learn(Quotas(tuple(sorted(quotas))))
    return made, clock


def session(client_id: str = "", identity: str = "") -> ClientSession:
    made = ClientSession("peer", "host", identity)
    made.client_id = client_id
    return made


def quota(name: str, subject: Subject = Subject.IDENTITY, **rates: int) -> Quota:
    return Quota(subject, name, **rates)


def test_a_client_counts_as_its_identity_and_without_one_as_its_name() -> None:
    limits, _ = throttle(
        quota("user:alice", append_bytes_s=BYTES_S_MIN), quota(SLOW, append_bytes_s=BYTES_S_MIN)
    )
    over = 2 * BYTES_S_MIN
    assert limits.produced(session("slow-1"), "t", over) == 1000
    assert limits.produced(session("slow-2", "user:bob"), "t", over) == 0
    assert limits.produced(session("slow-3", "user:alice"), "t", over) == 1000
    assert limits.produced(session("fast"), "t", over) == 0
    assert limits.produced(session("slow-4"), "t", 0) == 1000, "all that fit share it"
    assert limits.fetched(session("slow-1"), "t", over) == 0


def test_of_several_quotas_the_one_counts_that_holds_up_longest() -> None:
    limits, _ = throttle(
        quota("user:alice", read_bytes_s=2 * BYTES_S_MIN, read_requests_s=100),
        quota("orders*", Subject.LOGS, read_bytes_s=BYTES_S_MIN),
    )
    alice = session(identity="user:alice")
    assert limits.fetched(alice, "others", 3 * BYTES_S_MIN) == 500
    assert limits.fetched(session(identity="user:bob"), "orders", 3 * BYTES_S_MIN) == 2000
    assert dict(limits.table.delayed_ns) == {
        "identity user:alice": 500 * MS_NS,
        "logs orders*": 2000 * MS_NS,
    }


def test_a_debt_that_is_long_is_paid_in_parts_and_never_forgiven() -> None:
    limits, clock = throttle(quota(SLOW, append_bytes_s=BYTES_S_MIN))
    slow = session("slow")
    assert limits.produced(slow, "t", 101 * BYTES_S_MIN) == MUTE_NS_MAX // MS_NS
    clock.now_ns += MUTE_NS_MAX
    assert limits.produced(slow, "t", 0) == MUTE_NS_MAX // MS_NS
    clock.now_ns += 100 * NS - MUTE_NS_MAX
    assert limits.produced(slow, "t", 0) == 0


@settings(deadline=None)
@given(
    st.integers(BYTES_S_MIN, 1 << 30),
    st.lists(st.integers(0, 1 << 26), min_size=1, max_size=20),
    st.integers(1, 4),
)
def test_who_waits_as_told_gets_the_rate_and_never_less(
    rate: int, sizes: list[int], connections: int
) -> None:
    """Of what is drawn by connections that wait, all but the last of each fit into the rate."""
    limits, clock = throttle(quota(SLOW, append_bytes_s=rate))
    free_ns = [clock.now_ns] * connections
    began_ns, drawn = clock.now_ns, 0
    for size in sizes:
        number = free_ns.index(min(free_ns))
        clock.now_ns = max(clock.now_ns, free_ns[number])
        passed_ns = clock.now_ns - began_ns
        is_bounded = connections * (1 << 26) < rate * MUTE_NS_MAX // NS  # else debts pile up
        assert not is_bounded or drawn <= rate * (passed_ns + NS) // NS + connections * (1 << 26)
        wait_ms = limits.produced(session("slow"), "t", size)
        drawn += size
        most_ns = max(0, -(-drawn * NS // rate) - NS - passed_ns)
        assert wait_ms * MS_NS <= most_ns + MS_NS, "no more than what was drawn"
        free_ns[number] = clock.now_ns + wait_ms * MS_NS


def test_a_quota_that_changes_counts_at_once_and_debts_stay() -> None:
    limits, _ = throttle(quota("user:bob", append_bytes_s=BYTES_S_MIN))
    slow = session("slow")
    assert limits.produced(slow, "t", 2 * BYTES_S_MIN) == 0
    made = quota(SLOW, append_bytes_s=BYTES_S_MIN)
    limits.learn(Quotas((made,)))
    assert limits.produced(slow, "t", 2 * BYTES_S_MIN) == 1000
    limits.learn(Quotas((quota(SLOW, append_bytes_s=2 * BYTES_S_MIN),)))
    assert limits.produced(slow, "t", 0) == 1000, "in debt for as long"
    limits.learn(Quotas())
    assert limits.produced(slow, "t", 0) == 0


def test_what_is_remembered_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlog.kafka.quotas.KNOWN_MAX", 3)
    limits, _ = throttle(quota(SLOW, append_bytes_s=BYTES_S_MIN))
    for number in range(10):
        limits.produced(session(f"slow-{number}"), "t", 0)
        assert len(limits._known) <= 3


def test_names_of_clients_are_for_quotas_alone() -> None:
    assert quota("client:*", append_bytes_s=BYTES_S_MIN).is_for("client:x", None)
    with pytest.raises(InvalidQuota):
        quota("client:", append_bytes_s=BYTES_S_MIN)
    with pytest.raises(InvalidGrant):
        Grant("client:x", Role.READER, "orders")


async def test_a_connection_that_is_muted_is_not_read_from_and_others_are() -> None:
    async with listening() as (broker, listener, call):
        muted: Caller = await call()
        other: Caller = await call()
        muted.request(METADATA, 4, 1)
        await muted.response(METADATA, 4)
        sessions = [each.session for each in listener.connections if each.session is not None]
        [first] = [each for each in sessions if each.client_id]
        first.mute(300)
        began = time.monotonic()
        muted.request(METADATA, 4, 2)
        other.request(METADATA, 4, 3)
        assert (await other.response(METADATA, 4))[0] == 3
        assert (await muted.response(METADATA, 4))[0] == 2
        # The read that waits for a request is not muted any more, the next one is.
        muted.request(METADATA, 4, 4)
        assert (await muted.response(METADATA, 4))[0] == 4
        assert time.monotonic() - began >= 0.3
        assert [each.correlation_id for each in broker.begun][-1] == 4


def test_a_new_connection_of_a_client_in_debt_waits_once() -> None:
    limits, clock = throttle(quota(SLOW, append_bytes_s=BYTES_S_MIN))
    limits.produced(session("slow"), "t", 3 * BYTES_S_MIN)
    new = session("slow")
    assert limits.owed_s(new) == 2.0
    assert limits.owed_s(new) == 0.0
    assert limits.owed_s(session("fast")) == 0.0
    clock.now_ns += NS // 2
    assert limits.owed_s(session("slow")) == 1.5
    limits.produced(session("slow"), "t", 100 * BYTES_S_MIN)
    assert limits.owed_s(session("slow")) == MUTE_NS_MAX / NS


@asynccontextmanager
async def limited(*quotas: Quota) -> AsyncIterator[Gateway]:
    async with dlog.testing.cluster() as cluster:
        ledgers = await connect(cluster.uri)
        try:
            made = Quotas(tuple(sorted(quotas)))
            await change_quotas(ledgers.store, lambda _: made, by="a test")
            async with gateway(ledgers, GatewayOptions(port=0)) as running:
                yield running
        finally:
            await ledgers.close()


COUNT: Final = 8
VALUE: Final = b"x" * (BYTES_S_MIN // 2)


def client(running: Gateway, client_id: str, throttled: list[float], **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": running.address,
        "client.id": client_id,
        "throttle_cb": lambda event: throttled.append(event.throttle_time),
        **more,
    }


def produce(running: Gateway, client_id: str) -> tuple[list[float], list[object]]:
    """Return for how long the client was told to be throttled, and the errors that it met."""
    throttled: list[float] = []
    errors: list[object] = []
    producer = Producer(client(running, client_id, throttled, **{"batch.num.messages": 1}))
    for _ in range(COUNT):
        producer.produce(client_id, VALUE, on_delivery=lambda error, _: errors.append(error))
    assert not producer.flush(PATIENCE_S)
    return throttled, errors


def consume(running: Gateway, client_id: str, topic: str) -> tuple[list[float], int]:
    """Return the same, and how many records came."""
    throttled: list[float] = []
    few = {"fetch.message.max.bytes": len(VALUE), "group.id": "g"}
    consumer = Consumer(client(running, client_id, throttled, **few))
    count = 0
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + PATIENCE_S
        while count < COUNT and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            count += message is not None and message.error() is None
        consumer.poll(0)
        return throttled, count
    finally:
        consumer.close()


@pytest.mark.slow
async def test_a_client_beyond_its_quota_is_slowed_down_and_gets_everything() -> None:
    slow = quota(SLOW, append_bytes_s=BYTES_S_MIN, read_bytes_s=BYTES_S_MIN)
    async with limited(slow) as running:
        began = time.monotonic()
        throttled, errors = await asyncio.to_thread(produce, running, "slow")
        assert errors == [None] * COUNT
        # Half a second for each record; the burst pays for two, and nobody waits after the last.
        least_s = (COUNT - 3) * len(VALUE) / BYTES_S_MIN
        assert time.monotonic() - began >= least_s
        assert max(throttled) > 0
        delayed = running.throttle.table.delayed_ns
        assert delayed[f"identity {SLOW}"] > 0
        unthrottled, errors = await asyncio.to_thread(produce, running, "fast")
        assert (unthrottled, errors) == ([], [None] * COUNT)
        began = time.monotonic()
        throttled, count = await asyncio.to_thread(consume, running, "slow-reader", "fast")
        assert count == COUNT
        assert time.monotonic() - began >= least_s
        assert max(throttled) > 0
        assert await asyncio.to_thread(consume, running, "fast", "slow") == ([], COUNT)


@pytest.mark.slow
async def test_quotas_that_change_count_from_the_next_request_on() -> None:
    async with limited() as running:
        throttled, _ = await asyncio.to_thread(produce, running, "slow")
        assert throttled == []
        made = quota(SLOW, append_bytes_s=BYTES_S_MIN)
        await change_quotas(running.ledgers.store, lambda quotas: quotas.with_(made), by="a test")
        await until(lambda: running.throttle.table.is_on)
        throttled, errors = await asyncio.to_thread(produce, running, "slow")
        assert max(throttled) > 0
        assert errors == [None] * COUNT
