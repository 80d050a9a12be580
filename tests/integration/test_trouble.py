"""Trouble with real processes: a typed error in bounded time, and no record lost or doubled."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from dlog.aio import Log
from dlog.errors import (
    AppendFailed,
    AppendOutcomeUnknown,
    InvalidName,
    LogClosed,
    LostOwnership,
    RecordTooLarge,
)
from dlog.local.cluster import LocalCluster
from dlog.local.errors import JavaMissing, ZooKeeperMissing
from dlog.local.zookeeper import ManagedZooKeeper
from dlog.settings import LogSettings
from ledger import LedgerClient, Quorum
from ledger.errors import (
    BookieUnavailable,
    InvalidQuorum,
    InvalidUri,
    LogError,
    MetadataUnavailable,
    NotEnoughBookies,
    RecoveryFailed,
)
from ledger.ids import BookieId, LedgerId
from ledger.metastore import MetadataStore
from ledger.metastore.zookeeper import ZooKeeperStore
from ledger.requests import Status
from ledger.transport.sockets import SocketTransport
from tests.bookie.processes import bookie, own_port
from tests.bookie.runs import run_of
from tests.ledger.serving import add
from tests.patience import PATIENT, patient_transport
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

METADATA_TIMEOUT_S: Final = 2.0
BOOKIE_TIMEOUT_S: Final = 1.0
SLACK_S: Final = PATIENCE_S - 5.0
"""For a machine that stands still; less than the time-out of a patient client."""
CREATE_TRIES: Final = 4
"""A creation whose reply may have been lost is looked for and repeated a few times."""
OPEN_S_MAX: Final = 90.0
"""Three attempts at a takeover, with their pauses, while all bookies are silent."""


async def values(uri: str) -> list[bytes]:
    async with await Log.tail("flights", uri=uri, follow=False) as reader:
        return [record.value async for record in reader]


async def error_within(seconds: float, call: Awaitable[object]) -> LogError:
    """Return what *call* failed with, which it must do in time."""
    started = time.monotonic()
    with pytest.raises(LogError) as caught:
        await call
    took = time.monotonic() - started
    assert took <= seconds, f"{type(caught.value).__name__} only after {took:.1f} s"
    return caught.value


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ManagedZooKeeper]:
    """A server of one test's own, which may kill it and start it again on the same port."""
    found = ManagedZooKeeper(tmp_path / "zookeeper", port=own_port())
    try:
        asyncio.run(found.start())
    except (JavaMissing, ZooKeeperMissing) as error:
        pytest.skip(str(error))
    yield found
    asyncio.run(found.stop())


@pytest.mark.zookeeper
async def test_an_open_log_goes_on_while_the_metadata_store_is_dead(
    tmp_path: Path, server: ManagedZooKeeper
) -> None:
    expected = [b"%d" % i for i in range(300)]

    async def append(log: Log, records: list[bytes]) -> None:
        for value in records:
            async with asyncio.timeout(PATIENCE_S):
                await log.append(value)

    async def opening_fails(client: LedgerClient, ledger_id: LedgerId) -> None:
        once, creating = (tries * METADATA_TIMEOUT_S + SLACK_S for tries in (1, CREATE_TRIES))
        errors = await asyncio.gather(
            error_within(once, Log.open("flights", client=client)),
            error_within(once, Log.open("another", client=client)),
            error_within(once, Log.tail("flights", client=client)),
            error_within(once, client.open(ledger_id)),
            error_within(creating, client.create()),
        )
        assert {type(error) for error in errors} == {MetadataUnavailable}
        assert all(error.retryable and server.hosts in str(error) for error in errors)

    async def scenario(client: LedgerClient) -> None:
        log = await Log.open("flights", client=client)
        (ledger_id,) = [each async for each in client.list()]
        await append(log, expected[:100])
        server.kill()
        with impatient(client.store, METADATA_TIMEOUT_S):
            opening = asyncio.create_task(opening_fails(client, ledger_id))
            await append(log, expected[100:200])
            await opening
        await append(log, expected[200:])
        await log.abandon()
        await server.start()
        log = await open_when_possible(client)
        assert log.last_offset == len(expected) - 1
        await append(log, [b"more"])
        await log.close()

    config = replace(PATIENT, session_timeout_s=4.0)
    uri = server.uri("/dlog")
    async with LocalCluster(tmp_path / "cluster", zookeeper=uri):
        client = await LedgerClient.connect(uri, config)
        await scenario(client)
        assert await values(uri) == [*expected, b"more"]
        await client.close()


async def open_when_possible(client: LedgerClient) -> Log:
    """Bookies announce themselves again in their own time after the store was away."""
    while True:
        try:
            return await Log.open("flights", client=client)
        except (NotEnoughBookies, MetadataUnavailable):
            await asyncio.sleep(0.1)


@contextmanager
def impatient(store: MetadataStore, timeout_s: float) -> Iterator[None]:
    """Only now, when nothing is answered anyway: before and after, a busy machine may take long."""
    assert isinstance(store, ZooKeeperStore)
    patient_s, store._timeout_s = store._timeout_s, timeout_s
    try:
        yield
    finally:
        store._timeout_s = patient_s


@contextmanager
def impatient_with_bookies(client: LedgerClient, timeout_s: float) -> Iterator[None]:
    """The same for what bookies are asked."""
    transport = client._environment.transport
    assert isinstance(transport, SocketTransport)
    patient = transport._limits
    hasty = replace(patient, timeout_s=timeout_s, connect_timeout_s=timeout_s)
    sessions = [link.session for link in transport._links.values() if link.session is not None]
    transport._limits = hasty
    for session in sessions:
        session._limits = hasty
        if session._watchdog is not None:  # it would look when the patient time is over
            session._watchdog.cancel()
        session._watch(asyncio.get_running_loop().time())
    try:
        yield
    finally:
        transport._limits = patient


