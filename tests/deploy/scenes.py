"""For each alert of the rules a scene: real processes, and then the trouble that it is for."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from bookie.entrylog.format import DIRECTORY as ENTRY_LOGS
from bookie.entrylog.format import SUFFIX
from bookie.index.format import DIRECTORY as INDEX
from dlog.aio import Log
from dlog.local.cluster import LocalCluster
from dlog.local.errors import JavaMissing, ZooKeeperMissing
from dlog.local.zookeeper import ManagedZooKeeper, dying_with_parent
from dlog.settings import LogSettings
from ledger import LedgerClient, Quorum
from ledger.cluster import open_namespace
from ledger.manager.layout import LAYOUTS
from tests.certificates import certificate, put
from tests.deploy.alerting import ROOT, asked, prometheus, queried
from tests.namespaces import made
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S, eventually, until
from tests.zookeeper import fresh_uri

EVERY: Final = "200ms"
QUIET_LOOKS: Final = 5
"""So often the rules are looked at, and the alert is not there, before the trouble is made."""
FIRES_S: Final = 90.0
ANY_PORT: Final = ("127.0.0.1", 0)
METRICS: Final = re.compile(r"metrics are at http://(\S+)/metrics")
LONE: Final = Quorum(1, 1, 1)


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a scene plays."""

    alert: str
    directory: Path
    rules: Path

    @asynccontextmanager
    async def fires(self, *targets: str, once: str = "") -> AsyncIterator[None]:
        """The trouble is made inside: before it the alert is not there, with all *targets*
        scraped and *once*, an expression, true; after it the alert fires."""
        with prometheus(self.directory, targets, rules=self.rules, every=EVERY) as api:
            everybody = f"sum(up) == {len(targets)}"
            for what in filter(None, (everybody, once)):
                await eventually(partial(self._is, api, what), what)
            await self._looked(api, 2)
            for _ in range(QUIET_LOOKS):
                await self._looked(api, 1)
                assert not await self._raised(api), "it is there before there is trouble"
            yield
            await eventually(lambda: self._raised(api), f"{self.alert} fires", timeout_s=FIRES_S)

    async def _is(self, api: str, expression: str) -> bool:
        return bool(await queried(api, expression))

    async def _raised(self, api: str) -> bool:
        return await self._is(api, f'ALERTS{{alertname="{self.alert}", alertstate="firing"}}')

    async def _looked(self, api: str, times: int) -> None:
        """Wait until all rules were looked at so often."""
        for _ in range(times):
            before = await _last_look(api)

            async def is_later(before: str = before) -> bool:
                return await _last_look(api) != before

            await eventually(is_later, "the rules are looked at")

    @contextmanager
    def running(
        self, name: str, *command: str, environment: Mapping[str, str] | None = None
    ) -> Iterator["Process"]:
        """A process with Python's *command*, or if that begins with no dash, any other."""
        argv = [sys.executable, *command] if command[0].startswith("-") else [*command]
        log = self.directory / f"{name}.log"
        with (
            log.open("wb") as out,
            subprocess.Popen(
                dying_with_parent(argv, os.getpid()),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env={**os.environ, "DLOG_AUDIT": "off", **(environment or {})},
                cwd=ROOT,
                text=True,
            ) as popen,
        ):
            try:
                yield Process(popen, log)
            finally:
                popen.kill()

    def dlog(self, uri: str, *arguments: str, **environment: str) -> Any:
        """A `dlog` that runs long, and shows its metrics."""
        command = ("-m", "dlog.cli", *arguments, "--metrics-port", "0", "--uri", uri)
        return self.running(arguments[0], *command, environment=environment)

    def application(self, uri: str, **environment: str) -> Any:
        """See `tests.deploy.application`."""
        command = ("-m", "tests.deploy.application", uri)
        return self.running("application", *command, environment=environment)


