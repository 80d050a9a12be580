"""``dlog kafka``: a gateway for Kafka's clients, and the topics that they see."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import CHANGES, READS, SERVES, CommandGroup
from dlog.cli.connections import connected
from dlog.cli.options import KAFKA_PORT, Json, Uri
from dlog.cli.output import (
    Column,
    Value,
    View,
    json_column,
    print_json,
    print_lines,
    print_table,
    report,
    text_column,
    warn,
)
from dlog.cli.runner import failed, run_at, until_signal
from dlog.config import load
from ledger.options import HOST_DEFAULT, PORT_MAX, MetricsHost, MetricsPort
from ledger.values import counted

if TYPE_CHECKING:
    from types import ModuleType

    from dlog.kafka.protocol.topics import TopicRecord

MISSING: Final = "the Kafka gateway needs its extra: pip install 'dlog-ledgers[kafka]'"

app = CommandGroup("cli#kafka", "A gateway for Kafka's clients.")
topic_app = CommandGroup(
    "cli#kafka",
    "Topics, as Kafka's clients see them: list, describe, create.",
)
app.add_typer(topic_app, name="topic")

_TOPIC: "Final[View[TopicRecord]]" = View(
    Column("topic", lambda topic: topic.name),
    Column("partitions", lambda topic: len(topic.logs)),
    json_column("logs", lambda topic: list(topic.logs)),
    text_column("logs", lambda topic: _shown(topic.logs)),
)
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]


@app.define(
    SERVES,
    "dlog kafka start",
    "dlog kafka start --listen 0.0.0.0:9092 --advertise broker-1.example.org:9092",
    "dlog kafka start --partitions 12 --metrics-port 9100",
)
def start(
    *,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0: any free one."),
    ] = f"127.0.0.1:{KAFKA_PORT}",
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address that clients and other gateways reach. Default: that of --listen, with "
            "the name of this machine in place of 0.0.0.0.",
            show_default=False,
        ),
    ] = None,
    partitions: Annotated[
        int,
        typer.Option(help="Partitions of a topic whose creation names no number.", min=1),
    ] = 1,
    auto_create: Annotated[
        bool,
        typer.Option(help="Create topics that clients name and that do not exist."),
    ] = True,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = HOST_DEFAULT,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Serve Kafka's protocol until SIGTERM or Ctrl-C: each topic is one log, or several.

    Start it on several machines for one Kafka cluster: each gateway leads a share of the logs,
    and when one dies the others lead its logs within about a second."""
    host, port = _address(listen, "--listen")
    advertised = None if advertise is None else _address(advertise, "--advertise")

    async def command() -> None:
        serving = serving_kafka()
        from dlog.kafka.metrics import METRICS
        from dlog.kafka.topic_requests import TopicDefaults
        from dlog.metrics import expose
        from ledger.metering.declaration import Exposed, Readiness
        from ledger.metering.http_server import served
        from ledger.security.certificates import Security

        security = await Security.settled(load().secured, serves=True)
        options = serving.GatewayOptions(
            host=host,
            port=port,
            advertised_host=None if advertised is None else advertised[0],
            advertised_port=None if advertised is None else advertised[1],
            topics=TopicDefaults(partitions=partitions, auto_create=auto_create),
        )
        exposed = Exposed()
        with served(exposed, metrics_host, metrics_port, warn, security=security):
            async with (
                connected(uri) as client,
                serving.gateway(client, options, security=security) as running,
            ):
                expose(exposed)
                exposed.add(METRICS, running)

                def readiness() -> Readiness:
                    if running.membership.is_member:
                        return Readiness(ready=True, state="serving")
                    reason = "it has no session of the metadata store, so it leads no log"
                    return Readiness(ready=False, state="alone", reasons=(reason,))

                exposed.readiness = readiness
                if as_json:
                    print_json({"bootstrap": running.address})
                else:
                    typer.echo(f"kafka: {running.address}")
                await until_signal(_wait())

    run_at(uri, command())


