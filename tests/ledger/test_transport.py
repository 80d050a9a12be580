"""The transport against good, silent, dying and refusing servers."""

import asyncio
import gc
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import pytest

from bookie.server.read_connection import ReadConnection
from ledger.ids import BookieId, BookieIdentity
from ledger.requests import AddRun, HeldAnswer, HeldQuery, LacQuery, ReadQuery, Status
from ledger.transport import client_connection
from ledger.transport.client_connection import ClientConnection
from ledger.transport.framing import FrameKind
from ledger.transport.handshake import Hello, Welcome, encode_answer
from ledger.transport.messages import batch_message
from ledger.transport.session import AT_ONCE_BYTES_MAX
from ledger.transport.sockets import SocketTransport, connecting_s
from tests.bookie.memory_storage import MemoryStorage
from tests.bookie.runs import KEY, run_of
from tests.ledger.serving import (
    BOOKIE,
    OURS,
    Answers,
    Bookie,
    add,
    add_until_ok,
    refused_address,
    serving,
    silent_server,
    transport_to,
    until,
)
from tests.waiting import PATIENCE_S, eventually


async def test_what_was_added_is_read_back_byte_for_byte() -> None:
    run = run_of(0, 1, 2, lac=-1, payload=b"x" * 1000)
    async with serving() as bookie, transport_to(bookie.address) as transport:
        assert await add(transport, run) is Status.OK
        answer = await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 2))
        assert answer.status is Status.OK
        assert list(answer.entries) == [0, 1, 2]
        assert answer.frames == run.frames
        lac = await transport.read_lac(BOOKIE, LacQuery(7, KEY))
        assert (lac.status, lac.last_entry) == (Status.OK, 2)
        info = await transport.info(BOOKIE)
        assert info is not None
        assert (info.bookie, info.incarnation) == (BOOKIE, "start 1")


async def test_runs_are_answered_once_each_and_in_order() -> None:
    count = 2000
    answers = Answers()
    async with (
        serving() as bookie,
        transport_to(bookie.address, batch_bytes_max=4096) as transport,
    ):
        for number in range(count):
            transport.add(BOOKIE, run_of(number), answers.expect(str(number)))
        assert answers.got == [], "never from inside the call"
        await answers.wait(count)
        assert list(bookie.storage.ledgers[7]) == list(range(count))
    assert answers.got == [(str(number), Status.OK) for number in range(count)]


async def test_runs_that_queue_behind_a_commit_share_one_group() -> None:
    storage = MemoryStorage()
    storage.gate.clear()
    answers = Answers()
    async with serving(storage) as bookie, transport_to(bookie.address) as transport:
        for number in range(500):
            transport.add(BOOKIE, run_of(number), answers.expect(str(number)))
        await until(lambda: len(storage.ledgers.get(7, ())) == 500)
        assert answers.got == []
        storage.gate.set()
        await answers.wait(500)
        assert storage.commits <= 2


async def test_statuses_reach_the_runs_they_belong_to() -> None:
    answers = Answers()
    async with serving() as bookie, transport_to(bookie.address) as transport:
        transport.add(BOOKIE, run_of(0), answers.expect("good"))
        transport.add(BOOKIE, run_of(0, key=b"wrong"), answers.expect("bad"))
        transport.add(BOOKIE, run_of(0, ledger_id=8), answers.expect("other"))
        await answers.wait(3)
    assert answers.got == [
        ("good", Status.OK),
        ("bad", Status.WRONG_KEY),
        ("other", Status.OK),
    ]


async def test_nobody_listening_is_unreachable_at_once() -> None:
    async with transport_to(refused_address(), timeout_s=2 * PATIENCE_S) as transport:
        started = time.monotonic()
        assert await add(transport, run_of(0)) is Status.UNREACHABLE
        answer = await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0))
        assert answer.status is Status.UNREACHABLE
        lac = await transport.read_lac(BOOKIE, LacQuery(7, KEY))
        assert lac.status is Status.UNREACHABLE
        assert await transport.info(BOOKIE) is None
        assert time.monotonic() - started < PATIENCE_S


