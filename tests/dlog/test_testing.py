"""The cluster that applications get for their tests."""

import asyncio
import os
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest

import dlog.testing
from bookie.disk.port import Directories
from bookie.errors import DataMissing
from bookie.identity.stamp import accept_loss
from dlog import Log, LogSettings, aio
from dlog.testing.memory_disk import MemoryDisk
from ledger.errors import MetadataUnavailable
from ledger.quorum import Quorum
from tests.patience import patient_campaign
from tests.waiting import PATIENCE_S, TEST_S, until

ROOT = Path(__file__).parents[2]
TWO = LogSettings(quorum=Quorum(ensemble=2, write=2, ack=2))
START_S = 0.5
STARTS_MAX = 20
"""On a busy machine each may be held back; one that is not shows what it takes."""

pytest_plugins = ["dlog.testing.plugin"]


def values(uri: str, log: str = "orders") -> list[bytes]:
    with Log.tail(log, uri=uri, follow=False) as reader:
        return [record.value for record in reader]


def test_a_program_appends_and_reads_what_it_appended() -> None:
    with dlog.testing.cluster() as cluster:
        with Log.open("orders", uri=cluster.uri) as log:
            assert log.append(b"one").offset == 0
        assert values(cluster.uri) == [b"one"]


async def test_an_async_program_does_it_on_its_own_event_loop() -> None:
    async with dlog.testing.cluster() as cluster:
        async with await aio.Log.open("orders", uri=cluster.uri) as log:
            await log.append(b"one")
        async with await aio.Log.tail("orders", uri=cluster.uri, follow=False) as reader:
            assert [record.value async for record in reader] == [b"one"]


async def test_a_bookie_in_limbo_comes_out_of_it_by_itself() -> None:
    async with dlog.testing.cluster() as cluster:
        async with await aio.Log.open("orders", uri=cluster.uri) as log:
            await log.append(b"one")
        [*_, bookie] = cluster.bookies
        await bookie.kill()
        accept_loss(Directories.single(bookie._disk), "it burned")
        await bookie.start()
        assert bookie._running is not None
        _, _, storage = bookie._running
        assert storage.limbo is not None
        assert storage.limbo.reason == "it burned"
        await until(lambda: storage.doubts == "", "the only ledger is CLOSED")


async def test_a_bookie_whose_disk_was_replaced_is_refused() -> None:
    """As in production: it would deny what it had acknowledged, and recovery would believe it."""
    async with dlog.testing.cluster() as cluster:
        await cluster.kill_bookie(0)
        kept = cluster.bookies[0]._disk
        cluster.bookies[0]._disk = MemoryDisk("empty", 1 << 20)
        with pytest.raises(DataMissing, match="it has no cookie"):
            await cluster.restart_bookie(0)
        cluster.bookies[0]._disk = kept
        await cluster.restart_bookie(0)


def test_the_cluster_is_up_in_less_than_half_a_second() -> None:
    with dlog.testing.cluster():
        pass  # what is imported once per process is not counted
    took_s: list[float] = []
    while not took_s or (min(took_s) >= START_S and len(took_s) < STARTS_MAX):
        began = time.monotonic()
        with dlog.testing.cluster() as cluster:
            took_s.append(time.monotonic() - began)
            assert all(bookie.running for bookie in cluster.bookies)
        assert len(cluster.bookies) == 3
    assert min(took_s) < START_S


def test_its_uri_means_it_on_every_event_loop_of_the_process(
    dlog_cluster: dlog.testing.Cluster,
) -> None:
    async def append(value: bytes) -> None:
        async with await aio.Log.open("orders") as log:
            await log.append(value)

    asyncio.run(append(b"from a loop"))
    with Log.open("orders") as log:
        log.append(b"from a thread")
    asyncio.run(append(b"from another loop"))
    assert values(dlog_cluster.uri) == [b"from a loop", b"from a thread", b"from another loop"]


def test_two_clusters_know_nothing_of_each_other() -> None:
    with dlog.testing.cluster() as one, dlog.testing.cluster() as other:
        for cluster, value in ((one, b"1"), (other, b"2")):
            with Log.open("orders", uri=cluster.uri) as log:
                log.append(value)
        assert (values(one.uri), values(other.uri)) == ([b"1"], [b"2"])


@pytest.mark.slow
def test_bookies_that_were_killed_have_what_they_acknowledged() -> None:
    with dlog.testing.cluster() as cluster:
        with Log.open("orders", uri=cluster.uri) as log:
            for i in range(100):
                log.append(b"%d" % i)
        for index in range(3):
            cluster.kill_bookie(index)
        assert not any(bookie.running for bookie in cluster.bookies)
        for index in range(3):
            cluster.restart_bookie(index)
        assert values(cluster.uri) == [b"%d" % i for i in range(100)]


