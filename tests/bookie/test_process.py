"""Real bookie processes on the embedded metadata store."""

import asyncio
import resource
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bookie.command import IDENTITY_LOST
from bookie.config import BookieConfig
from bookie.disk.port import Directories, RealDisk
from bookie.entrylog.format import DIRECTORY as ENTRY_LOGS
from bookie.errors import DirectoryInUse
from bookie.identity.cookie import Cookie
from bookie.identity.stamp import accept_loss
from bookie.index.format import path_of
from bookie.process import run_bookie
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
from ledger.client import LedgerClient
from ledger.errors import RecoveryFailed
from ledger.ids import BookieId, LedgerId
from ledger.metadata import LedgerState
from ledger.metastore import open_store
from ledger.quorum import Quorum
from ledger.registry import COOKIES, BookieDirectory, BookieRegistration
from ledger.requests import LacQuery, ReadQuery, Status
from ledger.transport.operator import BookieOperator
from ledger.transport.sockets import SocketTransport
from tests.bookie.processes import START_S_MAX, bookie, is_alive
from tests.bookie.runs import KEY, run_of
from tests.ledger.serving import add, add_until_ok
from tests.namespaces import made, make
from tests.patience import PATIENT, patient_transport
from tests.waiting import PATIENCE_S, eventually, until, wait_until

pytestmark = pytest.mark.integration

Result = TypeVar("Result")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"file://{tmp_path}/metadata"


def with_transport(
    name: str, address: str, work: Callable[[SocketTransport, BookieId], Awaitable[Result]]
) -> Result:
    async def scenario() -> Result:
        transport = patient_transport({name: address}.get)
        try:
            return await work(transport, BookieId(name))
        finally:
            await transport.close()

    return asyncio.run(scenario())


def registered(uri: str) -> tuple[BookieRegistration, ...]:
    async def scenario() -> tuple[BookieRegistration, ...]:
        store = await open_store(uri)
        try:
            directory = BookieDirectory(store)
            await directory.start()
            await directory.close()
            return directory.available()
        finally:
            await store.close()

    return asyncio.run(scenario())


def the_registered(uri: str) -> BookieRegistration:
    """Of one bookie; it registers again if a machine that stood still ended its session."""
    wait_until(lambda: len(registered(uri)) == 1, "it is registered")
    (found,) = registered(uri)
    return found


async def add_some(transport: SocketTransport, name: BookieId) -> None:
    for first in range(0, 1000, 100):
        run = run_of(*range(first, first + 100), lac=first - 1)
        assert await add(transport, run, bookie=name) is Status.OK


async def check_some(transport: SocketTransport, name: BookieId) -> None:
    expected = run_of(*range(900, 1000), lac=899)
    answer = await transport.read(name, ReadQuery(7, KEY, 900, 2000))
    assert answer.frames == expected.frames
    first = run_of(*range(100), lac=-1)
    answer = await transport.read(name, ReadQuery(7, KEY, 0, 99))
    assert answer.frames == first.frames
    lac = await transport.read_lac(name, LacQuery(7, KEY))
    assert lac.last_entry == 999


def test_what_was_acknowledged_is_there_after_kill_9(uri: str, tmp_path: Path) -> None:
    with bookie(uri, tmp_path / "b") as process:
        name, address = process.ready()
        with_transport(name, address, add_some)
        process.kill()
    with bookie(uri, tmp_path / "b") as process:
        assert process.ready() == (name, address), "same directory: same name and port"
        with_transport(name, address, check_some)