async def test_attempts_to_reach_a_bookie_that_is_away_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: WeakSet[ClientConnection] = WeakSet()
    made = 0

    class Counted(ClientConnection):
        def made(self) -> None:
            raise AssertionError("nobody is there")

        def __init__(self, *given: Any, **named: Any) -> None:
            nonlocal made
            made += 1
            attempts.add(self)
            super().__init__(*given, **named)

    monkeypatch.setattr(client_connection, "ClientConnection", Counted)
    monkeypatch.setattr(client_connection, "RECONNECT_S_MAX", 0.0)
    monkeypatch.setattr(client_connection, "_BACKOFF_S_MIN", 0.0)
    async with transport_to(refused_address()) as transport:
        for _ in range(20):
            assert await transport.info(BOOKIE) is None
        gc.collect()
        assert made == 20
        assert len(attempts) <= 1


async def test_a_bookie_without_an_address_is_unreachable() -> None:
    async with transport_to(lambda: None) as transport:
        assert await add(transport, run_of(0)) is Status.UNREACHABLE
        assert await transport.info(BOOKIE) is None


@pytest.mark.slow
async def test_a_server_that_says_nothing_is_unreachable_within_the_timeout() -> None:
    async with silent_server() as address, transport_to(address, timeout_s=0.3) as transport:
        started = time.monotonic()
        assert await add(transport, run_of(0)) is Status.UNREACHABLE
        answer = await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0))
        assert answer.status is Status.UNREACHABLE
        assert time.monotonic() - started < PATIENCE_S


async def test_a_commit_that_hangs_is_unreachable_within_the_timeout() -> None:
    storage = MemoryStorage()
    answers = Answers()
    async with (
        serving(storage) as bookie,
        transport_to(bookie.address, timeout_s=0.3) as transport,
    ):
        await add_until_ok(transport, run_of(0))
        storage.gate.clear()
        for number in range(1, 4):
            transport.add(BOOKIE, run_of(number), answers.expect(str(number)))
        await answers.wait(3)
        assert answers.got == [(str(n), Status.UNREACHABLE) for n in range(1, 4)]
        storage.gate.set()
        await add_until_ok(transport, run_of(4))


async def test_a_bookie_that_dies_answers_what_is_open_and_is_used_again_after_its_return() -> None:
    storage = MemoryStorage()
    bookie = Bookie(storage)
    await bookie.start()
    answers = Answers()
    async with transport_to(bookie.address) as transport:
        assert await add(transport, run_of(0)) is Status.OK
        storage.gate.clear()
        transport.add(BOOKIE, run_of(1), answers.expect("in flight"))
        await until(lambda: 1 in storage.ledgers[7])
        await bookie.kill()
        await answers.wait(1)
        assert answers.got == [("in flight", Status.UNREACHABLE)]
        assert await add(transport, run_of(2)) is Status.UNREACHABLE

        again = Bookie(storage)
        await again.start(bookie.port)
        try:
            await add_until_ok(transport, run_of(3))
            answer = await transport.read(BOOKIE, ReadQuery(7, KEY, 3, 3))
            assert list(answer.entries) == [3]
        finally:
            await again.stop()


async def test_while_a_bookie_is_down_most_adds_fail_without_an_attempt() -> None:
    attempts = 0

    def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, transport_to(address, timeout_s=PATIENCE_S) as transport:
        for _ in range(200):
            assert await add(transport, run_of(0)) is Status.UNREACHABLE
    assert 1 <= attempts < 20


async def test_another_bookie_at_the_address_is_not_taken_for_the_right_one() -> None:
    async with serving() as bookie, transport_to(bookie.address) as transport:
        stranger = BookieId("b2")
        assert await add(transport, run_of(0), bookie=stranger) is Status.UNREACHABLE
        assert await transport.info(stranger) is None
        assert bookie.storage.ledgers == {}


