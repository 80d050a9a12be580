"""A cluster goes from the previous release to the present one while both write and read: no append
fails, and every reader gets every record once. Clients go back meanwhile; bookies do not, as the
present release has directories that the previous one cannot read.

Both releases are wheels in environments of their own. Part of `make upgrade-test`."""

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from dlog.aio.admin import create_log
from dlog.config import metadata_uri
from dlog.local.zookeeper import ManagedZooKeeper
from dlog.settings import LogSettings
from ledger.cluster import open_namespace
from ledger.errors import LevelTooLow, MetadataError, NoNamespace
from ledger.feature_level import FIRST, LEVEL_MAX
from ledger.feature_level_upgrade import read_held
from ledger.metastore import open_store
from ledger.metastore.port import MetadataStore
from ledger.registry import BookieRegistration, find_registration
from tests.upgrade.processes import Application, Bookie, Process
from tests.upgrade.releases import Release, present, previous
from tests.waiting import PATIENCE_S, eventually, until
from tests.zookeeper import fresh_uri

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not os.environ.get("DLOG_TEST_UPGRADE"), reason="builds two wheels: make upgrade-test"
    ),
    pytest.mark.timeout(1800),
]

BOOKIES: Final = 3
BETWEEN: Final = 200
"""Appends of each writer between two steps."""
LOGS: Final = ("red", "blue")
ENCRYPTED: Final = LogSettings(encrypt_with="one")


@pytest.fixture(scope="module")
def releases() -> tuple[Release, Release]:
    return previous(), present()


class Cluster:
    """Bookies of either release, writers and readers of both."""

    def __init__(self, directory: Path, uri: str, stack: ExitStack) -> None:
        self._directory, self._uri, self._stack = directory, uri, stack
        self._said = directory / "said"
        self._said.mkdir()
        self._started = 0
        self._bookies: dict[int, Bookie] = {}
        self.writers: dict[str, Application] = {}
        self.readers: list[Application] = []
        self._store: MetadataStore | None = None

    @property
    def store(self) -> MetadataStore:
        assert self._store is not None
        return self._store

    def name(self, what: str) -> str:
        self._started += 1
        return f"{self._started:02}-{what}"

    def application(self, release: Release, what: str) -> Application:
        made = Application(release, self._uri, self.name(f"{what}-{release.name}"), self._said)
        return self._stack.enter_context(made)

    def bookie(self, release: Release, index: int) -> Bookie:
        """Start bookie *index*, which does not run."""
        made = Bookie(release, self._uri, self.name(f"b{index}-{release.name}"), self._said)
        self._stack.enter_context(made)
        return made.serve(f"b{index}", self._directory / f"b{index}")

    async def start(self, release: Release) -> None:
        """Start all bookies; the first one makes the namespace."""
        self._bookies[0] = self.bookie(release, 0)
        await eventually(self._is_made, "the namespace is made", timeout_s=2 * PATIENCE_S)
        for index in range(1, BOOKIES):
            self._bookies[index] = self.bookie(release, index)
        for index in range(BOOKIES):
            await self._registered(index, other_than="")

    async def _is_made(self) -> bool:
        self._bookies[0].check()
        try:
            store = await open_store(self._uri)
        except MetadataError:
            return False
        try:
            await open_namespace(store)
        except NoNamespace:
            await store.close()
            return False
        self._store = store
        return True

    async def close(self) -> None:
        for bookie in self._bookies.values():
            bookie.terminate()
        if self._store is not None:
            await self._store.close()

    async def replace(self, index: int, release: Release) -> None:
        """Let bookie *index* be of *release* from now on."""
        before = await find_registration(self.store, f"b{index}")
        self._bookies[index].terminate()
        await self._bookies[index].ended()
        self._bookies[index] = self.bookie(release, index)
        await self._registered(index, other_than=before.incarnation if before else "")

    async def _registered(self, index: int, *, other_than: str) -> BookieRegistration:
        found: list[BookieRegistration] = []

        async def is_there() -> bool:
            self._bookies[index].check()
            one = await find_registration(self.store, f"b{index}")
            found[:] = [] if one is None or one.incarnation == other_than else [one]
            return bool(found)

        await eventually(is_there, f"b{index} is registered", timeout_s=2 * PATIENCE_S)
        return found[0]

    async def goes_on(self) -> None:
        """Wait until all have written and read on."""
        for one in [*self.writers.values(), *self.readers]:
            enough = one.at + BETWEEN

            def is_there(one: Application = one, enough: int = enough) -> bool:
                one.check()
                return one.at >= enough

            await until(is_there, f"{one.name} goes on", timeout_s=3 * PATIENCE_S)

    async def hand_over(self, log: str, release: Release) -> None:
        """Let a process of *release* write *log* from now on."""
        first = await self.writers[log].done("stop") if log in self.writers else 0
        self.writers[log] = self.application(release, log).write(log, first)


