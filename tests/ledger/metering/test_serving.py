"""/metrics, /healthz and /readyz over HTTP, also for those who ask slowly, wrongly or too often."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from ledger.errors import MetricsNotServed
from ledger.metering.declaration import Exposed, MetricRegistry, Readiness
from ledger.metering.http_server import MetricsServer, ServingLimits, address_of, served
from tests.waiting import PATIENCE_S, ended, eventually

HOST = "127.0.0.1"
NEVER_S = 3600.0
PATIENT = ServingLimits(
    request_s=NEVER_S, answer_s=NEVER_S, linger_s=0.0, page_s=0.0, alive_s=PATIENCE_S
)


@contextmanager
def serving(exposed: Exposed | None = None, limits: ServingLimits = PATIENT) -> Iterator[int]:
    """Serve; yield the port."""
    server = MetricsServer(exposed or Exposed(), limits)
    try:
        yield server.start(HOST, 0)
    finally:
        server.close()


async def sent(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Send *request*; return head and body of what comes until the connection is closed."""

    async def send() -> bytes:
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()

    head, _, body = (await ended(send())).partition(b"\r\n\r\n")
    return head, body


async def get(port: int, path: str) -> tuple[int, bytes]:
    head, body = await sent(port, f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    return int(head.split(b" ")[1]), body


async def test_metrics_are_served_in_the_format_of_prometheus() -> None:
    declared: MetricRegistry[list[int]] = MetricRegistry()
    declared.counter("dlog_things_total", "Things that were counted.", lambda things: things[0])
    exposed, things = Exposed(), [7]
    exposed.add(declared, things)
    with serving(exposed) as port:
        head, body = await sent(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Type: text/plain; version=0.0.4" in head
        assert b"# HELP dlog_things_total Things that were counted.\n" in body
        assert b"# TYPE dlog_things_total counter\ndlog_things_total 7.0\n" in body
        assert b"process_resident_memory_bytes" in body
        things[0] = 8
        assert b"\ndlog_things_total 8.0\n" in (await get(port, "/metrics?x=1"))[1]


async def test_who_asks_all_the_time_gets_the_page_that_was_made_last() -> None:
    declared: MetricRegistry[list[int]] = MetricRegistry()

    def read(asked: list[int]) -> int:
        asked[0] += 1
        return asked[0]

    declared.gauge("dlog_asked", "How often it was read.", read)
    exposed, asked = Exposed(), [0]
    exposed.add(declared, asked)
    limits = ServingLimits(page_s=NEVER_S, alive_s=PATIENCE_S)
    with serving(exposed, limits) as port:
        for _ in range(5):
            assert b"\ndlog_asked 1.0\n" in (await get(port, "/metrics"))[1]
    assert asked == [1]


async def test_it_is_ready_when_the_process_says_so_and_says_why() -> None:
    exposed = Exposed()
    with serving(exposed) as port:
        status, body = await get(port, "/readyz")
        assert (status, json.loads(body)["state"]) == (503, "starting")
        exposed.readiness = lambda: Readiness(ready=True, state="read-only", reasons=("disk full",))
        status, body = await get(port, "/readyz")
        assert status == 200
        assert json.loads(body) == {"ready": True, "state": "read-only", "reasons": ["disk full"]}


async def test_it_is_alive_while_the_loop_of_the_process_turns() -> None:
    with serving() as port:
        assert await get(port, "/healthz") == (200, b"alive\n")


async def test_it_is_not_alive_when_the_loop_of_the_process_hangs() -> None:
    """Asked from a thread, as the loop itself hangs in `join` meanwhile."""
    heard: list[bytes] = []

    def ask(port: int) -> None:
        with socket.create_connection((HOST, port), timeout=PATIENCE_S) as asking:
            asking.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            while part := asking.recv(4096):
                heard.append(part)

    limits = ServingLimits(alive_s=0.05, linger_s=0.0)
    with serving(limits=limits) as port:
        asking = threading.Thread(target=ask, args=(port,))
        asking.start()
        asking.join(PATIENCE_S)
    assert b"".join(heard).startswith(b"HTTP/1.1 503 ")
    assert b"the event loop has not turned for 0.05 s" in b"".join(heard)


async def test_head_gets_the_same_head_and_no_body() -> None:
    with serving() as port:
        head, body = await sent(port, b"HEAD /healthz HTTP/1.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert b"Content-Length: 6" in head
        assert body == b""


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", 404, b"there are /metrics, /healthz and /readyz\n"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405, b"only GET and HEAD\n"),
        (b"GET /metrics\r\n\r\n", 400, b"not a request of HTTP/1.1\n"),
        (b"\x16\x03\x01\x02\r\n\r\n", 400, b"not a request of HTTP/1.1\n"),
        (b"PRI * HTTP/2.0\r\n\r\n", 400, b"not a request of HTTP/1.1\n"),
    ],
)
async def test_other_requests_are_refused_in_a_sentence(
    request_: bytes, status: int, words: bytes
) -> None:
    with serving() as port:
        head, body = await sent(port, request_)
        assert int(head.split(b" ")[1]) == status
        assert body == words
        assert (await get(port, "/healthz"))[0] == 200


async def test_a_request_without_an_end_is_refused() -> None:
    limits = ServingLimits(request_s=NEVER_S, request_bytes_max=1024, linger_s=NEVER_S)
    with serving(limits=limits) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 1000)
        head = await ended(reader.readuntil(b"\r\n"))
        assert head.startswith(b"HTTP/1.1 431 ")
        writer.close()