@dataclass(frozen=True, slots=True)
class Process:
    popen: "subprocess.Popen[str]"
    log: Path

    async def target(self) -> str:
        """Wait until it says where its metrics are."""
        await self.says(METRICS.pattern)
        found = METRICS.search(self.log.read_text())
        assert found is not None
        return found[1]

    async def says(self, pattern: str) -> None:
        def said() -> bool:
            text = self.log.read_text()
            assert self.popen.poll() is None, f"it ended: {text}"
            return re.search(pattern, text) is not None

        await until(said, f"it says {pattern}")

    def tell(self, line: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{line}\n")
        self.popen.stdin.flush()

    async def told(self, line: str) -> None:
        self.tell(line)
        await self.says(f"{line}: done")


Scene = Callable[[Stage], Awaitable[None]]
SCENES: Final[dict[str, Scene]] = {}


def scene(alert: str) -> Callable[[Scene], Scene]:
    def known(each: Scene) -> Scene:
        assert alert not in SCENES
        SCENES[alert] = each
        return each

    return known


async def _last_look(api: str) -> str:
    (group,) = (await asked(f"{api}/rules"))["groups"]
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
    return str(group["lastEvaluation"])


def targets_of(cluster: LocalCluster) -> list[str]:
    return [
        address.removeprefix("http://").removesuffix("/metrics")
        for address in cluster.metrics.values()
    ]


def cluster_of(stage: Stage, bookies: int, *options: str) -> LocalCluster:
    return LocalCluster(
        stage.directory / "cluster", bookies=bookies, metrics=ANY_PORT, bookie_options=options
    )


async def ordered(uri: str, *arguments: str) -> str:
    """Run a `dlog` to its end; return what it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dlog.cli", *arguments, stdout=subprocess.PIPE,
        env={**os.environ, "DLOG_AUDIT": "off", "DLOG_URI": uri}, cwd=ROOT,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def written(uri: str, log: str, records: int) -> None:
    async with await Log.open(log, uri=uri) as writing:
        await writing.append_many([b"%04d of a log" % at for at in range(records)])


@scene("DlogProcessDown")
async def a_process_dies(stage: Stage) -> None:
    async with cluster_of(stage, 1) as cluster, stage.fires(*targets_of(cluster)):
        cluster.kill_bookie(0)


@scene("DlogBookieNotRegistered")
async def a_bookie_loses_its_metadata_store(stage: Stage) -> None:
    server = ManagedZooKeeper(stage.directory / "zookeeper")
    try:
        await server.start()
    except (JavaMissing, ZooKeeperMissing) as error:
        pytest.skip(str(error))
    try:
        uri = await made(fresh_uri(server))
        bookie = ("-m", "bookie", "--uri", uri, "--dir", f"{stage.directory}/b")
        with stage.running("bookie", *bookie, "--metrics-port=0") as process:
            await process.says("is ready on")
            async with stage.fires(await process.target(), once="dlog_bookie_registered == 1"):
                server.kill()
    finally:
        await server.stop()


@scene("DlogCertificateExpires")
async def a_certificate_is_not_renewed(stage: Stage) -> None:
    files = stage.directory / "tls"
    tls = put(files, certificate("bookie", bookie="b", days=90.0))
    uri = await made(f"file://{stage.directory}/metadata")
    bookie = ("-m", "bookie", "--uri", uri, "--dir", f"{stage.directory}/b", "--id=b")
    options = ("--tls=optional", f"--tls-ca={tls.ca}", f"--tls-cert={tls.cert}")
    with stage.running(
        "bookie", *bookie, *options, f"--tls-key={tls.key}", "--metrics-port=0"
    ) as process:
        await process.says("is ready on")
        known = "dlog_tls_certificate_expires_seconds"
        async with stage.fires(await process.target(), once=known):
            put(files, certificate("bookie", bookie="b", days=5.0))


@scene("DlogBookieReadOnly")
async def an_operator_makes_a_bookie_read_only(stage: Stage) -> None:
    async with cluster_of(stage, 1) as cluster, stage.fires(*targets_of(cluster)):
        await ordered(cluster.uri, "bookie", "readonly", "on", "bookie-0")


@scene("DlogBookieInDoubt")
async def a_bookie_loses_its_index(stage: Stage) -> None:
    async with cluster_of(stage, 3) as cluster:
        log = await Log.open("orders", uri=cluster.uri)
        await log.append(b"a record")
        await log.abandon()  # the bookie cannot know where it ends
        lossy, *_ = targets_of(cluster)
        async with stage.fires(lossy):
            await cluster.stop_bookie(0)
            cluster.kill_bookie(1)
            cluster.kill_bookie(2)
            for path in (cluster.processes[0].directory / INDEX).rglob("*"):
                if path.is_file():
                    path.unlink()
            await cluster.restart_bookie(0)


SMALL_DISK: Final = """
mount -t tmpfs -o size=512m none "$1" && cd "$1" && shift || exit 1
"$@" &
read percent
set -- $(stat -f -c '%a %b %S' .)  # blocks that are free, and all, and their size
fallocate -l $((($1 - $2 * (100 - percent) / 100) * $3)) ballast
wait
"""
"""Runs a bookie, which takes 128 MB for its journal, and fills the disk when it is told to."""


@scene("DlogDiskFilling")
async def a_disk_fills_up(stage: Stage) -> None:
    small = stage.directory / "small"
    small.mkdir()
    uri = await made(f"file://{stage.directory}/metadata")
    within = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK, "sh")
    bookie = (sys.executable, "-m", "bookie", "--die-with-parent", "--uri", uri)
    options = ("--dir", f"{small}/b", "--disk-reserve=1M", "--metrics-port=0")
    environment = {"PYTHONPATH": str(ROOT)}
    with stage.running(
        "bookie", *within, str(small), *bookie, *options, environment=environment
    ) as process:
        await process.says("is ready on")
        async with stage.fires(await process.target(), once="dlog_bookie_disk_free_bytes"):
            process.tell("92")


@asynccontextmanager
async def troubled_bookie(stage: Stage) -> AsyncIterator[tuple[str, Process]]:
    """See `tests.deploy.troubled_bookie`; yield the URI of its cluster, too."""
    uri = await made(f"file://{stage.directory}/metadata")
    bookie = ("-m", "tests.deploy.troubled_bookie", str(stage.directory), "--uri", uri)
    options = ("--dir", f"{stage.directory}/b", "--metrics-port=0")
    with stage.running("bookie", *bookie, *options) as process:
        await process.says("is ready on")
        yield uri, process


@scene("DlogJournalSlow")
async def a_disk_becomes_slow(stage: Stage) -> None:
    async with troubled_bookie(stage) as (uri, process), appending(uri):
        synced = "sum(rate(dlog_bookie_journal_sync_seconds_count[5s])) > 0"
        async with stage.fires(await process.target(), once=synced):
            (stage.directory / "slow").touch()


@asynccontextmanager
async def appending(uri: str) -> AsyncIterator[None]:
    """Add entries of a ledger all the time."""
    client = await LedgerClient.connect(uri, PATIENT)
    await client.bookies.wait_for(1, PATIENCE_S)
    writer = await client.create(LONE)

    async def add() -> None:
        while True:
            await writer.add(b"an entry")
            await asyncio.sleep(0.01)

    adding = asyncio.ensure_future(add())
    try:
        yield
        assert not adding.done()
    finally:
        adding.cancel()
        await asyncio.gather(adding, return_exceptions=True)
        await client.close()


@asynccontextmanager
async def repaired(stage: Stage, *, fires: str) -> AsyncIterator[tuple[LocalCluster, Process]]:
    """Three bookies that each have a copy of all, and a process of repair."""
    async with cluster_of(stage, 3) as cluster:
        await written(cluster.uri, "orders", 10)
        repair = ("autorecovery", "start", "--delay-s", "0.2", "--grace-s", "0.2")
        with stage.dlog(cluster.uri, *repair) as process:
            async with stage.fires(await process.target(), once=fires):
                yield cluster, process


LEADS: Final = "dlog_auditor_leads == 1"


@scene("DlogUnderReplicated")
async def a_bookie_is_lost_for_good(stage: Stage) -> None:
    async with repaired(stage, fires=f"{LEADS} and dlog_repair_open_ledgers == 0") as (cluster, _):
        cluster.kill_bookie(0)


@scene("DlogTooManyBookiesLost")
async def most_bookies_are_lost(stage: Stage) -> None:
    async with repaired(stage, fires=f"{LEADS} and dlog_auditor_alarm == 0") as (cluster, _):
        cluster.kill_bookie(0)
        cluster.kill_bookie(1)


@scene("DlogNoAuditor")
async def the_only_process_of_repair_dies(stage: Stage) -> None:
    async with repaired(stage, fires=LEADS) as (_, process):
        process.popen.kill()


@scene("DlogReaderLags")
async def a_reader_stops_reading(stage: Stage) -> None:
    async with cluster_of(stage, 3) as cluster:
        with stage.application(cluster.uri) as process:
            await process.told("append orders 3")
            await process.told("read orders 3")
            shown = 'dlog_read_lag_seconds{log="orders"}'
            async with stage.fires(await process.target(), once=shown):
                await process.told("append orders 1")


@scene("DlogLogWithoutLeader")
async def the_only_leader_dies(stage: Stage) -> None:
    async with cluster_of(stage, 3) as cluster:
        leading = ("-m", "tests.integration.leading", cluster.uri, "orders")
        janitor = ("janitor", "run", "--interval", "200ms")
        with (
            stage.running("leading", *leading) as leader,
            stage.dlog(cluster.uri, *janitor) as process,
        ):
            await leader.says(r"\d+ \d+")
            shown = "dlog_leaderless_logs == 0"
            async with stage.fires(await process.target(), once=shown):
                leader.popen.kill()


@scene("DlogConsumerStuck")
async def a_consumer_does_nothing_any_more(stage: Stage) -> None:
    async with cluster_of(stage, 3) as cluster:
        await written(cluster.uri, "orders", 10)
        async with await Log.consumer("billing", "orders", uri=cluster.uri) as consumer:
            for _ in range(10):
                await anext(consumer)
            await consumer.commit()
        with stage.dlog(cluster.uri, "janitor", "run", "--interval", "200ms") as process:
            shown = 'dlog_consumer_lag_records{log="orders"} == 0'
            async with stage.fires(await process.target(), once=shown):
                await written(cluster.uri, "orders", 10)


async def the_object_storage_is_lost(stage: Stage) -> None:
    folder, shown = stage.directory / "objects", "dlog_archived_segments_total == 1"
    async with cluster_of(stage, 3) as cluster:
        await written(cluster.uri, "orders", 10)
        await ordered(cluster.uri, "log", "settings", "set", "orders", f"archive=file://{folder}")
        with stage.dlog(cluster.uri, "archiver", "run", "--interval", "200ms") as process:
            async with stage.fires(await process.target(), once=shown):
                folder.rename(folder.with_name("lost"))
                folder.write_bytes(b"no directory")
                await written(cluster.uri, "orders", 10)


for alert in ("DlogArchiveStuck", "DlogArchiverFails"):
    scene(alert)(the_object_storage_is_lost)


@scene("DlogAppendsUnknown")
async def a_writer_loses_all_bookies(stage: Stage) -> None:
    async with cluster_of(stage, 3) as cluster:
        hasty = {"DLOG_TIMEOUT_S": "2", "DLOG_BOOKIE_TIMEOUT_S": "1"}
        with stage.application(cluster.uri, **hasty) as process:
            await process.told("append orders 3")
            shown = 'dlog_failed_records_total{outcome="unknown"} == 0'
            async with stage.fires(await process.target(), once=shown):
                for index in range(3):
                    cluster.kill_bookie(index)
                process.tell("append orders 1")


@scene("DlogReplicasDiffer")
async def a_memory_changes_what_was_read(stage: Stage) -> None:
    async with troubled_bookie(stage) as (uri, _):
        async with await Log.open("orders", uri=uri, settings=LogSettings(quorum=LONE)) as log:
            await log.append(b"a record")
        with stage.application(uri) as process:
            shown = "dlog_ledger_digest_mismatches_total == 0"
            async with stage.fires(await process.target(), once=shown):
                (stage.directory / "wrong").touch()
                process.tell("read orders 1")


@scene("DlogBookieCannotRead")
async def disks_rot(stage: Stage) -> None:
    async with cluster_of(stage, 3) as cluster:
        async with await Log.open("orders", uri=cluster.uri) as log:
            for number in range(9):
                await log.append(b"record %d is right" % number)
        for index, bookie in enumerate(cluster.processes):
            await cluster.stop_bookie(index)  # nothing comes back from its journal
            rot(bookie.directory, [b"%d" % number for number in range(index, 9, 3)])
            await cluster.restart_bookie(index)
        shown = "sum(dlog_bookie_damaged_reads_total) == 0"
        with stage.application(cluster.uri) as process:
            async with stage.fires(*targets_of(cluster), once=shown):
                await process.told("read orders 9")


def rot(directory: Path, numbers: Iterable[bytes]) -> None:
    """Change records on the disk: each has two right copies elsewhere, whomever a reader asks."""
    (log,) = (directory / ENTRY_LOGS).glob(f"*{SUFFIX}")
    content = log.read_bytes()
    for number in numbers:
        right = b"record %s is right" % number
        assert right in content
        content = content.replace(right, right.replace(b"right", b"wrong"))
    log.write_bytes(content)


@scene("DlogGarbageWaits")
async def a_metadata_store_forgets_ledgers(stage: Stage) -> None:
    async with cluster_of(stage, 1, "--gc-interval=1") as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        try:
            for _ in range(5):
                writer = await client.create(LONE)
                await writer.add(b"an entry")
                await writer.close()
            collected = 'dlog_bookie_collector_runs_total{kind="gc"} > 0'
            async with stage.fires(*targets_of(cluster), once=collected):
                layout = LAYOUTS[(await open_namespace(client.store)).layout]
                async for ledger_id in client.list():
                    await client.store.delete(layout.path(ledger_id))
        finally:
            await client.close()
