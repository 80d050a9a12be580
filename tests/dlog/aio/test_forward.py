"""Commands that a replica forwards to the leader: one effect each, typed errors, who may send."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dlog.testing
from dlog import (
    Command,
    CommandOutcomeUnknown,
    InvalidResult,
    LogClosed,
    NotLeader,
    RecordTooLarge,
    RequestForgotten,
    StateMachine,
)
from dlog.aio import Replica, command_router, forward
from dlog.aio.forward import (
    ForwardClient,
    ForwardDenied,
    ForwardEndpoint,
    ForwardFailed,
    ForwardListener,
    WriterRights,
)
from dlog.errors import ForwardRefused
from dlog.protocol.command import RequestId
from dlog.protocol.forward_message import (
    ForwardedCommand,
    encode_command,
    encode_hello,
    encode_welcome,
)
from dlog.testing import AsyncCluster
from ledger.entry import ENTRY_BYTES_MAX
from ledger.errors import AccessDenied, LogError, TooManyPending
from ledger.metastore.memory import MemoryStore
from ledger.security.access import Grant, Role, Rules
from ledger.security.certificates import Security
from ledger.security.documents import change_rules
from ledger.security.settings import Takes
from ledger.transport.connection import Connection
from ledger.transport.framing import FrameKind, frame_header
from tests.certificates import authority, certificate, put
from tests.waiting import PATIENCE_S, ended, until

LOG = "accounts"
COMMAND = ForwardedCommand(RequestId("client", 1), b"x", 1, 60_000)


class History(StateMachine):
    def __init__(self) -> None:
        self.done: list[bytes] = []
        self.versions: list[int] = []

    def apply(self, command: Command) -> object:
        self.done.append(command.payload)
        self.versions.append(command.version)
        return {1} if command.payload == b"set" else len(self.done)


class LaterHistory(History):
    version = 2


@asynccontextmanager
async def opened(
    cluster: AsyncCluster, candidate: str = "a", machine: StateMachine | None = None, **how: Any
) -> AsyncIterator[Replica[Any]]:
    async with Replica.open(
        LOG,
        machine or History(),
        uri=cluster.uri,
        candidate=candidate,
        address=f"http://{candidate}",
        lease_s=PATIENCE_S,
        **how,
    ) as replica:
        yield replica


@asynccontextmanager
async def leader_and_follower(
    leader: StateMachine | None = None, follower: StateMachine | None = None, **how: Any
) -> AsyncIterator[tuple[Replica[Any], Replica[Any]]]:
    async with (
        dlog.testing.cluster() as cluster,
        opened(cluster, "a", leader, **how) as first,
    ):
        assert await first.wait_role("leader", timeout_s=PATIENCE_S)
        async with opened(cluster, "b", follower) as second:
            await until(lambda: second.leader is not None)
            yield first, second


async def done(replica: Replica[Any]) -> list[bytes]:
    return await replica.read(lambda history: list(history.done))


async def test_a_follower_returns_what_the_leader_returned() -> None:
    async with leader_and_follower() as (leader, follower):
        assert await follower.submit(b"x", forward=True) == 1
        assert await follower.submit(b"y", forward=True, request_id=("client", 1)) == 2
        assert await leader.submit(b"y", request_id=("client", 1)) == 2, "it was done before"
        assert await leader.submit(b"z", forward=True) == 3, "the leader needs nobody"
        assert await done(follower) == await done(leader) == [b"x", b"y", b"z"]
        with pytest.raises(NotLeader):
            await follower.submit(b"x")


async def test_commands_that_are_forwarded_at_once_have_one_effect_each() -> None:
    async with leader_and_follower() as (leader, follower):
        payloads = [b"%d" % number for number in range(300)]
        results = await asyncio.gather(*(follower.submit(each, forward=True) for each in payloads))
        assert sorted(map(int, map(str, results))) == list(range(1, 301))
        assert sorted(await done(leader)) == sorted(payloads)


async def test_a_reply_that_is_lost_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    send, lost = Connection.send, 0

    def lossy(self: Connection, kind: FrameKind, number: int, *body: Any) -> None:
        nonlocal lost
        if kind == FrameKind.ANSWER and isinstance(self, forward._Sender) and lost < 5:
            lost += 1
            self.abort()
            return
        send(self, kind, number, *body)

    monkeypatch.setattr(Connection, "send", lossy)
    async with leader_and_follower() as (leader, follower):
        for number in range(1, 9):
            assert await follower.submit(b"%d" % number, forward=True) == number
        assert lost == 5
        assert len(await done(leader)) == 8


async def test_what_was_under_way_when_the_lead_changed_reaches_the_next_leader() -> None:
    async with (
        dlog.testing.cluster() as cluster,
        opened(cluster, "a") as first,
    ):
        assert await first.wait_role("leader", timeout_s=PATIENCE_S)
        async with opened(cluster, "b"), opened(cluster, "c") as follower:
            await until(lambda: follower.leader is not None)
            payloads = [b"%d" % number for number in range(200)]
            sent = [
                asyncio.create_task(follower.submit(each, forward=True, timeout_s=PATIENCE_S))
                for each in payloads
            ]
            await until(lambda: any(each.done() for each in sent))
            await first.resign()
            await asyncio.gather(*sent)
            assert sorted(await done(follower)) == sorted(payloads)


async def test_a_leader_that_takes_no_commands_says_so() -> None:
    async with leader_and_follower(lifeline_host=None) as (_, follower):
        with pytest.raises(ForwardRefused, match="lifeline_host"):
            await follower.submit(b"x", forward=True)


async def test_errors_of_the_leader_are_raised_by_the_follower() -> None:
    async with leader_and_follower() as (leader, follower):
        with pytest.raises(RecordTooLarge):
            await follower.submit(bytes(4 * 1024 * 1024), forward=True)
        with pytest.raises(InvalidResult, match="set"):
            await follower.submit(b"set", forward=True)
        for number in range(100):
            await leader.submit(b"x", request_id=("client", number))
        with pytest.raises(RequestForgotten):
            await follower.submit(b"x", forward=True, request_id=("client", 0))


class Wordless(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize("error", [ValueError("file \udcff"), Wordless(), TooManyPending(2**70, 1)])
async def test_what_went_wrong_at_the_leader_is_reported_whatever_its_text_and_numbers(
    error: Exception,
) -> None:
    async with listening() as listener:

        async def failing(_: ForwardedCommand) -> object:
            raise error

        listener._handle = failing
        client = ForwardClient(LOG, "life", listener.rights, None)
        with pytest.raises(ForwardFailed, match=r"file \?|its text raises|out of range"):
            await ended(client.send(listener.endpoint, COMMAND))
        client.drop()


async def test_a_command_of_a_later_version_is_refused_by_an_older_leader() -> None:
    async with leader_and_follower(History(), LaterHistory()) as (leader, follower):
        with pytest.raises(ForwardRefused, match="version 2"):
            await follower.submit(b"x", forward=True)
        assert await done(leader) == []


async def test_a_command_keeps_the_version_of_the_replica_that_submitted_it() -> None:
    async with leader_and_follower(LaterHistory(), History()) as (leader, follower):
        assert await follower.submit(b"x", forward=True) == 1
        assert await leader.read(lambda history: history.versions) == [1]


async def test_what_finds_no_room_is_refused_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with leader_and_follower() as (_, follower):
        monkeypatch.setattr(forward, "COMMANDS_MAX", 0)
        with pytest.raises(TooManyPending):
            await follower.submit(b"x", forward=True)
        monkeypatch.undo()
        monkeypatch.setattr(forward, "COMMANDS_BYTES_MAX", 10)
        with pytest.raises(TooManyPending):
            await follower.submit(bytes(11), forward=True)
        monkeypatch.undo()
        assert await follower.submit(b"x", forward=True) == 1


async def test_a_refusal_says_nothing_of_an_attempt_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with leader_and_follower() as (_, follower):
        monkeypatch.setattr(command_router, "own_name", lambda _: "b")
        outcomes: list[Exception] = []

        async def sent(*_: object) -> object:
            outcome = outcomes.pop(0)
            if isinstance(outcome, LogError):
                return outcome
            raise outcome

        monkeypatch.setattr(ForwardClient, "send", sent)
        lost = ForwardFailed("away", was_sent=True)
        too_large = RecordTooLarge(LOG, 2, 1)
        for refusal, cause in ((ForwardDenied(), AccessDenied), (too_large, RecordTooLarge)):
            outcomes[:] = [refusal]
            with pytest.raises(cause):
                await follower.submit(b"x", forward=True)
            outcomes[:] = [lost, refusal]
            with pytest.raises(CommandOutcomeUnknown) as caught:
                await follower.submit(b"x", forward=True)
            assert isinstance(caught.value.__cause__, cause)
        outcomes[:] = [lost, InvalidResult("", "")]
        with pytest.raises(InvalidResult):  # which says that it was applied
            await follower.submit(b"x", forward=True)


async def test_what_no_log_takes_is_refused_before_it_is_sent() -> None:
    async with listening() as listener:
        client = ForwardClient(LOG, "life", listener.rights, None)
        largest = ForwardedCommand(COMMAND.request, bytes(ENTRY_BYTES_MAX), 1, 60_000)
        assert await client.send(listener.endpoint, largest)
        for more_bytes in (1, forward.COMMANDS_BYTES_MAX):
            larger = ForwardedCommand(
                COMMAND.request, bytes(ENTRY_BYTES_MAX + more_bytes), 1, 60_000
            )
            with pytest.raises(RecordTooLarge):
                await client.send(listener.endpoint, larger)
        assert listener.refused == 0
        client.close()


async def test_a_replica_that_does_not_lead_compares_no_versions() -> None:
    async with leader_and_follower() as (leader, follower):
        later = ForwardedCommand(RequestId("client", 1), b"x", 2, 60_000)
        with pytest.raises(ForwardRefused):
            await leader._router._take(later)
        with pytest.raises(NotLeader):
            await follower._router._take(later)


async def test_a_command_that_never_left_is_not_applied_and_one_that_did_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with leader_and_follower() as (leader, follower):
        outcome = ForwardFailed("away", was_sent=False)

        async def failed(*_: object) -> None:
            raise outcome

        monkeypatch.setattr(ForwardClient, "send", failed)
        with pytest.raises(NotLeader, match=r"a at http://a.*away.*lifeline_host"):
            await follower.submit(b"x", forward=True, timeout_s=0.1)
        outcome = ForwardFailed("away", was_sent=True)
        with pytest.raises(CommandOutcomeUnknown):
            await follower.submit(b"x", forward=True, timeout_s=0.1)
        assert await done(leader) == []


async def test_a_refusal_after_a_lost_reply_does_not_mean_that_it_was_not_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes: list[Exception] = [ForwardFailed("away", was_sent=True)]

    async def failed(*_: object) -> None:
        raise outcomes.pop() if outcomes else TooManyPending(1, 1)

    async with leader_and_follower() as (_, follower):
        monkeypatch.setattr(ForwardClient, "send", failed)
        with pytest.raises(CommandOutcomeUnknown):
            await follower.submit(b"x", forward=True, timeout_s=0.2)
        with pytest.raises(TooManyPending):
            await follower.submit(b"x", forward=True, timeout_s=0.2)


async def test_a_replica_that_is_closed_ends_what_it_forwarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_router, "BACKOFF_S", 0.01)
    async with leader_and_follower() as (leader, follower):
        release = asyncio.Event()
        submit = leader._router._replica.submit

        async def held(*given: Any) -> object:
            await release.wait()
            return await submit(*given)

        listener = leader._router._listener
        assert listener is not None
        listener._handle = held
        sent = asyncio.create_task(follower.submit(b"x", forward=True))
        await until(lambda: listener._commands == 1)
        await follower.close()
        with pytest.raises(CommandOutcomeUnknown):
            await sent
        with pytest.raises(LogClosed):
            await follower.submit(b"x", forward=True)


async def test_a_connection_that_ended_while_a_command_was_sent_is_replaced() -> None:
    may_read, has_ended = asyncio.Event(), asyncio.Event()

    async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(encode_hello("life")))
        writer.write(encode_welcome())
        await reader.readexactly(1)
        writer.write_eof()
        await may_read.wait()
        while await reader.read(1 << 20):
            pass
        writer.close()
        await writer.wait_closed()
        has_ended.set()

    async with listening() as listener:
        server = await asyncio.start_server(ends, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        client = ForwardClient(LOG, "life", listener.rights, None)
        command = ForwardedCommand(COMMAND.request, bytes(16 * 1024 * 1024), 1, 60_000)
        sent = asyncio.create_task(client.send(ForwardEndpoint(host, port, Takes.PLAIN), command))
        await until(lambda: client._connection is not None)
        connection = client._connection
        assert connection is not None
        await until(lambda: connection._transport is None or connection._transport.is_closing())
        may_read.set()  # so it ends once all was sent, without an error
        with pytest.raises(ForwardFailed) as caught:
            await sent
        assert caught.value.was_sent
        client.drop()
        assert await client.send(listener.endpoint, COMMAND) == b"x"
        client.close()
        server.close()
        await has_ended.wait()


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[ForwardEndpoint, list[asyncio.StreamWriter]]]:
    """A leader that is paused: its machine accepts connections, and nothing is said on them."""
    accepted: list[asyncio.StreamWriter] = []

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield ForwardEndpoint(host, port, Takes.PLAIN), accepted
    finally:
        server.close()
        for writer in accepted:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def test_commands_share_an_attempt_to_connect_which_ends_when_another_leads() -> None:
    async with listening() as listener, silent() as (endpoint, accepted):
        client = ForwardClient(LOG, "life", listener.rights, None)
        sent = [asyncio.create_task(client.send(endpoint, COMMAND)) for _ in range(20)]
        await until(lambda: bool(accepted))
        client.drop()
        assert await client.send(listener.endpoint, COMMAND) == b"x"
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert [isinstance(each, ForwardFailed) and each.was_sent for each in outcomes] == [
            False
        ] * 20
        assert len(accepted) == 1
        assert len(listener.connections) == 1, "the next leader's connection is kept"
        client.close()


async def test_a_failure_to_connect_is_that_of_all_commands_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forward, "CONNECT_S", 0.01)
    async with silent() as (endpoint, accepted):
        rights = WriterRights(MemoryStore("memory://forward", "forward"), None, lambda: LOG)
        client = ForwardClient(LOG, "life", rights, None)
        sent = [client.send(endpoint, COMMAND) for _ in range(20)]
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert [isinstance(each, ForwardFailed) and each.was_sent for each in outcomes] == [
            False
        ] * 20
        assert len(accepted) <= 1
        client.close()


async def test_time_that_ends_before_a_command_was_sent_leaves_no_doubt() -> None:
    hurried = ForwardedCommand(COMMAND.request, COMMAND.payload, 1, 10)
    async with listening() as listener, silent() as (endpoint, _):
        client = ForwardClient(LOG, "life", listener.rights, None)
        with pytest.raises(ForwardFailed) as caught:
            await client.send(endpoint, hurried)
        assert not caught.value.was_sent
        assert await client.send(listener.endpoint, COMMAND) == b"x"

        async def held(_: ForwardedCommand) -> object:
            return await asyncio.Event().wait()

        listener._handle = held
        with pytest.raises(ForwardFailed) as caught:
            await client.send(listener.endpoint, hurried)
        assert caught.value.was_sent
        client.close()


async def test_a_client_that_is_closed_while_it_connects_leaves_no_connection() -> None:
    async with listening() as listener, silent() as (endpoint, accepted):
        client = ForwardClient(LOG, "life", listener.rights, None)
        sent = asyncio.create_task(client.send(endpoint, COMMAND))
        await until(lambda: bool(accepted))
        client.close()
        with pytest.raises(ForwardFailed):
            await sent
        with pytest.raises(ForwardFailed, match="closed"):
            await client.send(listener.endpoint, COMMAND)
        assert not listener.connections


# The listener: who and what is let in.


@asynccontextmanager
async def listening(
    security: Security | None = None, rights: WriterRights | None = None
) -> AsyncIterator[ForwardListener]:
    async def handle(command: ForwardedCommand) -> object:
        return command.payload

    rights = rights or WriterRights(
        MemoryStore("memory://forward", "forward"), security, lambda: LOG
    )
    listener = await ForwardListener.open("127.0.0.1", "life", handle, rights, security)
    try:
        yield listener
    finally:
        await listener.close()


async def answer_to(listener: ForwardListener, sent: bytes) -> bytes:
    """Return all that is said to a client that says *sent*, until the connection is closed."""
    reader, writer = await asyncio.open_connection(listener.endpoint.host, listener.endpoint.port)
    writer.write(sent)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        encode_hello("another life"),
        encode_hello("life")[:-1] + b"?",
        encode_hello("life") + bytes(100),
    ],
)
async def test_a_client_that_is_no_replica_of_the_log_is_turned_away(sent: bytes) -> None:
    async with listening() as listener:
        assert (await answer_to(listener, sent)).startswith(b"DLOGCMDS\0\0")
        assert listener.refused == 1
        await until(lambda: not listener.connections)


@pytest.mark.parametrize(
    "frame",
    [
        b"?" * 20,
        frame_header(FrameKind.READ, 1, 0),
        frame_header(FrameKind.COMMAND, 1, 4) + b"none",
        frame_header(FrameKind.COMMAND, 1, 2**31),
    ],
)
async def test_bytes_that_are_no_command_end_the_connection(frame: bytes) -> None:
    async with listening() as listener:
        reader, writer = await asyncio.open_connection(
            listener.endpoint.host, listener.endpoint.port
        )
        writer.write(encode_hello("life"))
        assert await reader.readexactly(16)  # a welcome
        writer.write(frame)
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()
        assert listener.refused == 1
        client = ForwardClient(LOG, "life", listener.rights, None)
        assert await client.send(listener.endpoint, COMMAND) == b"x", "others are served"
        client.close()


async def test_a_client_that_says_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "LOOK_S", 0.01)
    async with listening() as listener:
        assert await answer_to(listener, b"") == b""


async def test_a_client_that_says_half_a_command_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listening() as listener:
        reader, writer = await asyncio.open_connection(
            listener.endpoint.host, listener.endpoint.port
        )
        writer.write(encode_hello("life"))
        assert await reader.readexactly(16)  # a welcome
        (connection,) = listener.connections
        body = encode_command(COMMAND)
        frame = frame_header(FrameKind.COMMAND, 1, len(body)) + body
        writer.write(frame[:-1])
        await until(lambda: connection.reader.is_under_way)
        connection._look()
        assert not connection.is_lost, "it may say the rest"
        writer.write(frame[-1:] + frame[:-1])
        progress = connection.reader.progress
        await until(lambda: connection.reader.progress == progress + 3)
        connection._look()
        assert listener.connections, "it said more"
        connection._look()
        await until(lambda: not listener.connections)
        writer.close()


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "CONNECTIONS_MAX", 0)
    async with listening() as listener:
        client = ForwardClient(LOG, "life", listener.rights, None)
        with pytest.raises(ForwardFailed, match="connections already"):
            await client.send(listener.endpoint, COMMAND)


async def test_nobody_listens_there_any_more() -> None:
    async with listening() as listener:
        endpoint = listener.endpoint
    client = ForwardClient(LOG, "life", listener.rights, None)
    with pytest.raises(ForwardFailed) as caught:
        await client.send(endpoint, COMMAND)
    assert not caught.value.was_sent


def test_an_endpoint_is_read_as_it_was_written() -> None:
    for host in ("127.0.0.1", "::1", "app-1.example"):
        for takes in Takes:
            endpoint = ForwardEndpoint(host, 4711, takes)
            assert ForwardEndpoint.parse(str(endpoint)) == endpoint
    for text in ("", "plain", "plain:host", "plain:host:", "later:host:1", "plain::1"):
        assert ForwardEndpoint.parse(text) is None


# Where TLS is required.


def secured(directory: Path, name: str) -> Security:
    security = Security.of(put(directory / name, certificate(name)))
    assert security is not None
    return security


async def test_only_writers_of_the_log_forward_commands_and_answer_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "RULES_S", -1.0)
    store = MemoryStore("memory://forward", "forward")
    leads, sends = secured(tmp_path, "leads"), secured(tmp_path, "sends")

    async def granted(who: str, role: Role, logs: str) -> None:
        grant = Grant(f"cn:{who}", role, logs)
        await change_rules(store, lambda rules: rules.granted(grant), by="test")

    def rights(security: Security) -> WriterRights:
        return WriterRights(store, security, lambda: LOG)

    async with listening(leads, rights(leads)) as listener:
        assert listener.endpoint.takes is Takes.TLS

        def client() -> ForwardClient:
            return ForwardClient(LOG, "life", rights(sends), sends)

        with pytest.raises(ForwardDenied):  # the one that answers has no grant
            await client().send(listener.endpoint, COMMAND)
        await granted("leads", Role.WRITER, LOG)
        await granted("sends", Role.READER, LOG)
        await granted("sends", Role.WRITER, "other")
        with pytest.raises(ForwardDenied):
            await client().send(listener.endpoint, COMMAND)
        assert listener.refused > 0
        await granted("sends", Role.WRITER, f"{LOG}*")
        allowed = client()
        assert await allowed.send(listener.endpoint, COMMAND) == b"x"
        grant = Grant("cn:sends", Role.WRITER, f"{LOG}*")
        await change_rules(store, lambda rules: rules.revoked(grant), by="test")
        with pytest.raises(ForwardDenied):  # on a connection that is open, too
            await allowed.send(listener.endpoint, COMMAND)
        allowed.drop()


async def test_a_replica_with_a_new_certificate_connects_again_when_the_old_one_expires(
    tmp_path: Path,
) -> None:
    store = MemoryStore("memory://forward", "forward")
    leads = secured(tmp_path, "leads")
    grant = Grant("cn:*", Role.WRITER, LOG)
    await change_rules(store, lambda rules: rules.granted(grant), by="test")
    rights = WriterRights(store, leads, lambda: LOG)
    async with listening(leads, rights) as listener:
        sends = secured(tmp_path, "sends")
        client = ForwardClient(LOG, "life", WriterRights(store, sends, lambda: LOG), sends)
        held = asyncio.Event()

        async def handle(command: ForwardedCommand) -> object:
            if command.payload == b"slow":
                await held.wait()
            return command.payload

        listener._handle = handle
        assert await client.send(listener.endpoint, COMMAND) == b"x"
        (old,) = listener.connections
        slow = ForwardedCommand(RequestId("client", 2), b"slow", 1, 60_000)
        under_way = asyncio.create_task(client.send(listener.endpoint, slow))
        await until(lambda: listener._commands == 1)
        assert old.certificate is not None
        old.certificate = replace(old.certificate, expires_at=time.time() - 1)
        sent = (client.send(listener.endpoint, COMMAND) for _ in range(5))
        assert await asyncio.gather(*sent) == [b"x"] * 5
        assert len(listener.connections) == 2
        held.set()
        assert await under_way == b"slow", "the old connection still replies"
        await until(lambda: len(listener.connections) == 1)
        (new,) = listener.connections
        assert new is not old
        assert new.certificate is not None
        new.certificate = replace(new.certificate, expires_at=time.time() - 1)
        new._look()  # the leader need not wait for the next command
        await until(lambda: not listener.connections)
        assert await client.send(listener.endpoint, COMMAND) == b"x"
        client.close()


async def test_grants_that_are_read_again_keep_no_command_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[asyncio.Future[Rules]] = []

    async def read(_: object) -> Rules:
        reads.append(asyncio.get_running_loop().create_future())
        return await reads[-1]

    monkeypatch.setattr(forward, "read_rules", read)
    rights = WriterRights(MemoryStore("memory://forward", "forward"), secured(tmp_path, "a"), str)
    first = [asyncio.create_task(rights._current()) for _ in range(2)]
    await until(lambda: bool(reads))
    old, new = Rules(), Rules()
    reads[0].set_result(old)
    assert await asyncio.gather(*first) == [old, old]
    monkeypatch.setattr(forward, "RULES_S", -1.0)
    again = asyncio.create_task(rights._current())
    await until(lambda: len(reads) == 2)
    async with asyncio.timeout(PATIENCE_S):
        assert await rights._current() is old
    reads[1].set_result(new)
    assert await again is new


async def test_where_tls_is_required_nobody_comes_without_it(tmp_path: Path) -> None:
    leads = secured(tmp_path, "leads")
    async with listening(leads) as listener:
        said = await answer_to(listener, encode_hello("life"))
        assert b"TLS is required here" in said
        stranger = Security.of(
            put(tmp_path / "s", certificate("s", by="others"), ca=authority("others"))
        )
        client = ForwardClient(LOG, "life", listener.rights, stranger)
        with pytest.raises(ForwardFailed):
            await client.send(listener.endpoint, COMMAND)
