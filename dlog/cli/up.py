"""``dlog up``: a cluster on this machine."""

import shlex
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import SERVES, CommandGroup
from dlog.cli.console import PORT_DEFAULT, login_shown, serving_console
from dlog.cli.options import KAFKA_PORT, Json
from dlog.cli.output import print_json, print_table, warn
from dlog.cli.runner import run
from dlog.config import default_directory, default_uri
from ledger.options import (
    HOST_DEFAULT,
    PORT_HELP,
    PORT_MAX,
    PORT_VARIABLE,
    MetricsHost,
)
from ledger.options import directory as directory_of

if TYPE_CHECKING:
    from dlog.local.cluster import LocalCluster

ARCHIVER_S: Final = 10.0
"""Pause between two passes of the archiver: nobody else uses this cluster much."""
app = CommandGroup("cli#ledgers-bookies-a-local-cluster")


@app.define(
    SERVES,
    "dlog up",
    "dlog up --bookies 5 --dir ./cluster",
    "dlog up --metrics-port 9100",
    "dlog up --tls",
    "dlog up --console",
    "dlog up --kafka",
    "dlog up --zookeeper managed",
    "dlog up --zookeeper zk://127.0.0.1:2181/dlog",
)
def up(
    *,
    bookies: Annotated[int, typer.Option(help="Number of bookies to run.", min=1, max=64)] = 3,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Directory of the data; the next start finds them.",
            parser=directory_of,
            show_default=False,
        ),
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(
            metavar="URI|managed",
            help="Keep metadata in this ZooKeeper (zk://...), or in one started for the purpose "
            "(managed; needs Java). Default: embedded, in the directory.",
        ),
    ] = None,
    autorecovery: Annotated[
        bool,
        typer.Option(
            help="Also run an autorecovery process, which re-replicates the data of lost bookies."
        ),
    ] = True,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help=f"{PORT_HELP} Each process has its own: this one, and those after it.",
            envvar=PORT_VARIABLE,
            min=0,
            max=PORT_MAX,
            show_default=False,
        ),
    ] = None,
    metrics_host: MetricsHost = HOST_DEFAULT,
    tls: Annotated[
        bool,
        typer.Option(
            "--tls",
            help="Secure all connections, with certificates of an authority that is created in "
            "the directory (needs 'dlog-ledgers[tls]'). Clients need the settings that are "
            "printed.",
        ),
    ] = False,
    console: Annotated[
        bool,
        typer.Option(
            "--console",
            help="Also show the cluster in a browser (needs 'dlog-ledgers[console]').",
        ),
    ] = False,
    console_port: Annotated[
        int,
        typer.Option(
            help="Port of the console on this machine; 0: any free port.", min=0, max=PORT_MAX
        ),
    ] = PORT_DEFAULT,
    kafka: Annotated[
        bool,
        typer.Option("--kafka", help="Also serve Kafka's protocol (needs 'dlog-ledgers[kafka]')."),
    ] = False,
    kafka_port: Annotated[
        int,
        typer.Option(
            help="Port for Kafka's clients on this machine; 0: any free one.", min=0, max=PORT_MAX
        ),
    ] = KAFKA_PORT,
    as_json: Json = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C: metadata store and bookies.

    Data stay in ~/.dlog/local, or in --dir. Programs on this machine find the cluster by the
    line that is printed, or automatically if it is in the default place.

    Logs that have object storage (their setting archive) are archived, every 10 s.

    A bookie that dies is restarted. It stays down, which is reported, after several deaths
    within a minute, if it was stopped, and if its name was retired."""
    from dlog.local.cluster import MANAGED, LocalCluster

    async def command() -> None:
        cluster = LocalCluster(
            directory or default_directory(),
            bookies=bookies,
            zookeeper=zookeeper,
            autorecovery=autorecovery,
            metrics=None if metrics_port is None else (metrics_host, metrics_port),
            tls=tls,
        )
        if zookeeper == MANAGED:
            _say("starting ZooKeeper and", bookies, "bookies ...", as_json=as_json)
        await _up(
            cluster,
            as_json=as_json,
            console_port=console_port if console else None,
            kafka_port=kafka_port if kafka else None,
        )

    run(command())


async def _up(
    cluster: "LocalCluster", *, as_json: bool, console_port: int | None, kafka_port: int | None
) -> None:
    import asyncio

    stop = asyncio.Event()
    with ExitStack() as handlers:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop.set)
            handlers.callback(loop.remove_signal_handler, number)
        running = asyncio.ensure_future(
            _run(cluster, as_json=as_json, console_port=console_port, kafka_port=kafka_port)
        )
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        running.cancel()
        try:
            await running
        except asyncio.CancelledError:
            _say("the cluster is down; its data stay in", cluster.directory, as_json=as_json)


async def _run(
    cluster: "LocalCluster", *, as_json: bool, console_port: int | None, kafka_port: int | None
) -> None:
    async with cluster, AsyncExitStack() as stack:
        beside: dict[str, str] = {}
        await stack.enter_async_context(_archiver(cluster))
        if console_port is not None:
            beside |= await stack.enter_async_context(_console(cluster, console_port))
        if kafka_port is not None:
            beside |= await stack.enter_async_context(_kafka(cluster, kafka_port))
        _show(cluster, beside, as_json=as_json)
        await cluster.keep_bookies(warn)


@asynccontextmanager
async def _archiver(cluster: "LocalCluster") -> AsyncIterator[None]:
    """Archive the logs of *cluster* that have object storage, in a process beside this one."""
    import asyncio
    import os

    from bookie.autorecovery_supervisor import keep_child
    from dlog.local.zookeeper import dying_with_parent

    module = ("dlog.cli", "archiver", "run", "--interval", f"{ARCHIVER_S:g}s")
    keeping = asyncio.ensure_future(
        keep_child(
            "archiver",
            module,
            cluster.uri,
            log_path=cluster.directory / "archiver.log",
            tls=cluster.client_tls,
            prefix=dying_with_parent((), os.getpid()),
        )
    )
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})


@asynccontextmanager
async def _console(cluster: "LocalCluster", port: int) -> AsyncIterator[Mapping[str, str]]:
    """Serve the console of *cluster* for this machine; yield where it is, and how to log in."""
    serving = serving_console()
    from ledger.client import ClientConfig, LedgerClient

    client = await LedgerClient.connect(cluster.uri, ClientConfig(tls=cluster.client_tls))
    try:
        async with serving.console(client, serving.ConsoleOptions(port=port)) as found:
            with login_shown(found, cluster.directory) as login:
                yield {"console": found.address, **login}
    finally:
        await client.close()


@asynccontextmanager
async def _kafka(cluster: "LocalCluster", port: int) -> AsyncIterator[Mapping[str, str]]:
    """Serve Kafka's clients on this machine; yield where."""
    from dlog.cli.kafka import serving_kafka
    from ledger.client import ClientConfig, LedgerClient
    from ledger.security.certificates import Security

    serving = serving_kafka()
    security = await Security.settled(cluster.client_tls, serves=True)
    client = await LedgerClient.connect(cluster.uri, ClientConfig(tls=cluster.client_tls))
    try:
        options = serving.GatewayOptions(port=port)
        async with serving.gateway(client, options, security=security) as running:
            yield {"kafka": running.address}
    finally:
        await client.close()