def test_a_writer_goes_on_when_a_bookie_dies() -> None:
    with dlog.testing.cluster() as cluster, Log.open("orders", uri=cluster.uri) as log:
        log.append(b"before")
        cluster.kill_bookie(0)
        assert log.append(b"after").offset == 1


@pytest.mark.slow
def test_a_read_only_bookie_serves_reads_and_gets_no_new_records() -> None:
    with dlog.testing.cluster() as cluster, Log.open("old", uri=cluster.uri, settings=TWO) as old:
        old.append(b"before")
        cluster.set_read_only(0)
        old.append(b"another bookie takes this one's place")
        with Log.open("new", uri=cluster.uri, settings=TWO) as new:
            new.append(b"on the other two")
        for index in (1, 2):
            cluster.kill_bookie(index)
            cluster.restart_bookie(index)
        assert values(cluster.uri, "old")[0] == b"before"
        cluster.set_read_only(0, read_only=False)
        cluster.kill_bookie(1)
        with Log.open("new", uri=cluster.uri) as new:
            new.append(b"on the first and the third")


def test_without_the_metadata_store_appends_go_on_and_opening_fails_until_it_is_back() -> None:
    with dlog.testing.cluster() as cluster, Log.open("orders", uri=cluster.uri) as log:
        log.append(b"before")
        with cluster.metadata_cut():
            log.append(b"meanwhile")
            with pytest.raises(MetadataUnavailable):
                Log.open("others", uri=cluster.uri)
        with Log.open("others", uri=cluster.uri) as other:
            other.append(b"after")
        log.append(b"after")
    # Every bookie was registered again before anybody was to need it.


def test_a_cut_ends_terms_of_leadership_on_other_loops_too(
    dlog_cluster: dlog.testing.Cluster,
) -> None:
    from ledger.metastore import open_store

    lost = threading.Event()
    elected = threading.Event()

    async def lead() -> None:
        store = await open_store(dlog_cluster.uri)
        term = await patient_campaign(store, "orders")
        elected.set()
        async with asyncio.timeout(PATIENCE_S):
            await term.lost.wait()
        lost.set()
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(lead()))
    thread.start()
    try:
        assert elected.wait(PATIENCE_S)
        with dlog_cluster.metadata_cut():
            assert lost.wait(PATIENCE_S)
    finally:
        thread.join()


async def test_nothing_is_left_when_it_ends() -> None:
    before = {*threading.enumerate()}, {*asyncio.all_tasks()}
    async with dlog.testing.cluster() as cluster:
        async with await aio.Log.open("orders", uri=cluster.uri) as log:
            await log.append(b"one")
        await cluster.kill_bookie(0)
    await until(lambda: not bookie_threads(before[0]))
    assert {*asyncio.all_tasks()} == before[1]
    from ledger.metastore import open_store

    store = await open_store(cluster.uri)
    assert await store.children("/") == []
    await store.close()


def bookie_threads(before: set[threading.Thread]) -> list[str]:
    names = [thread.name for thread in {*threading.enumerate()} - before]
    return [name for name in names if name.startswith("bookie")]


def test_a_cluster_of_nothing_is_refused() -> None:
    for bookies, bytes_max in ((0, 1), (17, 1), (3, 0)):
        with pytest.raises(dlog.testing.InvalidTestCluster):
            dlog.testing.cluster(bookies, bytes_max=bytes_max)


def test_what_a_bookie_stores_is_bounded() -> None:
    disk = MemoryDisk("bookie", 100)
    file = disk.create("logs/1")
    file.write([b"x" * 60], 0)
    file.write([b"y" * 60], 0)
    with pytest.raises(OSError, match="No space"):
        file.preallocate(101)
    with pytest.raises(OSError, match="No space"):
        disk.create("logs/2").write([b"x" * 41], 0)
    disk.remove("logs/1")
    assert disk.used_bytes == 0
    assert file.read(1, 0) == b"y"


@pytest.mark.integration
def test_an_installed_dlog_brings_its_fixture(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugins = project["entry-points"]["pytest11"]
    assert plugins == {"dlog.testing.plugin": "dlog.testing.plugin"}
    installed = tmp_path / "site" / "brought-0.dist-info"
    installed.mkdir(parents=True)
    installed.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 0\n")
    lines = [f"{name} = {module}" for name, module in plugins.items()]
    installed.joinpath("entry_points.txt").write_text("\n".join(["[pytest11]", *lines]))
    tests = tmp_path / "test_orders.py"
    tests.write_text(
        "import dlog\n"
        "def test_orders(dlog_cluster):\n"
        "    with dlog.Log.open('orders') as log:\n"
        "        assert log.append(b'one').offset == 0\n"
    )
    path = os.pathsep.join([str(installed.parent), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, str(tests)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
