"""Directories and files that are made here are for their owner alone, whatever the umask."""

import asyncio
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dlog.cli.app import app
from dlog.demo.supervisor import Supervisor
from dlog.local import java
from dlog.local.cluster import LocalCertificates, LocalCluster
from dlog.local.java import Java
from dlog.local.zookeeper import ManagedZooKeeper
from ledger.client import LedgerClient
from ledger.metastore import open_store
from ledger.process import make_private
from ledger.quorum import Quorum
from tests.patience import PATIENT

UMASKS = [0o000, 0o022, 0o077]


@pytest.fixture(params=UMASKS, ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    yield from under(request.param)


@pytest.fixture
def no_umask() -> Iterator[int]:
    yield from under(0)


def under(mask: int) -> Iterator[int]:
    before = os.umask(mask)
    yield mask
    os.umask(before)


def open_to_others(directory: Path) -> list[str]:
    """Return what in *directory*, it too, is not 0700 or, if it is no directory, 0600."""
    found = []
    for path in (directory, *directory.rglob("*")):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue  # of a process that runs
        wanted = 0o700 if stat.S_ISDIR(mode) else 0o600
        if stat.S_IMODE(mode) != wanted:
            found.append(f"{path.relative_to(directory)} {stat.filemode(mode)}")
    return found


def test_a_directory_is_made_with_all_that_is_missing_above_it(tmp_path: Path, umask: int) -> None:
    made = tmp_path / "one" / "two" / "three"
    make_private(made)
    assert not open_to_others(tmp_path / "one")
    make_private(made)
    (tmp_path / "one").chmod(0o750)
    make_private(made / "four")
    assert open_to_others(tmp_path / "one") == [". drwxr-x---"], "what is there stays as it is"
    (made / "file").touch(mode=0o600)
    assert (made / "file").stat().st_mode & 0o777 == 0o600, umask
    with pytest.raises(OSError, match="exists"):
        make_private(made / "file")


@pytest.mark.integration
async def test_all_of_a_cluster_is(tmp_path: Path, no_umask: int) -> None:
    directory = tmp_path / "home" / "cluster"
    async with LocalCluster(directory, bookies=2, autorecovery=True, tls=True) as cluster:
        client = await LedgerClient.connect(cluster.uri, replace(PATIENT, tls=cluster.client_tls))
        writer = await client.create(Quorum(2, 2, 2))
        await writer.add(b"entry")
        await writer.close()
        await client.close()
        assert not open_to_others(tmp_path / "home")
        names = {path.name for path in directory.iterdir()}
        assert {"metadata", "tls", "bookie-0", "bookie-0.log", "autorecovery.log"} <= names
    assert not open_to_others(tmp_path / "home"), no_umask


@pytest.mark.zookeeper
def test_all_of_a_zookeeper_of_ours_is(tmp_path: Path, no_umask: int) -> None:
    tls = LocalCertificates(tmp_path / "made" / "tls").of_zookeeper()
    server = ManagedZooKeeper(tmp_path / "made" / "zookeeper", tls=tls)

    async def scenario() -> None:
        async with server:
            assert server.running

    asyncio.run(scenario())
    assert not open_to_others(tmp_path / "made"), no_umask
    assert list((server.directory / "data").rglob("*"))


async def test_all_of_a_namespace_in_files_is(tmp_path: Path, no_umask: int) -> None:
    place = tmp_path / "made" / "namespace"
    store = await open_store(place.as_uri())
    await store.create("/a", b"1")
    await store.create("/b", ephemeral=True)
    assert not open_to_others(tmp_path / "made")
    await store.close()
    assert not open_to_others(tmp_path / "made"), no_umask


@pytest.mark.integration
async def test_what_the_roles_of_a_demo_say_is(tmp_path: Path, no_umask: int) -> None:
    directory = Path(tempfile.mkdtemp(dir=tmp_path))  # as the demo's
    supervisor = Supervisor(directory, "tests.examples.roles")
    await supervisor.start("leaver")
    await supervisor.stop()
    assert (directory / "leaver.log").exists()
    assert not open_to_others(directory), no_umask


def test_keys_and_certificates_of_commands_are(
    tmp_path: Path, no_umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    for words in (
        ["tls", "init"],
        ["tls", "issue", "app"],
        ["key", "new", "first", "--file", str(home / ".dlog" / "keys")],
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output + result.stderr
    assert not open_to_others(home), no_umask


def test_nobody_else_can_change_the_script_that_starts_java(
    tmp_path: Path, no_umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = java._filtered_home(Java(tmp_path, 21))
    assert (home / "bin" / "java").stat().st_mode & 0o777 == 0o700, no_umask
    assert open_to_others(tmp_path / "cache") == ["dlog/java-21/bin/java -rwx------"]