async def test_a_bookie_that_moved_is_found_at_its_new_address() -> None:
    async with serving() as old, serving() as new:
        address = old.address
        async with transport_to(lambda: address) as transport:
            assert await add(transport, run_of(0)) is Status.OK
            assert (await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0))).entries == [0]
            address = new.address
            assert await add(transport, run_of(1)) is Status.OK
            assert (await transport.read(BOOKIE, ReadQuery(7, KEY, 1, 1))).entries == [1]
        assert list(old.storage.ledgers[7]) == [0]
        assert list(new.storage.ledgers[7]) == [1]


async def test_a_full_queue_refuses_more() -> None:
    storage = MemoryStorage()
    storage.gate.clear()
    answers = Answers()
    async with (
        serving(storage) as bookie,
        transport_to(bookie.address, pending_bytes_max=10_000) as transport,
    ):
        for number in range(3):
            run = run_of(number, payload=b"x" * 4000)
            transport.add(BOOKIE, run, answers.expect(str(number)))
        await answers.wait(1)
        assert answers.got == [("2", Status.TOO_MANY_REQUESTS)]
        storage.gate.set()
        await answers.wait(3)
        assert answers.got[1:] == [("0", Status.OK), ("1", Status.OK)]


@pytest.mark.slow
async def test_close_answers_everything_that_is_open() -> None:
    storage = MemoryStorage()
    storage.gate.clear()
    answers = Answers()
    async with serving(storage) as bookie:
        async with transport_to(bookie.address) as transport:
            for number in range(10):
                transport.add(BOOKIE, run_of(number), answers.expect(str(number)))
            waiting = asyncio.ensure_future(
                transport.read(BOOKIE, ReadQuery(9, KEY, 0, 0, wait_ms=60_000))
            )
            await asyncio.sleep(0)
            await transport.close()
            assert answers.got == [(str(n), Status.UNREACHABLE) for n in range(10)]
            assert (await waiting).status is Status.UNREACHABLE
            assert await add(transport, run_of(11)) is Status.UNREACHABLE
            assert await transport.info(BOOKIE) is None
        storage.gate.set()