def test_a_fence_holds_after_kill_9(uri: str, tmp_path: Path) -> None:
    async def fence(transport: SocketTransport, name: BookieId) -> None:
        assert await add(transport, run_of(0), bookie=name) is Status.OK
        assert (await transport.read_lac(name, LacQuery(7, KEY, fence=True))).fenced
        assert (await transport.read_lac(name, LacQuery(8, KEY, fence=True))).fenced

    async def is_fenced(transport: SocketTransport, name: BookieId) -> None:
        for ledger_id in (7, 8):
            run = run_of(1, ledger_id=ledger_id)
            assert await add(transport, run, bookie=name) is Status.FENCED
            run = run_of(1, ledger_id=ledger_id, recovery=True)
            assert await add(transport, run, bookie=name) is Status.OK

    with bookie(uri, tmp_path / "b") as process:
        name, address = process.ready()
        with_transport(name, address, fence)
        process.kill()
    with bookie(uri, tmp_path / "b") as process:
        with_transport(*process.ready(), is_fenced)


def test_a_clean_stop_keeps_everything_and_takes_the_registration_back(
    uri: str, tmp_path: Path
) -> None:
    with bookie(uri, tmp_path / "b", "--rack", "r1") as process:
        name, address = process.ready()
        with_transport(name, address, add_some)
        found = the_registered(uri)
        assert (found.bookie, found.address, found.rack) == (name, address, "r1")
        assert process.stop() == 0
        assert registered(uri) == ()
    with bookie(uri, tmp_path / "b") as process:
        assert process.ready() == (name, address)
        with_transport(name, address, check_some)
        again = the_registered(uri)
        assert again.incarnation != found.incarnation


def test_several_journals_and_ledger_directories_keep_everything(uri: str, tmp_path: Path) -> None:
    roles = [("--journal-dir", f"j{at}") for at in range(2)]
    roles += [("--ledger-dir", f"l{at}") for at in range(3)]
    options = [word for option, name in roles for word in (option, str(tmp_path / name))]

    async def add_to_many(transport: SocketTransport, name: BookieId) -> None:
        for ledger_id in range(6):
            run = run_of(*range(10), ledger_id=ledger_id)
            assert await add(transport, run, bookie=name) is Status.OK

    async def check_many(transport: SocketTransport, name: BookieId) -> None:
        for ledger_id in range(6):
            answer = await transport.read(name, ReadQuery(ledger_id, KEY, 0, 9))
            assert answer.frames == run_of(*range(10), ledger_id=ledger_id).frames

    with bookie(uri, tmp_path / "b", *options) as process:
        ready = process.ready()
        with_transport(*ready, add_to_many)
        process.kill()
    with bookie(uri, tmp_path / "b", *options) as process:
        assert process.ready() == ready
        with_transport(*ready, check_many)
        assert process.stop() == 0
    for name in ("j0", "j1"):
        assert {p.name for p in (tmp_path / name).iterdir()} == {
            "LOCK",
            "cookie",
            "journal",
            "reserve",
        }
    for name in ("l0", "l1", "l2"):
        assert list((tmp_path / name / ENTRY_LOGS).iterdir()), "each has its share"
    with bookie(uri, tmp_path / "b", *options[:-2]) as process:
        assert "the same number of journal and ledger directories" in process.refused()
    swapped = [*options[2:4], *options[:2], *options[4:]]
    with bookie(uri, tmp_path / "b", *swapped) as process:
        assert "in the order of the first start" in process.refused()
    with bookie(uri, tmp_path / "b", *options) as process:
        with_transport(*process.ready(), check_many)


