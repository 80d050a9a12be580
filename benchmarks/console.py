"""The console of a large namespace: how soon its pages come, its memory, its processor.

    python -m benchmarks.console [--logs 10000] [--ledgers 100000] [--seconds 60] [--zookeeper]
                                 [--dir DIR]

Logs with consumers and closed ledgers are made in the metadata store of a new cluster of three
bookie processes, some logs are written all the time, and `dlog console` runs as a process of its
own: first while nobody looks, then with pages open that stay up to date, then with a bookie killed.
"""

import argparse
import asyncio
import http.client
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final
from urllib.parse import quote, urlsplit

from benchmarks.figures import Figure, percentile, print_table
from benchmarks.peers.usage import Usage
from benchmarks.repair.bench import LargeZooKeeper
from dlog.aio import Log
from dlog.aio.read.segments import stamp
from dlog.aio.store import new_incarnation
from dlog.console.poller import WANTED_S
from dlog.local.cluster import LocalCluster
from dlog.manifest import Manifest, Sealed, Segment
from dlog.names import LOGS_PATH
from dlog.protocol.consumer_steps import ConsumerState, ConsumerSteps, encode
from dlog.protocol.manifest_steps import ManifestSteps
from ledger import LedgerClient, Quorum
from ledger.entry import access_key
from ledger.errors import NodeExists
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.log_events import now_ms
from ledger.manager.ids import BlockIds
from ledger.manager.layout import DEFAULT_LAYOUT, LAYOUTS
from ledger.metadata import SECRET_BYTES, Fragment, LedgerMetadata, LedgerState
from ledger.metastore.ops import CreateOp, Op
from ledger.metastore.port import MetadataStore

BOOKIES: Final = 3
WRITTEN: Final = 20
"""Logs that are written all the time, beside those that are made."""
RECORDS: Final = 1_000
"""Of each segment that is made, by its metadata: bookies have none of it."""
TIMES: Final = 100
"""So often each page is asked for."""
OPEN: Final = ("/live/cluster", "/live/logs", "/live/log?name=written-00", "/live/logs?from=5000")
"""Pages that stay up to date."""
FIRST_S: Final = 0.5
MEMORY: Final = 300e6
_TOGETHER: Final = 20
"""Logs that are made in one transaction."""
_PATIENCE_S: Final = 60.0
_LAYOUT: Final = LAYOUTS[DEFAULT_LAYOUT]

Say = Callable[..., None]
"""Takes name, value and unit of a figure, and what it may be at most."""


async def make(client: LedgerClient, logs: int, ledgers: int) -> tuple[str, int]:
    """Make *logs* logs, which share *ledgers* closed ledgers; return the last of each."""
    store, ids = client.store, BlockIds(client.store)
    with suppress(NodeExists):
        await store.create(LOGS_PATH)
    bookies = tuple(sorted(BookieId(each.bookie) for each in client.bookies.available()))
    parents: set[str] = set()
    log, ledger = "", LedgerId(0)
    for first in range(0, logs, _TOGETHER):
        ops: list[Op] = []
        for number in range(first, min(logs, first + _TOGETHER)):
            share = ledgers * (number + 1) // logs - ledgers * number // logs
            log = f"team-{number % 40:02}/log-{number:05}"
            taken = [await ids.take() for _ in range(share)]
            ops += made(log, taken, bookies)
            ledger = taken[-1] if taken else ledger
        await _make_parents(store, ops, parents)
        await store.multi(ops)
    return log, ledger