async def test_close_lets_what_was_sent_to_a_slow_bookie_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An entry that enough others have is confirmed; who closes then must not take it back."""
    monkeypatch.setattr("ledger.transport.sockets._ARRIVE_S", PATIENCE_S)
    storage = MemoryStorage()
    storage.gate.clear()
    answers = Answers()
    async with serving(storage) as bookie, transport_to(bookie.address) as transport:
        for number in range(3):
            run = run_of(number, payload=b"x" * 400_000)  # more than one batch
            transport.add(BOOKIE, run, answers.expect(str(number)))
        closing = asyncio.ensure_future(transport.close())
        await until(lambda: 0 in storage.ledgers.get(7, {}))
        storage.gate.set()
        await closing
        assert answers.got == [(str(n), Status.OK) for n in range(3)]
        assert sorted(storage.ledgers[7]) == [0, 1, 2]


@pytest.mark.slow
def test_close_tells_what_did_not_arrive_in_time(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        storage = MemoryStorage()
        storage.gate.clear()
        answers = Answers()
        async with serving(storage) as bookie, transport_to(bookie.address) as transport:
            transport.add(BOOKIE, run_of(0), answers.expect("0"))
            await until(lambda: 0 in storage.ledgers.get(7, {}))
            await transport.close()
            storage.gate.set()
            assert answers.got == [("0", Status.UNREACHABLE)]
            assert bookie.address in caplog.text

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "adds_given_up_at_close" in caplog.text


async def test_a_long_poll_returns_soon_after_the_entry_is_confirmed() -> None:
    async with (
        serving() as bookie,
        transport_to(bookie.address, timeout_s=PATIENCE_S) as writer,
        transport_to(bookie.address, timeout_s=PATIENCE_S) as reader,
    ):
        assert await add(writer, run_of(0)) is Status.OK
        poll = asyncio.ensure_future(reader.read(BOOKIE, ReadQuery(7, KEY, 0, 99, wait_ms=60_000)))
        await add(writer, run_of(1))
        assert not poll.done()
        await add(writer, run_of(2, lac=0))
        async with asyncio.timeout(PATIENCE_S):
            answer = await poll
        assert list(answer.entries) == [0]
        assert answer.lac_proof


@pytest.mark.slow
def test_a_long_poll_outlives_the_timeout_of_ordinary_reads() -> None:
    async def scenario() -> None:
        async with serving() as bookie, transport_to(bookie.address, timeout_s=0.2) as transport:
            await add_until_ok(transport, run_of(0))

            async def outlived() -> bool:  # never, if it ended with the timeout
                answer = await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0, wait_ms=500))
                assert list(answer.entries) == []
                return answer.status is Status.OK

            await eventually(outlived, "the answer to a long poll")

    asyncio.run(scenario())


async def test_a_cancelled_read_leaves_the_transport_usable() -> None:
    async with serving() as bookie, transport_to(bookie.address) as transport:
        assert await add(transport, run_of(0, lac=-1)) is Status.OK
        poll = asyncio.ensure_future(
            transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0, wait_ms=20_000))
        )
        await asyncio.sleep(0)
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        assert list((await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0))).entries) == [0]


async def test_an_exception_of_a_callback_hurts_nobody_else() -> None:
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))

    def fail(_: Status) -> None:
        raise RuntimeError("of the caller")

    answers = Answers()
    async with serving() as bookie, transport_to(bookie.address) as transport:
        transport.add(BOOKIE, run_of(0), fail)
        transport.add(BOOKIE, run_of(1), answers.expect("next"))
        assert await answers.wait(1) == [("next", Status.OK)]
    assert told == ["of the caller"]


@pytest.mark.parametrize(("answer_s", "connecting"), [(1.0, 1.0), (5.0, 2.0), (30.0, 12.0)])
def test_to_be_connected_to_a_bookie_has_a_part_of_the_time_for_an_answer(
    answer_s: float, connecting: float
) -> None:
    assert connecting_s(answer_s) == connecting


async def test_what_a_bookie_holds_is_listed_answer_after_answer() -> None:
    async with serving() as bookie, transport_to(bookie.address) as transport:
        await add(transport, run_of(0, 1, 5, lac=-1))
        first, found = 0, list[tuple[int, int]]()
        while first <= 9:
            answer = await transport.read_held(BOOKIE, HeldQuery(7, KEY, first, 9))
            assert (answer.status, answer.considered) == (Status.OK, answer.listed)
            found += answer.ranges()
            first = answer.listed + 1
        assert found == [(0, 0), (1, 1), (5, 5)], "as its storage cuts them"
        absent = await transport.read_held(BOOKIE, HeldQuery(8, KEY, 0, 9))
        assert (absent.status, absent.considered) == (Status.NO_SUCH_LEDGER, 9)


async def test_a_bookie_that_knows_no_lists_is_one_that_gave_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs a program of before. That it is there, and what it is asked besides, is as ever."""
    answer_of = ReadConnection._answer_of

    def older(answering: ReadConnection, kind: int, request: bytes) -> object:
        return None if kind == FrameKind.READ_HELD else answer_of(answering, kind, request)

    monkeypatch.setattr(ReadConnection, "_answer_of", older)
    async with serving() as bookie, transport_to(bookie.address) as transport:
        answer = await transport.read_held(BOOKIE, HeldQuery(7, KEY, 0, 9))
        assert answer == HeldAnswer(Status.UNREACHABLE, is_supported=False)
        assert await transport.info(BOOKIE) is not None


async def test_a_list_that_nobody_gives_is_unreachable() -> None:
    async with transport_to(refused_address()) as transport:
        answer = await transport.read_held(BOOKIE, HeldQuery(7, KEY, 0, 9))
    assert answer == HeldAnswer(Status.UNREACHABLE)


async def test_a_small_run_leaves_at_once_if_nothing_is_open_others_at_the_end_of_the_turn() -> (
    None
):
    answers = Answers()
    async with serving() as bookie, transport_to(bookie.address) as transport:
        assert await add(transport, run_of(0)) is Status.OK
        session = transport._links[BOOKIE].session
        assert session is not None
        for number in range(1, 4):
            transport.add(BOOKIE, run_of(number), answers.expect(str(number)))
        assert [len(flight.runs) for flight in session._window._flights] == [1]
        assert await answers.wait(3) == [(str(n), Status.OK) for n in range(1, 4)]
        transport.add(BOOKIE, run_of(4, payload=bytes(AT_ONCE_BYTES_MAX)), answers.expect("4"))
        assert not session._window._flights, "it may be one of many"
        assert (await answers.wait(4))[-1] == ("4", Status.OK)