@contextmanager
def stopped(cluster: LocalCluster) -> Iterator[None]:
    """All bookies are alive and say nothing."""
    for process in cluster.processes:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in cluster.processes:
            os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_bookies_that_cannot_be_reached_are_told_in_bounded_time(
    tmp_path: Path, how: str
) -> None:
    async def tail_to_the_end(client: LedgerClient) -> None:
        async with await Log.tail("flights", client=client, follow=False) as reader:
            async for _ in reader:
                pass

    async def while_unreachable(client: LedgerClient, log: Log) -> None:
        with impatient_with_bookies(client, BOOKIE_TIMEOUT_S):
            errors = await asyncio.gather(
                error_within(BOOKIE_TIMEOUT_S + SLACK_S, log.append(b"unknown")),
                error_within(OPEN_S_MAX, Log.open("flights", client=client)),
                error_within(2 * BOOKIE_TIMEOUT_S + SLACK_S, tail_to_the_end(client)),
            )
        assert [type(error) for error in errors] == [
            AppendOutcomeUnknown,
            RecoveryFailed,
            BookieUnavailable,
        ]
        assert isinstance(await error_within(SLACK_S, log.append(b"never sent")), AppendFailed)

    async with LocalCluster(tmp_path) as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        log = await Log.open("flights", client=client, reopen_timeout_s=0)
        expected = [b"%d" % i for i in range(100)]
        for value in expected:
            await log.append(value)
        if how == "stopped":
            with stopped(cluster):
                await while_unreachable(client, log)
        else:
            for index in range(len(cluster.processes)):
                cluster.kill_bookie(index)
            await while_unreachable(client, log)
            for index in range(len(cluster.processes)):
                await cluster.restart_bookie(index)
        await log.abandon()
        async with await open_when_possible(client) as log:
            await log.append(b"more")
        found = await values(cluster.uri)
        assert found in ([*expected, b"more"], [*expected, b"unknown", b"more"])
        await client.close()


async def test_what_a_caller_does_wrong_is_told_and_the_log_stays_whole(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path, bookies=2) as cluster:
        uri = cluster.uri
        for name in ("", "x" * 256, "a\nb", ".hidden", "a//b", "a/../b"):
            with pytest.raises(InvalidName):
                await Log.open(name, uri=uri)
            with pytest.raises(InvalidName):
                await Log.tail(name, uri=uri)
        with pytest.raises(InvalidUri):
            await Log.open("flights", uri="ftp://somewhere")
        with pytest.raises(InvalidQuorum):
            await Log.open("flights", uri=uri, settings=LogSettings(quorum=Quorum(2, 2, 3)))
        error = await error_within(OPEN_S_MAX, Log.open("too wide", uri=uri))
        assert isinstance(error, NotEnoughBookies)
        assert (error.needed, len(error.available)) == (3, 2)

        settings = LogSettings(quorum=Quorum(2, 2, 2))
        old = await Log.open("flights", uri=uri, settings=settings)
        await old.append(b"0")
        with pytest.raises(RecordTooLarge):
            await old.append(bytes(1024 * 1024 + 1))
        await old.append(b"1")
        new = await Log.open("flights", uri=uri)
        with pytest.raises((LostOwnership, AppendOutcomeUnknown)):
            await old.append(b"zombie")
        with pytest.raises(LostOwnership):
            await old.append(b"zombie")
        await new.append(b"2")
        await new.close()
        with pytest.raises(LogClosed):
            await new.append(b"too late")
        await old.abandon()
        assert await values(uri) == [b"0", b"1", b"2"]


async def test_nobody_at_the_metadata_stores_address_is_told_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DLOG_TIMEOUT_S", "1")
    uri = f"zk://127.0.0.1:{own_port()}/dlog"

    for call in (Log.open("flights", uri=uri), Log.tail("flights", uri=uri)):
        assert isinstance(await error_within(1.0 + SLACK_S, call), MetadataUnavailable)


def test_a_bookie_whose_journal_is_damaged_says_where_and_does_not_start(tmp_path: Path) -> None:
    runs = 10

    async def fill(name: str, address: str) -> None:
        transport = patient_transport({name: address}.get)
        try:
            for entry_id in range(runs):  # one commit each: the later prove the earlier ones
                run = run_of(entry_id, payload=b"payload %d" % entry_id)
                assert await add(transport, run, bookie=BookieId(name)) is Status.OK
        finally:
            await transport.close()

    uri, directory = f"file://{tmp_path}/metadata", tmp_path / "b"
    with bookie(uri, directory) as process:
        asyncio.run(fill(*process.ready()))
        process.kill()
    (journal,) = [path for path in directory.rglob("*") if holds(path, b"payload 7")]
    whole = journal.read_bytes()
    place = whole.index(b"payload 7")
    journal.write_bytes(whole[:place] + b"P" + whole[place + 1 :])
    with bookie(uri, directory) as process:
        last_line = process.refused().splitlines()[-1]
        assert journal.name in last_line
        offset = int(last_line.partition("damaged at byte ")[2].partition(":")[0])
        assert whole.index(b"payload 6") < offset <= place
        assert "Traceback" not in process.output()
    journal.write_bytes(whole)
    with bookie(uri, directory) as process:
        process.ready()


def holds(path: Path, text: bytes) -> bool:
    return path.is_file() and text in path.read_bytes()