def made(log: str, ledgers: Sequence[LedgerId], bookies: tuple[BookieId, ...]) -> list[Op]:
    """Return what makes the nodes of a log that was written, closed, and processed in part."""
    ms, incarnation, segments, ops = now_ms(), new_incarnation(), list[Segment](), list[Op]()
    for at, ledger in enumerate(ledgers):
        secret = secrets.token_bytes(SECRET_BYTES)
        metadata = LedgerMetadata(
            quorum=Quorum(3, 3, 2),
            fragments=(Fragment(EntryId(0), bookies),),
            state=LedgerState.CLOSED,
            last_entry=EntryId(RECORDS - 1),
            length=100 * RECORDS,
            access_key=access_key(secret),
            secret=secret,
            creation_token=secrets.token_bytes(16),
            created_ms=ms,
            custom=stamp(log, incarnation, at + 1, epoch=1, owner="a benchmark"),
        )
        ops.append(CreateOp(_LAYOUT.path(ledger), metadata.encode()))
        last = RECORDS * (at + 1)
        sealed = Sealed(EntryId(RECORDS - 1), RECORDS, 100 * RECORDS, last, last, ms, ms)
        segments.append(Segment(at + 1, ledger, ms, RECORDS * at, sealed))
    steps, consumer = ManifestSteps(log), ConsumerSteps(log, "billing", token="")
    manifest = Manifest(
        incarnation=incarnation,
        segments=tuple(segments),
        next_segment=len(segments) + 1,
        epoch=1 if segments else 0,
        owner="a benchmark",
    )
    state = ConsumerState(
        incarnation=new_incarnation(), log_incarnation=incarnation, position=500, updated_ms=ms
    )
    ops.append(CreateOp(steps.path, manifest.encode(log)))
    ops.append(CreateOp(steps.mark_of(manifest.life)))
    ops.append(CreateOp(consumer.path.rpartition("/")[0]))
    ops.append(CreateOp(consumer.path, encode(state)))
    return ops


async def _make_parents(store: MetadataStore, ops: Sequence[Op], known: set[str]) -> None:
    for parent in {op.path.rpartition("/")[0] for op in ops} - {op.path for op in ops} - known:
        with suppress(NodeExists):
            await store.create(parent)
        known.add(parent)


@asynccontextmanager
async def written(client: LedgerClient) -> AsyncIterator[None]:
    """Append ten records a second to each of a few logs."""
    logs = [await Log.open(f"written-{at:02}", client=client) for at in range(WRITTEN)]

    async def write() -> None:
        while True:
            await asyncio.gather(
                *(log.append(b"a record of a log that is written") for log in logs)
            )
            await asyncio.sleep(0.1)

    writing = asyncio.create_task(write())
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.wait([writing])
        for log in logs:
            await log.abandon()


@dataclass(frozen=True, slots=True)
class Console:
    pid: int
    address: str
    started: float
    cookie: str
    """Of a session that has logged in."""

    def get(self, path: str) -> tuple[float, str]:
        """Return how long a page took, on a connection of its own, and the page."""
        began = time.perf_counter()
        connection = http.client.HTTPConnection(self.address, timeout=_PATIENCE_S)
        try:
            connection.request("GET", path, headers={"Cookie": self.cookie})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        assert answer.status == 200, f"{path}: {answer.status} {text}"
        return time.perf_counter() - began, text

    def shows(self, path: str, wanted: str) -> float:
        """Return how long after the start of the process a page has *wanted* in it."""
        deadline = time.perf_counter() + _PATIENCE_S
        while wanted not in self.get(path)[1]:
            assert time.perf_counter() < deadline, f"{path} has no {wanted}"
            time.sleep(0.01)
        return time.perf_counter() - self.started

    def usage(self) -> Usage:
        return Usage.of([self.pid])

    def share(self, seconds: float) -> float:
        """Return which part of a processor it takes while *seconds* pass, in percent."""
        before, began = self.usage().cpu_s, time.perf_counter()
        time.sleep(seconds)
        return 100 * (self.usage().cpu_s - before) / (time.perf_counter() - began)