async def test_what_comes_while_the_bookie_takes_nothing_leaves_together() -> None:
    answers = Answers()
    async with serving() as bookie, transport_to(bookie.address) as transport:
        assert await add(transport, run_of(0)) is Status.OK
        session = transport._links[BOOKIE].session
        assert session is not None
        session._connection.is_blocked = True
        for number in range(1, 4):
            transport.add(BOOKIE, run_of(number), answers.expect(str(number)))
            await asyncio.sleep(0)
        assert session._window.has_queued
        commits = bookie.storage.commits
        session._connection.resume_writing()
        assert await answers.wait(3) == [(str(n), Status.OK) for n in range(1, 4)]
        assert bookie.storage.commits == commits + 1


async def test_what_several_bookies_get_in_one_turn_is_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[bytes] = []

    def counted(runs: Sequence[AddRun]) -> bytes:
        made.append(batch_message(runs))
        return made[-1]

    monkeypatch.setattr("ledger.transport.sockets.batch_message", counted)
    names = [BookieId(f"b{number}") for number in range(3)]
    answers = Answers()
    async with AsyncExitStack() as stack:
        bookies = {}
        for name in names:
            bookies[name] = Bookie(MemoryStorage(), name)
            await bookies[name].start()
            stack.push_async_callback(bookies[name].stop)
        transport = SocketTransport(lambda name: bookies[name].address, timeout_s=PATIENCE_S)
        stack.push_async_callback(transport.close)
        for name in names:
            assert await add(transport, run_of(0), name) is Status.OK
        made.clear()
        run = run_of(1, 2)
        for name in names:
            transport.add(name, run, answers.expect(name))
        await answers.wait(3)
        assert len(made) == 1
        assert {status for _, status in answers.got} == {Status.OK}
        assert all(list(each.storage.ledgers[7]) == [0, 1, 2] for each in bookies.values())
        assert len(transport._batches._message) <= AT_ONCE_BYTES_MAX, "little is kept"
        made.clear()
        large = run_of(3, payload=bytes(AT_ONCE_BYTES_MAX))
        for name in names:
            transport.add(name, large, answers.expect(name))
        await answers.wait(6)
        assert len(made) == 1
        assert transport._batches._message == b"", "no large entries are kept behind their turn"


async def test_what_several_bookies_get_in_one_turn_is_each_ones_own() -> None:
    names = [BookieId(f"b{number}") for number in range(3)]
    answers = Answers()
    async with AsyncExitStack() as stack:
        bookies = {}
        for name in names:
            bookies[name] = Bookie(MemoryStorage(), name)
            await bookies[name].start()
            stack.push_async_callback(bookies[name].stop)
        transport = SocketTransport(lambda name: bookies[name].address, timeout_s=PATIENCE_S)
        stack.push_async_callback(transport.close)
        for name in names:
            assert await add(transport, run_of(0), name) is Status.OK
        for number, name in enumerate(names, 1):
            transport.add(name, run_of(number), answers.expect(name))
        await answers.wait(3)
        for number, name in enumerate(names, 1):
            assert list(bookies[name].storage.ledgers[7]) == [0, number]


async def test_connections_that_are_not_used_are_closed_and_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the client: who meets the end of a connection would take it for the bookie's failure."""
    monkeypatch.setattr("ledger.transport.sockets._LOOK_S", 0.01)
    monkeypatch.setattr("ledger.transport.sockets._IDLE_S", 0.0)
    async with serving() as bookie, transport_to(bookie.address) as transport:
        for number in range(3):
            assert await add(transport, run_of(number)) is Status.OK
            assert await transport.info(BOOKIE) is not None
            await until(lambda: not bookie.server.connections)


