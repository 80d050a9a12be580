"""A worker calls the keeper: both ends of the socket in one process, and what is between them."""

import asyncio
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from dlog.aio import Log
from dlog.aio.write.sink import Assignment, Committed, Stager
from dlog.columns import Columns
from dlog.errors import LostOwnership, NoSuchLog
from dlog.receipts import Receipt
from dlog.recordbatch import encode_batch
from dlog.settings import LogSettings
from dlog.spark.errors import StagedBefore
from dlog.spark.sink.keeper import frames, server
from dlog.spark.sink.keeper.client import BatchTooLargeToTravel, KeeperClient, KeeperUnreachable
from dlog.spark.sink.keeper.frames import KeeperFailed
from dlog.spark.sink.keeper.held_logs import Batch, ClusterOpener, Holding
from dlog.spark.sink.keeper.place import KeeperPlace
from dlog.spark.sink.keeper.server import KeeperServer
from dlog.sync.loop_thread import LoopThread
from ledger.errors import AccessDenied, MetadataUnavailable, with_unknown_outcome
from ledger.metastore.memory import MemoryStore
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.waiting import PATIENCE_S

QUERY = b"q" * 16
SILENT_S = 1.5
"""Longer than a busy machine stands still, as a rule."""


def payload(*values: bytes) -> bytes:
    return encode_batch(Columns(list(values)), base_index=0, base_timestamp_ms=1)


class Bench:
    """A keeper on ledgers in memory that serves at a socket, and callers of it."""

    def __init__(self, directory: Path) -> None:
        self.place = KeeperPlace(directory, "k")
        self.thread = LoopThread.get()
        self.starts: list[Callable[[], None]] = []
        self.clients: list[KeeperClient] = []
        self.thread.run(self._begin())

    async def _begin(self) -> None:
        self.cluster = FakeCluster()
        # Stores of one name are one store, as long as their loop lives.
        name = uuid4().hex
        self.ledgers = self.cluster.client(MemoryStore(f"memory://{name}", name))
        self.holding = Holding(
            ClusterOpener(self._connect, owner="keeper"),
            known={},
            save=lambda _: None,
            clock=lambda: 0.0,
        )
        self.server = KeeperServer(self.holding)

    async def _connect(self) -> FakeLedgers:
        return self.ledgers

    def serve(self) -> None:
        self.thread.run(self.server.listen(self.place.socket))

    def started(self) -> None:
        """What starts a keeper: the next of `starts`, else nothing."""
        if self.starts:
            self.starts.pop(0)()

    def client(self, **more: float) -> KeeperClient:
        made = KeeperClient(self.place, self.started, **more)
        self.clients.append(made)
        return made

    def values(self) -> list[bytes]:
        async def read() -> list[bytes]:
            async with await Log.tail("a", client=self.ledgers, stop="end") as reader:
                return [record.value async for record in reader]

        return self.thread.run(read())

    def close(self) -> None:
        for each in self.clients:
            each.close()
        self.thread.run(self.server.close())
        self.thread.run(self.holding.close())


@pytest.fixture
def bench() -> Iterator[Bench]:
    directory = Path(tempfile.mkdtemp(prefix="dlog"))  # a socket's path must be short
    made = Bench(directory)
    yield made
    made.close()
    shutil.rmtree(directory)


def claim(client: KeeperClient, log: str = "a", *, create: bool = True) -> Assignment:
    return client.claim([log], run=None, create=create, settings=None)[log]


def commit(client: KeeperClient, number: int, *parts: object, run: str = "r1") -> Committed:
    return client.commit(
        "a",
        Receipt(QUERY, number),
        parts,  # type: ignore[arg-type]
        run=run,
        entry_bytes_max=1 << 20,
        create=True,
        settings=None,
        final=False,
    )


def test_what_is_claimed_and_committed_travels_whole(bench: Bench) -> None:
    bench.serve()
    client = bench.client()
    settings = LogSettings(roll_bytes=1000, record_bytes_max=77)
    assignment = client.claim(["a"], run=None, create=True, settings=settings)["a"]
    assert assignment.settings == settings
    assert assignment == bench.holding.assignments()[0]

    async def stage() -> object:
        stager = await Stager.begin(bench.ledgers, assignment, Receipt(QUERY, 0))
        await stager.add(payload(b"staged", b"too"))
        return await stager.seal()

    done = commit(client, 0, payload(b"x"), bench.thread.run(stage()), payload(b"y", b"z"))
    assert (done.first_offset, done.end_offset, done.already) == (0, 5, False)
    assert commit(bench.client(), 0, payload(b"x")).already
    assert bench.values() == [b"x", b"staged", b"too", b"y", b"z"]


def test_all_that_is_open_is_told_to_who_asks(bench: Bench) -> None:
    bench.serve()
    client = bench.client()
    claim(client, "a")
    assignments = client.claim(["b"], run=None, create=True, settings=None, all_held=True)
    assert sorted(assignments) == ["a", "b"]


def test_errors_come_as_what_they_are(bench: Bench) -> None:
    bench.serve()
    client = bench.client()
    with pytest.raises(NoSuchLog, match="there is no log 'a'") as refused:
        claim(client, create=False)
    assert refused.value.log == "a"
    commit(client, 0, payload(b"x"))
    commit(client, 1, payload(b"y"), run="r2")
    with pytest.raises(LostOwnership, match="run r2 of the same Spark application") as lost:
        commit(client, 2, payload(b"z"))
    assert not lost.value.retryable
    assert lost.value.reason.startswith("run r2")
    again = frames.error_of(frames.error_facts(StagedBefore("a")))
    assert isinstance(again, StagedBefore)
    assert again.log == "a"