@contextmanager
def console(uri: str, directory: Path) -> Iterator[Console]:
    started = time.perf_counter()
    command = [sys.executable, "-m", "dlog.cli", "console", "--port", "0", "--json", "--uri", uri]
    with (
        (directory / "console.log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            address = urlsplit(said["console"]).netloc
            login = Path(said["login_file"]).read_text().splitlines()[0]
            yield Console(process.pid, address, started, logged_in(address, login))
        finally:
            process.terminate()


def logged_in(address: str, login: str) -> str:
    """Return the cookie of the session that the address *login* begins."""
    connection = http.client.HTTPConnection(address, timeout=_PATIENCE_S)
    try:
        connection.request("GET", login.partition(address)[2])
        cookie = connection.getresponse().headers["set-cookie"]
    finally:
        connection.close()
    return cookie.partition(";")[0]


@contextmanager
def open_pages(at: Console) -> Iterator[None]:
    """Hold pages open, and read what they are sent, as browsers do."""
    # Their own process: what they take is not what is measured.
    code = (
        "import sys, threading, urllib.request as u\n"
        "def read(url):\n"
        "    for line in u.urlopen(u.Request(url, headers={'Cookie': sys.argv[1]})): pass\n"
        "for url in sys.argv[2:]: threading.Thread(target=read, args=(url,)).start()\n"
    )
    urls = [f"http://{at.address}{path}" for path in OPEN]
    with subprocess.Popen([sys.executable, "-c", code, at.cookie, *urls]) as browser:
        try:
            yield
        finally:
            browser.kill()


def look(at: Console, log: str, ledger: int, options: argparse.Namespace, say: Say) -> None:
    """Measure while all is well."""
    logs, ledgers, seconds = options.logs + WRITTEN, options.ledgers + WRITTEN, options.seconds
    say("the address is said, after the start", time.perf_counter() - at.started, "s")
    say("the first page after that", at.get("/")[0], "s", FIRST_S)
    say("the first page shows the bookies, after the start", at.shows("/", "bookie-0"), "s")
    say("Logs knows them all, after the start", at.shows("/logs", f"of {logs:,}"), "s")
    say("Ledgers knows them all, after the start", at.shows("/ledgers", f"{ledgers:,} led"), "s")
    last = (logs - 1) // 50 * 50
    pages = {
        "first page": "/",
        "Logs": "/logs",
        "Logs, its last page": f"/logs?from={last}",
        "Logs, searched": "/logs?q=log-0777",
        "a log": f"/log?name={quote(log)}",
        "a log that is written": "/log?name=written-00",
        "records": "/records?log=written-00&at=end",
        "Ledgers": "/ledgers",
        "a ledger": f"/ledger?id={ledger}",
    }
    for name, path in pages.items():
        timed(at, name, path, say)
    time.sleep(min(WANTED_S, seconds))  # so long it follows what was on a page
    say("processor while nobody looks", at.share(seconds), "%")
    with open_pages(at):
        timed(at, f"first page while {len(OPEN)} pages are open", "/", say)
        say(f"processor while {len(OPEN)} pages are open", at.share(seconds), "%")


def timed(at: Console, name: str, path: str, say: Say) -> None:
    at.get(path)  # what is asked for once is not followed yet
    times = [at.get(path)[0] for _ in range(TIMES)]
    aim = FIRST_S if path == "/" else None
    say(f"{name}, p50", median(times), "s", aim)
    say(f"{name}, p99", percentile(times, 99), "s", aim)


async def measure(options: argparse.Namespace, directory: Path) -> list[Figure]:
    figures: list[Figure] = []

    def say(name: str, value: float, unit: str, aim: float | None = None) -> None:
        if unit == "s" and value < 1:
            value, unit, aim = value * 1e3, "ms", None if aim is None else aim * 1e3
        shown = "" if aim is None else f"<= {aim:g}"
        met = None if aim is None else value <= aim
        figures.append(Figure(name, value, unit, aim=shown, met=met))

    async with AsyncExitStack() as stack:
        uri = None
        if options.zookeeper:
            server = await stack.enter_async_context(LargeZooKeeper(directory / "zookeeper"))
            uri = server.uri("/dlog")
        cluster = LocalCluster(directory / "cluster", bookies=BOOKIES, zookeeper=uri)
        await stack.enter_async_context(cluster)
        client = await LedgerClient.connect(cluster.uri)
        stack.push_async_callback(client.close)
        await client.bookies.wait_for(BOOKIES, _PATIENCE_S)
        began = time.perf_counter()
        log, ledger = await make(client, options.logs, options.ledgers)
        say("made in", time.perf_counter() - began, "s")
        await stack.enter_async_context(written(client))
        with console(cluster.uri, directory) as at:
            await asyncio.to_thread(look, at, log, ledger, options, say)
            cluster.kill_bookie(BOOKIES - 1)
            await asyncio.to_thread(at.shows, "/", "has not answered for")
            await asyncio.to_thread(timed, at, "first page while a bookie is away", "/", say)
            share = await asyncio.to_thread(at.share, options.seconds)
            say("processor while a bookie is away", share, "%")
            say("memory", at.usage().resident_bytes / 1e6, "MB", MEMORY / 1e6)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--logs", type=int, default=10_000, help="that are made")
    add("--ledgers", type=int, default=100_000, help="that the logs share")
    add("--seconds", type=float, default=60.0, help="for each measurement of the processor")
    add("--zookeeper", action="store_true", help="a real one, instead of file://")
    add("--dir", type=Path, default=Path("build"), help="where the cluster lies")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.dir.absolute()) as directory:
        print_table(asyncio.run(measure(options, Path(directory))))


if __name__ == "__main__":
    main()