async def test_who_sends_nothing_is_hung_up_on() -> None:
    with serving(limits=ServingLimits(request_s=0.02)) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET /met")
        with suppress(ConnectionResetError):
            assert await ended(reader.read()) == b""
        writer.close()


async def test_who_does_not_take_the_answer_is_hung_up_on() -> None:
    declared: MetricRegistry[None] = MetricRegistry()
    much = {f"{'x' * 100}{number}": number for number in range(60_000)}
    declared.gauge("dlog_much", "More than sockets hold.", lambda _: much, "which")
    exposed = Exposed()
    exposed.add(declared)
    limits = ServingLimits(answer_s=0.05, connections_max=1, page_s=NEVER_S, alive_s=PATIENCE_S)
    with serving(exposed, limits) as port:
        taking = socket.create_connection((HOST, port))
        taking.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        await eventually(lambda: answers(port), "the only connection is free again")
        taking.close()


async def answers(port: int) -> bool:
    try:
        return (await get(port, "/healthz"))[0] == 200
    except (OSError, IndexError):
        return False


async def test_one_connection_more_than_allowed_ends_the_oldest() -> None:
    limits = ServingLimits(connections_max=3, request_s=NEVER_S, alive_s=PATIENCE_S)
    with serving(limits=limits) as port:
        held = []
        for _ in range(3):
            held.append(await asyncio.open_connection(HOST, port))
            held[-1][1].write(b"GET /healthz")
        assert await answers(port)
        oldest, *others = (reader for reader, _ in held)
        with suppress(ConnectionResetError):
            assert await ended(oldest.read()) == b""
        assert not any(reader.at_eof() for reader in others)
        for _, writer in held:
            writer.close()


async def test_a_port_that_is_taken_is_refused_with_what_to_do() -> None:
    with serving() as port, pytest.raises(MetricsNotServed, match="another --metrics-port"):
        MetricsServer(Exposed()).start(HOST, port)


async def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(MetricsNotServed, match=r"on 192\.0\.2\.1:0"):
        MetricsServer(Exposed()).start("192.0.2.1", 0)


async def test_nothing_is_served_without_a_port_and_the_port_is_told() -> None:
    told: list[str] = []
    with served(Exposed(), HOST, None, told.append):
        assert told == []
    with served(Exposed(), HOST, 0, told.append):
        port = int(told[0].rpartition(":")[2].partition("/")[0])
        assert told == [f"metrics are at {address_of(HOST, port)}"]
        assert await get(port, "/healthz") == (200, b"alive\n")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(HOST, port)


def test_an_address_of_ip_6_has_brackets() -> None:
    assert address_of("::1", 9000) == "http://[::1]:9000/metrics"