def test_an_error_that_nobody_expects_ends_one_request_only(bench: Bench) -> None:
    bench.serve()
    client = bench.client()
    with pytest.raises(KeeperFailed, match="TypeError"):
        client.commit(
            "a",
            Receipt(QUERY, 0),
            [payload(b"x")],
            run="r1",
            entry_bytes_max="much",  # type: ignore[arg-type]
            create=True,
            settings=None,
            final=False,
        )
    assert commit(client, 0, payload(b"x")).end_offset == 1


def test_trouble_that_passes_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    troubles = [MetadataUnavailable("zk://a", "get", 1.0) for _ in range(3)]
    claimed = bench.holding.claim

    async def troubled(*args: object, **more: object) -> object:
        if troubles:
            raise troubles.pop()
        return await claimed(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.holding, "claim", troubled)
    bench.serve()
    assert claim(bench.client()).epoch == 1
    assert not troubles
    troubles.append(MetadataUnavailable("zk://a", "get", 1.0))
    with pytest.raises(MetadataUnavailable):
        claim(bench.client(patience_s=0.0))


def test_what_somebody_has_to_grant_first_is_not_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = with_unknown_outcome(AccessDenied("cn:reader", "writer", "append", logs="a"))
    asked = []

    async def refuse(*_: object, **__: object) -> Assignment:
        asked.append(denied)
        raise denied

    monkeypatch.setattr(Holding, "claim", refuse)
    bench.serve()
    with pytest.raises(AccessDenied, match="dlog access grant cn:reader writer 'a'"):
        claim(bench.client())
    assert len(asked) == 1


def test_a_keeper_is_started_if_there_is_none_or_only_its_old_socket(bench: Bench) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(bench.place.socket))  # nobody listens
    bench.starts = [lambda: None, bench.serve]
    assert claim(bench.client()).epoch == 1
    assert bench.starts == []


def test_a_keeper_that_does_not_come_is_an_error_that_names_its_log(bench: Bench) -> None:
    with pytest.raises(KeeperUnreachable, match=r"did not answer.*k\.log") as refused:
        claim(bench.client(patience_s=0.0))
    assert refused.value.retryable
    assert refused.value.outcome_unknown


class Relay:
    """Stands where the keeper should and passes on what it is asked; the first answers it keeps,
    and ends the connection, or says nothing at all."""

    def __init__(self, path: Path, keeper: Path, *, kept: int, silent: bool) -> None:
        self._keeper, self._kept, self._silent = keeper, kept, silent
        self._ended = threading.Event()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._ended.set()
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                caller = self._listening.accept()[0]
                threading.Thread(target=self._relay, args=[caller], daemon=True).start()

    def _relay(self, caller: socket.socket) -> None:
        with caller, socket.socket(socket.AF_UNIX) as keeper, suppress(OSError):
            keeper.connect(str(self._keeper))
            while True:
                if not _frame(caller, keeper):
                    return
                if self._kept:
                    self._kept -= 1
                    keeper.recv(1)  # it was done
                    if self._silent:
                        self._ended.wait()
                    return
                _frame(keeper, caller)


def _frame(source: socket.socket, target: socket.socket) -> bool:
    prefix = source.recv(frames.SIZES.size, socket.MSG_WAITALL)
    if not prefix:
        return False
    target.sendall(prefix)
    for size in frames.sizes(prefix):
        target.sendall(source.recv(size, socket.MSG_WAITALL) if size else b"")
    return True


@pytest.mark.parametrize("silent", [False, True])
def test_a_batch_whose_answer_is_lost_is_asked_for_again_and_is_there_once(
    bench: Bench, silent: bool
) -> None:
    inner = bench.place.directory / "inner"
    bench.thread.run(bench.server.listen(inner))
    relay = Relay(bench.place.socket, inner, kept=2, silent=silent)
    client = bench.client(silent_s=0.2)
    assert commit(client, 0, payload(b"x")).already
    assert commit(client, 1, payload(b"y")).end_offset == 2
    assert bench.values() == [b"x", b"y"]
    relay.close()


@pytest.mark.slow
def test_who_works_says_so_and_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WORKING_S", 0.02)
    committed = bench.holding.commit
    asked: list[Batch] = []

    async def slow(batch: Batch) -> Committed:
        asked.append(batch)
        await asyncio.sleep(2 * SILENT_S)  # as a bookie that is away
        return await committed(batch)

    monkeypatch.setattr(bench.holding, "commit", slow)
    bench.serve()
    assert not commit(bench.client(silent_s=SILENT_S), 0, payload(b"x")).already
    assert len(asked) == 1


def test_what_is_no_request_ends_its_connection_only(bench: Bench) -> None:
    bench.serve()
    for junk in (b"\xff" * 12, frames.SIZES.pack(2, 0) + b"[]", frames.SIZES.pack(3, 0) + b"abc"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(PATIENCE_S)
            stranger.connect(os.fspath(bench.place.socket))
            stranger.sendall(junk)
            assert stranger.recv(1) == b""
    assert claim(bench.client()).epoch == 1


def test_more_than_can_travel_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "BODY_BYTES_MAX", 10)
    with pytest.raises(BatchTooLargeToTravel, match="lower inlineBytesMax"):
        commit(bench.client(), 0, payload(b"x"))


def test_its_socket_is_for_nobody_else_whatever_the_umask(bench: Bench) -> None:
    before = os.umask(0)
    try:
        bench.serve()
    finally:
        os.umask(before)
    assert bench.place.socket.stat().st_mode & 0o777 == 0o600