def run(
    release: Release, uri: str, *words: str, given: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        release.command(*words),
        input=given,
        env=release.environment(uri),
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )


@pytest.mark.zookeeper
async def test_a_cluster_is_upgraded_under_load_and_clients_go_back_until_its_level_rises(
    tmp_path: Path, zookeeper: ManagedZooKeeper, releases: tuple[Release, Release]
) -> None:
    old, new = releases
    uri = fresh_uri(zookeeper)
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, uri, stack)
        try:
            await cluster.start(old)
            assert (await read_held(cluster.store)).level == FIRST
            for log, release in zip(LOGS, releases, strict=True):
                await cluster.hand_over(log, release)
            await cluster.goes_on()  # so that there is something to read
            for log in LOGS:
                cluster.readers += [
                    cluster.application(each, "reader").read(log) for each in releases
                ]
            await cluster.goes_on()

            for index in range(BOOKIES):
                refused = run(new, uri, "dlog", "cluster", "upgrade")
                assert refused.returncode == 1
                assert f"b{index} runs a release that reads levels up to 1" in refused.stderr
                await cluster.replace(index, new)
                await cluster.goes_on()
            for log, release in zip(LOGS, (new, old), strict=True):
                await cluster.hand_over(log, release)
            await cluster.goes_on()
            with pytest.raises(LevelTooLow):
                await create_log("secret", uri=uri, settings=ENCRYPTED)

            for log, release in zip(LOGS, releases, strict=True):  # clients go back
                await cluster.hand_over(log, release)
            await cluster.goes_on()
            for log in LOGS:  # at the newest level bookies refuse clients of before
                await cluster.hand_over(log, new)
            for reader in cluster.readers:
                if reader.release is old:
                    reader.terminate()
            cluster.readers = [each for each in cluster.readers if each.release is new]
            risen = run(new, uri, "dlog", "cluster", "upgrade")
            assert risen.returncode == 0, risen.stderr
            assert f"at level {LEVEL_MAX} now" in risen.stderr
            await cluster.goes_on()
            await create_log("secret", uri=uri, settings=ENCRYPTED)

            late = cluster.bookie(old, BOOKIES)
            await late.ended(1)
            assert "namespace is of format version 2, expected version 1" in late.said
            client = run(old, uri, "dlog", "log", "list")
            assert client.returncode == 1
            assert "namespace is of format version 2, expected version 1" in client.stderr

            ends = {log: await cluster.writers[log].done("end") for log in LOGS}
            read = [await each.done() for each in cluster.readers]
            assert read == [ends[log] for log in LOGS]
            print(f"\n{sum(ends.values())} appends, {2 * BOOKIES} starts of bookies; none failed")
        finally:
            await cluster.close()


async def test_a_local_cluster_is_upgraded_by_its_next_start_and_stays_so(
    tmp_path: Path, releases: tuple[Release, Release]
) -> None:
    """Its embedded store changes its format, for which all that use it have to have ended."""
    directory, said = tmp_path / "cluster", tmp_path / "said"
    said.mkdir()
    uri = metadata_uri(directory)
    old, new = releases
    for release, record in ((old, "before"), (new, "after")):
        with Process(release, uri, f"up-{release.name}", said) as up:
            up.start("dlog", "up", "--dir", str(directory))

            def is_ready(up: Process = up) -> bool:
                up.check()
                return "Ctrl-C stops" in up.said

            await until(is_ready, f"the cluster of {release.name} is up", timeout_s=2 * PATIENCE_S)
            appended = run(release, uri, "dlog", "log", "append", "log", given=f"{record}\n")
            assert appended.returncode == 0, appended.stderr
            if release is new:
                read = run(new, uri, "dlog", "log", "tail", "log", "--start", "start")
                assert read.stdout.split() == ["before", "after"]
                back = run(old, uri, "dlog", "log", "list")
                assert back.returncode == 1
                assert "is a database of format 3" in back.stderr
            up.terminate()
            await up.ended()