@topic_app.define(
    CHANGES,
    "dlog kafka topic create orders --partitions 6",
    "dlog kafka topic create orders --config retention.ms=604800000",
    "dlog kafka topic create orders --log shop/orders",
)
def create(
    topic: Topic,
    *,
    partitions: Annotated[int, typer.Option(help="Number of partitions.", min=1)] = 1,
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="A log that exists, as a partition; repeat it for several, in their order.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A setting by Kafka's name, as retention.ms=604800000; repeat it for several.",
            show_default=False,
        ),
    ] = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Create a topic with logs of its own, or make one of logs that exist.

    A topic of one partition has the log TOPIC, one of several TOPIC-0, TOPIC-1 and so on."""
    configs = dict(_pair(each) for each in config or ())
    if log and (configs or partitions > 1):
        raise typer.BadParameter("give --log without --partitions and --config", param_hint="--log")

    async def command() -> "TopicRecord":
        from dlog.kafka.protocol.topics import log_settings_of
        from dlog.kafka.topic_store import TopicStore

        async with connected(uri) as client:
            store = TopicStore(client)
            if log:
                return await store.adopt(topic, log)
            return await store.create(topic, partitions, log_settings_of(configs))

    created = run_at(uri, command())
    report(
        {"topic": created.name, "logs": list(created.logs)},
        f"created topic {created.name} of {_shown(created.logs)}",
        as_json=as_json,
    )


@topic_app.define(READS, "dlog kafka topic list", "dlog kafka topic list --json", name="list")
def list_(
    prefix: Annotated[str, typer.Option(help="Only topics whose names start with this.")] = "",
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """List topics: those that were created, and logs that are topics by their name."""

    async def command() -> "list[TopicRecord]":
        from dlog.kafka.topic_store import TopicStore

        async with connected(uri) as client:
            table = await TopicStore(client).table()
        found = (table.find(name) for name in table.names() if name.startswith(prefix))
        return [topic for topic in found if topic is not None]

    _TOPIC.print_all(run_at(uri, command()), "there are no topics", as_json=as_json)


@topic_app.define(READS, "dlog kafka topic describe orders", "dlog kafka topic describe o --json")
def describe(topic: Topic, uri: Uri = None, as_json: Json = False) -> None:
    """Show the logs of a topic, the gateways that lead them, and its settings."""

    async def command() -> tuple[list[tuple[int, str, str | None]], dict[str, str]]:
        from dlog.kafka.membership import read_gateways
        from dlog.kafka.protocol.topics import topic_configs_of
        from dlog.kafka.topic_store import TopicStore

        async with connected(uri) as client:
            store = TopicStore(client)
            record = await store.find(topic)
            settings = await store.settings_of(record)
            view = await read_gateways(client.store)
        leaders = [view.leader_of(log) for log in record.logs]
        rows = [
            (number, log, None if leader is None else leader.address)
            for number, (log, leader) in enumerate(zip(record.logs, leaders, strict=True))
        ]
        return rows, topic_configs_of(settings)

    partitions, configs = run_at(uri, command())
    if as_json:
        names = ("partition", "log", "leader")
        rows = [dict(zip(names, row, strict=True)) for row in partitions]
        print_json({"topic": topic, "partitions": rows, "configs": dict[str, Value](configs)})
        return
    print_table(
        ("partition", "log", "leader"),
        ((number, log, leader or "no gateway serves") for number, log, leader in partitions),
    )
    print_lines(configs)


def serving_kafka() -> "ModuleType":
    """Return the module that serves them; leave with a sentence if its extra is missing."""
    try:
        from dlog.kafka import gateway
    except ImportError as error:
        raise failed(f"{MISSING} ({error})") from error
    return gateway


def _address(text: str, option: str) -> tuple[str, int]:
    """Return host and port."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise typer.BadParameter(f"{text!r} is not HOST:PORT", param_hint=option)
    return host, int(port)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--config")
    return name, value


def _shown(logs: tuple[str, ...]) -> str:
    shown = ", ".join(logs[:3])
    return shown if len(logs) <= 3 else f"{shown}, ... ({counted(len(logs), 'log')})"


async def _wait() -> None:
    await asyncio.Event().wait()