async def test_a_poll_keeps_a_connection_that_is_not_used_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ledger.transport.sockets._LOOK_S", 0.01)
    monkeypatch.setattr("ledger.transport.sockets._IDLE_S", 0.0)
    async with serving() as bookie, transport_to(bookie.address) as transport:
        answer = await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0, wait_ms=100))
        assert answer.status is Status.NO_SUCH_LEDGER


STRANGERS = {
    "of another cluster": replace(OURS, instance="instance 2"),
    "with other data": replace(OURS, identity="data 2"),
    "in an older life": replace(OURS, life=4),
}


@pytest.mark.parametrize("meant", STRANGERS.values(), ids=STRANGERS.keys())
async def test_a_bookie_of_the_same_name_that_is_not_meant_is_no_answer(
    meant: BookieIdentity, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as bookie, transport_to(bookie.address) as transport:
        transport._meant = lambda _: meant
        assert await add(transport, run_of(0)) is Status.UNREACHABLE
        fence = ReadQuery(7, KEY, 0, 0, fence=True)
        assert (await transport.read(BOOKIE, fence)).status is Status.UNREACHABLE
        lac = LacQuery(7, KEY, fence=True)
        assert (await transport.read_lac(BOOKIE, lac)).status is Status.UNREACHABLE
        held = HeldQuery(7, KEY, 0, 0)
        assert (await transport.read_held(BOOKIE, held)).status is Status.UNREACHABLE
        assert await transport.info(BOOKIE) is None
        assert not bookie.storage.ledgers, "it has heard of none of that"
    assert "here is " in caplog.text
    assert "was meant" in caplog.text


@pytest.mark.parametrize("meant", STRANGERS.values(), ids=STRANGERS.keys())
async def test_a_stranger_is_not_believed_though_it_compares_nothing(
    meant: BookieIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of an older release, or of bad will."""

    def welcome(*_hello: Hello, **_own: object) -> Welcome:
        return Welcome(2, BOOKIE, "start 1", OURS)

    monkeypatch.setattr("bookie.server.listener.answer_to", welcome)
    async with serving() as bookie, transport_to(bookie.address) as transport:
        transport._meant = lambda _: meant
        assert await add(transport, run_of(0)) is Status.UNREACHABLE
        assert await transport.info(BOOKIE) is None
        assert not bookie.storage.ledgers


async def test_a_connection_ends_when_another_bookie_is_meant_by_now() -> None:
    """Its data were taken over by another process, or its name is another bookie's."""
    async with serving() as bookie, transport_to(bookie.address) as transport:
        meant = OURS
        transport._meant = lambda _: meant
        assert await add(transport, run_of(0)) is Status.OK
        assert await transport.info(BOOKIE) is not None
        transport.check_identities()
        assert await add(transport, run_of(1)) is Status.OK
        meant = replace(OURS, life=4)
        transport.check_identities()
        assert await add(transport, run_of(2)) is Status.UNREACHABLE
        assert await transport.info(BOOKIE) is None


async def test_a_bookie_that_welcomes_under_another_name_is_not_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(encode_answer(Welcome(1, "b2", "start 1")))
        await reader.read(100)
        writer.close()

    server = await asyncio.start_server(welcome, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, transport_to(address) as transport:
        assert await transport.info(BOOKIE) is None
    assert "here is bookie b2, and b1 was meant" in caplog.text


async def test_a_peer_that_speaks_something_else_is_told_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Here: a bookie of a program of before, which speaks HTTP/2."""
    attempts = 0

    async def older(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.write(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(older, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with caplog.at_level(logging.INFO):
        async with server, transport_to(address) as transport:
            assert await add(transport, run_of(0)) is Status.UNREACHABLE

            async def tried_again() -> bool:
                assert await transport.info(BOOKIE) is None
                return attempts >= 4

            await eventually(tried_again, "more attempts, behind their back-off")
    assert caplog.text.count("bookie_refused") == 1
    assert caplog.text.count("bookie_session_ended") == 1
    assert "version 0.1.0 of dlog or later is needed there" in caplog.text
