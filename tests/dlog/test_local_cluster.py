"""The local cluster: real bookie processes on the embedded metadata store."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from bookie.tools.format import retire
from dlog.local.bookie_process import BookieProcess
from dlog.local.cluster import LocalCluster, _locked
from dlog.local.errors import ChildFailed, ClusterRunning, InvalidCluster
from ledger.client import LedgerClient
from ledger.cluster import open_namespace
from ledger.errors import InvalidUri
from ledger.metastore import open_store
from ledger.quorum import Quorum
from tests.patience import PATIENT
from tests.waiting import alive, eventually, until, wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(100):
            await test()

    asyncio.run(bounded())


def test_a_cluster_is_up_inside_and_its_processes_are_gone_after(tmp_path: Path) -> None:
    async def test() -> None:
        async with LocalCluster(tmp_path, bookies=2) as cluster:
            found = cluster.bookies()
            store = await open_store(cluster.uri)
            ours = (await open_namespace(store)).instance[:8]
            await store.close()
            assert [bookie.name for bookie in found] == [f"bookie-0-{ours}", f"bookie-1-{ours}"]
            assert [bookie.directory.name for bookie in found] == ["bookie-0", "bookie-1"]
            assert all(alive(bookie.pid) for bookie in found)
            assert len({bookie.address for bookie in found}) == 2
            own = [os.getsid(bookie.pid) == bookie.pid for bookie in found]
            assert all(own), "a Ctrl-C at the terminal is the cluster's to handle"
            assert cluster.uri == f"file://{tmp_path}/metadata"
        assert not any(alive(bookie.pid) for bookie in found)
        assert cluster.bookies() == []

    run(test)


def test_the_next_start_finds_the_data_and_a_killed_bookie_comes_back_with_its_own(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with LocalCluster(tmp_path) as cluster:
            client = await LedgerClient.connect(cluster.uri, PATIENT)
            writer = await client.create(Quorum(3, 3, 2))
            for payload in (b"a", b"b", b"c"):
                await writer.add(payload)
            cluster.kill_bookie(1)
            names = [bookie.directory.name for bookie in cluster.bookies()]
            assert names == ["bookie-0", "bookie-2"]
            await writer.add(b"d")
            pid, name = cluster.processes[1].pid, cluster.processes[1].bookie
            incarnation = cluster._incarnation(name)
            await cluster.restart_bookie(1)
            assert cluster.processes[1].pid != pid
            assert cluster._incarnation(name) not in (None, incarnation), "it is announced"
            assert len(cluster.bookies()) == 3
            await writer.close()
            await client.close()
        async with LocalCluster(tmp_path) as cluster:
            client = await LedgerClient.connect(cluster.uri, PATIENT)
            reader = await client.open(writer.ledger_id)
            entries = await reader.read(0, 3)
            assert [bytes(entry.payload) for entry in entries] == [b"a", b"b", b"c", b"d"]
            await client.close()

    run(test)


def test_what_lies_in_the_working_directory_is_not_taken_for_a_bookie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bookie.py").write_text("raise SystemExit('another bookie')\n")
    monkeypatch.chdir(tmp_path)

    async def test() -> None:
        async with LocalCluster(tmp_path / "cluster", bookies=1) as cluster:
            assert len(cluster.bookies()) == 1

    run(test)


def test_last_words_are_those_since_the_last_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = BookieProcess("b", tmp_path / "b", bookie="b", uri="nowhere:", log_path=log)
    words = []
    for _ in range(2):
        process.start()
        wait_until(lambda: not process.running, "it has ended")
        words.append(process.log_tail())
    assert "nowhere" in words[0]
    assert words[1] == words[0], "not those of the start before"


def test_a_running_bookie_can_be_restarted_and_stopped(tmp_path: Path) -> None:
    async def test() -> None:
        async with LocalCluster(tmp_path, bookies=1) as cluster:
            await cluster.restart_bookie(0)
            await cluster.stop_bookie(0)
            assert cluster.processes[0].exit_code == 0
            await cluster.restart_bookie(0)
            assert len(cluster.bookies()) == 1

    run(test)


def test_a_bookie_that_is_killed_comes_back_and_one_that_was_retired_does_not(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        said: list[str] = []
        async with LocalCluster(tmp_path, bookies=2) as cluster:
            first, second = cluster.processes
            keeping = asyncio.ensure_future(cluster.keep_bookies(said.append))
            pid = first.pid
            cluster.kill_bookie(0)
            await until(lambda: len(said) == 1, "it was started again")
            assert "bookie-0 ended with exit code -9 and was started again" in said[0]
            assert first.pid != pid
            await until(lambda: serves(cluster, first), "it serves")
            await cluster.stop_bookie(1)
            await until(lambda: len(said) == 2, "it stays down")
            assert "bookie-1 ended with exit code 0 and is not started again" in said[1]
            store = await open_store(cluster.uri)
            assert await retire(store, second.bookie, None, why="for the test")
            await store.close()
            second.start()
            await until(lambda: len(said) == 3, "it ended again")
            assert "ended with exit code 3 and is not started again: its name is retired" in said[2]
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        assert not first.running

    run(test)


def serves(cluster: LocalCluster, process: BookieProcess) -> bool:
    return any(bookie.pid == process.pid and bookie.address for bookie in cluster.bookies())


def test_a_second_cluster_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with LocalCluster(tmp_path, bookies=1) as cluster:
            with pytest.raises(ClusterRunning, match=f"process {os.getpid()}"):
                async with LocalCluster(tmp_path, bookies=1):
                    pass
            assert len(cluster.bookies()) == 1

    run(test)


def test_a_bookie_that_cannot_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    """And the bookies that could start are ended, and the directory is free again."""

    async def test() -> None:
        async with LocalCluster(tmp_path, bookies=2):
            pass
        for file in (tmp_path / "bookie-0").rglob("*cookie*"):
            file.write_bytes(b"not a cookie")
        cluster = LocalCluster(tmp_path, bookies=2)
        with pytest.raises(ChildFailed, match=r"bookie-0 did not start.*exit code 1") as caught:
            await cluster.__aenter__()
        assert "cookie" in caught.value.log_tail.lower()
        assert not any(process.running for process in cluster.processes)
        async with LocalCluster(tmp_path / "other", bookies=1):
            pass

    run(test)


def test_the_lock_names_the_one_who_holds_it_and_nobody_before(tmp_path: Path) -> None:
    (tmp_path / "cluster.lock").write_text("123456789\n")
    with _locked(tmp_path):
        with pytest.raises(ClusterRunning) as caught, _locked(tmp_path):
            pass
        assert "123456789" not in str(caught.value)
        assert f"process {os.getpid()}" in str(caught.value)


def test_a_directory_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def test() -> None:
        with pytest.raises(InvalidCluster, match="cannot be used"):
            await LocalCluster(tmp_path / "file").__aenter__()

    run(test)


def test_no_bookie_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dlog.cli", "up", "--bookies", "2", "--json"]
    up = subprocess.Popen([*command, "--dir", str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert up.stdout is not None
        found = json.loads(up.stdout.readline())
        pids = [bookie["pid"] for bookie in found["bookies"]]
        assert all(alive(pid) for pid in pids)
        up.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in pids), "the bookies have ended")
    finally:
        up.kill()
        up.communicate()

    async def test() -> None:
        async with LocalCluster(tmp_path, bookies=2):
            pass

    run(test)


@pytest.mark.parametrize("count", [0, -1, 65])
def test_a_cluster_of_a_senseless_size_is_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(InvalidCluster):
        LocalCluster(tmp_path, bookies=count)


def test_a_metadata_store_that_no_uri_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidUri):
        LocalCluster(tmp_path, zookeeper="zookeeper:2181")


@pytest.mark.zookeeper
def test_a_cluster_runs_on_a_zookeeper_of_its_own(tmp_path: Path) -> None:
    async def test() -> None:
        for _ in range(2):
            async with LocalCluster(tmp_path, bookies=1, zookeeper="managed") as cluster:
                assert cluster.uri.startswith("zk://127.0.0.1:")
                assert len(cluster.bookies()) == 1

    run(test)


def test_each_process_of_a_cluster_serves_its_metrics_where_it_is_said(tmp_path: Path) -> None:
    async def test() -> None:
        places = ("127.0.0.1", 0)
        async with LocalCluster(tmp_path, bookies=2, autorecovery=True, metrics=places) as cluster:
            assert list(cluster.metrics) == ["bookie-0", "bookie-1", "autorecovery"]
            for name, address in cluster.metrics.items():
                url = f"{address.removesuffix('/metrics')}/readyz"
                await eventually(partial(is_ready, url), f"{name} is ready")
                page = (await asyncio.to_thread(fetch, address)).decode()
                expected = "dlog_auditor_leads" if name == "autorecovery" else "dlog_bookie_ledgers"
                assert f"\n{expected} " in page

    run(test)


def fetch(url: str) -> bytes:
    with urlopen(url) as answer:
        return bytes(answer.read())


async def is_ready(url: str) -> bool:
    try:
        return bool(json.loads(await asyncio.to_thread(fetch, url))["ready"])
    except OSError:  # not there yet, or 503
        return False


def test_ports_for_metrics_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidCluster, match="no 3 ports for metrics from 65534 on"):
        LocalCluster(tmp_path, metrics=("127.0.0.1", 65534))


def test_a_variable_for_metrics_is_not_for_the_bookies_of_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would all want the same port."""
    monkeypatch.setenv("DLOG_METRICS", "1")

    async def test() -> None:
        async with LocalCluster(tmp_path, bookies=2) as cluster:
            assert cluster.metrics == {}
            assert len(cluster.bookies()) == 2

    run(test)