def test_a_directory_that_cannot_be_used_is_told(uri: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with bookie(uri, tmp_path / "b", "--ledger-dir", str(tmp_path / "file")) as process:
        assert f"{tmp_path / 'file'} cannot be used as a directory" in process.refused()
    (tmp_path / "unlocked" / "LOCK").mkdir(parents=True)  # as if nothing may be written there
    with bookie(uri, tmp_path / "unlocked") as process:
        told = process.refused()
        assert f"bookie: {tmp_path / 'unlocked'} cannot be used as a directory" in told
        assert "Traceback" not in told
    twice = ["--ledger-dir", str(tmp_path / "l"), "--ledger-dir", str(tmp_path / "b" / ".." / "l")]
    with bookie(uri, tmp_path / "b", *twice) as process:
        assert "was given as two ledger directories" in process.refused()


def test_a_bookie_on_a_disk_that_is_too_full_is_registered_read_only(
    uri: str, tmp_path: Path
) -> None:
    async def refuses_and_serves(transport: SocketTransport, name: BookieId) -> None:
        assert await add(transport, run_of(1), bookie=name) is Status.READ_ONLY
        assert await add(transport, run_of(1, recovery=True), bookie=name) is Status.OK
        assert (await transport.read_lac(name, LacQuery(7, KEY, fence=True))).fenced
        assert list((await transport.read(name, ReadQuery(7, KEY, 0, 1))).entries) == [0, 1]

    async def takes(transport: SocketTransport, name: BookieId) -> None:
        assert await add(transport, run_of(0), bookie=name) is Status.OK

    with bookie(uri, tmp_path / "b") as process:
        with_transport(*process.ready(), takes)
        assert process.stop() == 0
    full = ["--disk-low", "0.000001", "--disk-high", "0.000001"]
    with bookie(uri, tmp_path / "b", *full) as process:
        with_transport(*process.ready(), refuses_and_serves)
        found = the_registered(uri)
        assert found.read_only
        assert "read_only" in process.output()
    with bookie(uri, tmp_path / "b") as process:
        process.ready()
        found = the_registered(uri)
        assert not found.read_only


def test_an_operators_order_moves_the_registration_and_survives_kill_9(
    uri: str, tmp_path: Path
) -> None:
    def order(*, read_only: bool) -> None:
        address = the_registered(uri).operator_address

        async def scenario() -> None:
            async with BookieOperator(address) as operator:
                reply = await operator.set_read_only(read_only=read_only)
                assert reply.read_only is read_only

        asyncio.run(scenario())

    def is_read_only() -> bool:
        found = the_registered(uri)
        return found.read_only

    with bookie(uri, tmp_path / "b") as process:
        process.ready()
        assert not is_read_only()
        order(read_only=True)
        asyncio.run(until(lambda: "read_only=True" in process.output()))
        assert is_read_only()
        process.kill()
    with bookie(uri, tmp_path / "b") as process:
        process.ready()
        assert is_read_only()
        order(read_only=False)
        asyncio.run(until(lambda: "read_only=False" in process.output()))
        assert not is_read_only()


def test_a_ledger_that_the_cluster_does_not_know_goes_by_itself_and_for_good(
    uri: str, tmp_path: Path
) -> None:
    async def add_and_wait(transport: SocketTransport, name: BookieId) -> None:
        assert await add(transport, run_of(0), bookie=name) is Status.OK
        await gone(transport, name)

    async def gone(transport: SocketTransport, name: BookieId) -> None:
        async def unknown() -> bool:
            answer = await transport.read(name, ReadQuery(7, KEY, 0, 0))
            return answer.status is Status.NO_SUCH_LEDGER

        await eventually(unknown, "the ledger is gone")
        for recovery in (False, True):
            run = run_of(1, recovery=recovery)
            assert await add(transport, run, bookie=name) is Status.NO_SUCH_LEDGER

    with bookie(uri, tmp_path / "b", "--gc-interval", "0.1") as process:
        with_transport(*process.ready(), add_and_wait)
        process.kill()
    with bookie(uri, tmp_path / "b", "--gc-interval", "0") as process:
        with_transport(*process.ready(), gone)
        assert process.stop() == 0


async def test_a_client_finds_its_bookie_again_after_a_restart(uri: str, tmp_path: Path) -> None:
    with bookie(uri, tmp_path / "b", "--id", "anna") as first:
        name, address = first.ready()
        transport = patient_transport({name: address}.get)
        try:
            assert await add(transport, run_of(0), bookie=BookieId(name)) is Status.OK
            first.kill()
            assert await add(transport, run_of(1), bookie=BookieId(name)) is Status.UNREACHABLE
            with bookie(uri, tmp_path / "b") as second:
                assert await asyncio.to_thread(second.ready) == ("anna", address)
                await add_until_ok(transport, run_of(1), bookie=BookieId(name))
        finally:
            await transport.close()


def test_a_port_that_was_taken_meanwhile_is_replaced_but_the_name_stays(
    uri: str, tmp_path: Path
) -> None:
    with bookie(uri, tmp_path / "b") as process:
        name, address = process.ready()
        process.stop()
    port = int(address.rpartition(":")[2])
    with (
        socket.create_server(("127.0.0.1", port)),
        bookie(uri, tmp_path / "b") as process,
    ):
        name_now, address_now = process.ready()
        assert name_now == name
        assert address_now != address
        found = the_registered(uri)
        assert found.address == address_now


def test_a_port_in_use_is_told(uri: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with bookie(uri, tmp_path / "b", "--port", str(port)) as process:
            assert f"127.0.0.1:{port} is in use" in process.refused()


def test_a_new_directory_on_the_port_of_a_running_bookie_says_that_the_port_is_in_use(
    uri: str, tmp_path: Path
) -> None:
    with bookie(uri, tmp_path / "a") as first:
        _, address = first.ready()
        port = address.rpartition(":")[2]
        with bookie(uri, tmp_path / "b", "--port", port) as second:
            assert f"{address} is in use" in second.refused()


def test_two_bookies_cannot_share_a_directory(uri: str, tmp_path: Path) -> None:
    with bookie(uri, tmp_path / "b") as first:
        first.ready()
        with bookie(uri, tmp_path / "b") as second:
            assert f"runs on {tmp_path / 'b'}" in second.refused()
        assert first.popen.poll() is None


def test_nobody_gets_the_directory_of_a_stopped_start_before_its_replay_has_ended(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaying, may_end = threading.Event(), threading.Event()
    opened = BookieStorage.open

    def slow(directories: Directories, config: StorageConfig, **options: Any) -> BookieStorage:
        replaying.set()
        assert may_end.wait(START_S_MAX)
        return opened(directories, config, **options)

    async def scenario() -> None:
        config = BookieConfig(uri=await made(uri), directory=tmp_path / "b")
        starting = asyncio.ensure_future(run_bookie(config))
        await until(replaying.is_set)
        starting.cancel()
        await asyncio.wait([starting], timeout=0.1)
        with pytest.raises(DirectoryInUse):
            RealDisk(tmp_path / "b").lock()
        may_end.set()
        await asyncio.wait([starting])
        assert starting.cancelled()
        RealDisk(tmp_path / "b").lock()

    monkeypatch.setattr(BookieStorage, "open", slow)
    asyncio.run(scenario())


def test_the_directory_of_another_cluster_is_refused(uri: str, tmp_path: Path) -> None:
    with bookie(uri, tmp_path / "b") as process:
        process.ready()
        process.stop()
    with bookie(f"file://{tmp_path}/other", tmp_path / "b") as process:
        assert "belongs to cluster" in process.refused()


def test_the_directory_of_another_bookie_is_refused(uri: str, tmp_path: Path) -> None:
    with bookie(uri, tmp_path / "b", "--id", "anna") as process:
        process.ready()
        process.stop()
    with bookie(uri, tmp_path / "b", "--id", "berta") as process:
        assert "belongs to bookie anna" in process.refused()


def test_a_bookie_without_its_data_is_refused(uri: str, tmp_path: Path) -> None:
    with bookie(uri, tmp_path / "b", "--id", "anna") as process:
        process.ready()
        process.stop()
    with bookie(uri, tmp_path / "empty", "--id", "anna") as process:
        assert "does not hold its data" in process.refused()


def test_an_unusable_uri_is_told(tmp_path: Path) -> None:
    with bookie("ftp://somewhere", tmp_path / "b") as process:
        assert "ftp://somewhere" in process.refused()


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit is of Linux")
def test_a_disk_that_fails_ends_the_process_and_loses_nothing(uri: str, tmp_path: Path) -> None:
    """Rule 60: no write succeeds any more, so it ends at once, and says why."""

    async def fail(transport: SocketTransport, name: BookieId) -> None:
        large = run_of(0, payload=b"x" * 200_000)
        assert await add(transport, large, bookie=name) is Status.OK
        # The journal is past this size; the log of the process is not.
        resource.prlimit(process.popen.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        refused = await add(transport, run_of(1), bookie=name)
        assert refused is Status.UNREACHABLE
        await until(lambda: process.popen.poll() is not None)

    async def still_there(transport: SocketTransport, name: BookieId) -> None:
        assert list((await transport.read(name, ReadQuery(7, KEY, 0, 0))).entries) == [0]

    with bookie(uri, tmp_path / "b") as process:
        with_transport(*process.ready(), fail)
        assert process.popen.returncode == 1
        assert "storage failed" in process.output()
    with bookie(uri, tmp_path / "b") as process:
        with_transport(*process.ready(), still_there)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does it")
def test_a_bookie_may_end_with_its_parent(uri: str, tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'bookie', *sys.argv[1:]])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    options = ["--uri", make(uri), "--dir", str(tmp_path / "b"), "--die-with-parent"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stderr is not None
            child = int(parent.stdout.readline())
            while "is ready on" not in (line := parent.stderr.readline()):
                assert line, "it ended"
        finally:
            parent.kill()
    asyncio.run(until(lambda: not is_alive(child)))


def test_a_name_of_its_own_making_is_another_one_on_another_disk(uri: str, tmp_path: Path) -> None:
    names = set()
    for directory in ("one", "other"):
        with bookie(uri, tmp_path / directory, "--port", "0") as process:
            name, _ = process.ready()
            assert name.startswith("127.0.0.1-")
            names.add(name)
        (tmp_path / directory).rename(tmp_path / f"{directory}-away")
    assert len(names) == 2


def test_an_older_copy_of_the_directory_is_refused(uri: str, tmp_path: Path) -> None:
    """A backup, taken while the bookie was down; since then it has promised more."""
    with bookie(uri, tmp_path / "b") as process:
        process.ready()
    shutil.copytree(tmp_path / "b", tmp_path / "backup")
    with bookie(uri, tmp_path / "b") as process:
        with_transport(*process.ready(), add_some)
    with bookie(uri, tmp_path / "backup") as process:
        assert "are not the newest: of its start 1, and the cluster has seen start 2" in (
            process.refused()
        )
    with bookie(uri, tmp_path / "b") as process:
        with_transport(*process.ready(), check_some)


def test_a_copy_of_a_killed_bookie_is_refused_and_its_original_starts(
    uri: str, tmp_path: Path
) -> None:
    with bookie(uri, tmp_path / "b") as process:
        with_transport(*process.ready(), add_some)
    shutil.copytree(tmp_path / "b", tmp_path / "copy")
    with bookie(uri, tmp_path / "copy") as process:
        assert "holds a copy of the data" in process.refused()
    with bookie(uri, tmp_path / "b") as process:
        with_transport(*process.ready(), check_some)


def test_a_bookie_that_was_stopped_cleanly_moves_by_copying_its_files(
    uri: str, tmp_path: Path
) -> None:
    with bookie(uri, tmp_path / "b") as process:
        name, address = process.ready()
        with_transport(name, address, add_some)
        assert process.stop() == 0
    shutil.copytree(tmp_path / "b", tmp_path / "moved")
    with bookie(uri, tmp_path / "moved") as process:
        assert process.ready()[0] == name
        with_transport(*process.ready(), check_some)
        with bookie(uri, tmp_path / "b") as original:
            assert "are not the newest" in original.refused()


def test_a_copy_is_refused_beside_the_running_original(uri: str, tmp_path: Path) -> None:
    with bookie(uri, tmp_path / "b") as process:
        ready = process.ready()
        shutil.copytree(tmp_path / "b", tmp_path / "copy", ignore=shutil.ignore_patterns("LOCK"))
        with bookie(uri, tmp_path / "copy") as copy:
            assert "holds a copy of the data" in copy.refused()
        with_transport(*ready, add_some)


def test_a_process_whose_identity_was_taken_ends(uri: str, tmp_path: Path) -> None:
    """As by a snapshot of its device that was started elsewhere, which no lock can tell."""

    async def take(name: str) -> None:
        store = await open_store(uri)
        try:
            path = f"{COOKIES}/{name}"
            cookie = Cookie.decode((await store.get(path)).value)
            await store.set(path, replace(cookie, token="another").encode())
        finally:
            await store.close()

    with bookie(uri, tmp_path / "b") as process:
        name, _ = process.ready()
        asyncio.run(take(name))
        assert process.popen.wait(PATIENCE_S) == IDENTITY_LOST
        assert f"bookie {name} has lost its identity and ends" in process.output()


def test_a_bookie_denies_nothing_of_a_ledger_whose_index_file_was_put_back(
    uri: str, tmp_path: Path
) -> None:
    index = tmp_path / "b" / path_of(7)

    def filled(first: int, end: int) -> bytes:
        async def fill(transport: SocketTransport, name: BookieId) -> None:
            for at in range(first, end, 100):
                run = run_of(*range(at, at + 100), lac=at - 1)
                assert await add(transport, run, bookie=name) is Status.OK

        with bookie(uri, tmp_path / "b") as process:
            with_transport(*process.ready(), fill)
            assert process.stop() == 0
        return index.read_bytes()

    async def ask(transport: SocketTransport, name: BookieId) -> None:
        for first in (0, 600, 5000):
            answer = await transport.read(name, ReadQuery(7, KEY, first, first))
            assert answer.status is Status.IO_ERROR
        assert (await transport.read_lac(name, LacQuery(7, KEY))).status is Status.IO_ERROR
        assert await add(transport, run_of(700, lac=699), bookie=name) is Status.IO_ERROR

    older, newest = filled(0, 500), filled(500, 1000)
    index.write_bytes(older)
    for _ in range(2):
        with bookie(uri, tmp_path / "b") as process:
            with_transport(*process.ready(), ask)
    index.write_bytes(newest)
    with bookie(uri, tmp_path / "b") as process:
        with_transport(*process.ready(), check_some)


def test_after_an_accepted_loss_a_bookie_denies_nothing(uri: str, tmp_path: Path) -> None:
    """The backup has nothing of a ledger that is open: its end must not be decided by that."""

    async def fill() -> LedgerId:
        client = await LedgerClient.connect(uri, PATIENT)
        try:
            await client.bookies.wait_for(1, PATIENCE_S)
            writer = await client.create(Quorum(1, 1, 1))
            for number in range(10):
                await writer.add(b"%d" % number)
            return writer.ledger_id
        finally:
            await client.close()

    async def recover(ledger_id: LedgerId) -> None:
        client = await LedgerClient.connect(uri, PATIENT)
        try:
            await client.bookies.wait_for(0, PATIENCE_S)
            with pytest.raises(RecoveryFailed):
                await client.recover(ledger_id)
            assert (await client.describe(ledger_id)).state is not LedgerState.CLOSED
        finally:
            await client.close()

    with bookie(uri, tmp_path / "b") as process:
        process.ready()
    shutil.copytree(tmp_path / "b", tmp_path / "backup")
    with bookie(uri, tmp_path / "b") as process:
        process.ready()
        ledger_id = asyncio.run(fill())
    with bookie(uri, tmp_path / "backup") as process:
        assert "dlog bookie accept-loss" in process.refused()
    accept_loss(Directories.single(RealDisk(tmp_path / "backup")), "the newer disk burned")
    for _ in range(2):
        with bookie(uri, tmp_path / "backup") as process:
            process.ready()
            asyncio.run(recover(ledger_id))
    with bookie(uri, tmp_path / "b") as process:
        assert "are not the newest" in process.refused()