def _show(cluster: "LocalCluster", beside: Mapping[str, str], *, as_json: bool) -> None:
    found, metrics = cluster.bookies(), cluster.metrics
    if as_json:
        rows = [
            {
                "name": bookie.name,
                "pid": bookie.pid,
                "address": bookie.address,
                "directory": str(bookie.directory),
            }
            for bookie in found
        ]
        facts: dict[str, object] = {
            "uri": cluster.uri,
            "bookies": rows,
            "metrics": dict(metrics),
        }
        if "console" in beside:
            facts["console"] = beside["console"]
            facts["console_login_file"] = beside.get("login file")
        if "kafka" in beside:
            facts["kafka"] = beside["kafka"]
        print_json({**facts, "environment": dict(cluster.environment)})
        return
    print_table(
        ("bookie", "address", "pid", "directory"),
        ((bookie.name, bookie.address, bookie.pid, bookie.directory) for bookie in found),
    )
    if metrics:
        sys.stdout.write("\n")
        print_table(("process", "metrics"), metrics.items())
    if beside:
        sys.stdout.write("\n")
        for name, value in beside.items():
            sys.stdout.write(f"{name}: {value}\n")
    note = "   # the default" if cluster.uri == default_uri() else ""
    sys.stdout.write(f"\nexport DLOG_URI={shlex.quote(cluster.uri)}{note}\n")
    for name, value in cluster.environment.items():
        if name != "DLOG_URI":
            sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
    sys.stdout.write("\n")
    sys.stdout.write("Ctrl-C stops the cluster.\n")
    sys.stdout.flush()


def _say(*words: object, as_json: bool) -> None:
    if not as_json:
        typer.echo(" ".join(map(str, words)), err=True)
