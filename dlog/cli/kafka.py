"""``dlog kafka``: a gateway for Kafka's clients, and the topics that they see."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import CHANGES, READS, SERVES, CommandGroup
from dlog.cli.connections import connected, opened_store
from dlog.cli.options import KAFKA_PORT, Json, Uri
from dlog.cli.output import (
    Column,
    Value,
    View,
    format_time,
    json_column,
    print_json,
    print_lines,
    print_table,
    report,
    text_column,
    warn,
)
from dlog.cli.rights import check_operator
from dlog.cli.runner import failed, run_at, until_signal
from dlog.config import load
from ledger.options import HOST_DEFAULT, PORT_MAX, MetricsHost, MetricsPort
from ledger.values import counted

if TYPE_CHECKING:
    from types import ModuleType

    from dlog.kafka.protocol.topics import TopicRecord
    from dlog.kafka.protocol.users import KafkaUsers
    from dlog.kafka.tokens import TokenSettings

MISSING: Final = "the Kafka gateway needs its extra: pip install 'dlog-ledgers[kafka]'"

app = CommandGroup("cli#kafka", "A gateway for Kafka's clients.")
topic_app = CommandGroup(
    "cli#kafka",
    "Topics, as Kafka's clients see them: list, describe, create.",
)
app.add_typer(topic_app, name="topic")
user_app = CommandGroup(
    "cli#kafka",
    "Users that authenticate by password (SCRAM): add, list, remove.",
)
app.add_typer(user_app, name="user")
PASSWORD_LINE_MAX: Final = 64 * 1024

_TOPIC: "Final[View[TopicRecord]]" = View(
    Column("topic", lambda topic: topic.name),
    Column("partitions", lambda topic: len(topic.logs)),
    json_column("logs", lambda topic: list(topic.logs)),
    text_column("logs", lambda topic: _shown(topic.logs)),
)
User = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]
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
    scram: Annotated[
        bool,
        typer.Option(
            "--scram", help="Clients authenticate by password: users of 'dlog kafka user'."
        ),
    ] = False,
    oidc_issuer: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Clients authenticate by tokens of this OpenID provider: 'iss' of its tokens.",
            show_default=False,
        ),
    ] = None,
    oidc_audience: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What 'aud' of a token has to name.", show_default=False),
    ] = None,
    oidc_keys: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FILE", help="The provider's public keys, as JWKS.", show_default=False
        ),
    ] = None,
    sasl_without_tls: Annotated[
        bool,
        typer.Option(
            "--sasl-without-tls",
            help="Let clients authenticate without TLS: whoever is on the network sees their "
            "records and tokens, and can take over their connections.",
        ),
    ] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = HOST_DEFAULT,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Serve Kafka's protocol until SIGTERM or Ctrl-C: each topic is one log, or several.

    Start it on several machines for one Kafka cluster: each gateway leads a share of the logs,
    and when one dies the others lead its logs within about a second."""
    host, port = _address(listen, "--listen")
    oidc = (oidc_issuer, oidc_audience, oidc_keys)
    if any(oidc) and not all(oidc):
        raise typer.BadParameter("give --oidc-issuer, --oidc-audience and --oidc-keys together")
    advertised = None if advertise is None else _address(advertise, "--advertise")

    async def command() -> None:
        serving = serving_kafka()
        from dlog.kafka.authentication import SaslSettings
        from dlog.kafka.metrics import METRICS
        from dlog.kafka.topic_requests import TopicDefaults
        from dlog.metrics import expose
        from ledger.metering.declaration import Exposed, Readiness
        from ledger.metering.http_server import served
        from ledger.security.certificates import Security

        security = await Security.settled(load().secured, serves=True)
        tokens = _tokens(oidc_issuer, oidc_audience, oidc_keys)
        options = serving.GatewayOptions(
            host=host,
            port=port,
            advertised_host=None if advertised is None else advertised[0],
            advertised_port=None if advertised is None else advertised[1],
            topics=TopicDefaults(partitions=partitions, auto_create=auto_create),
            sasl=SaslSettings(scram=scram, tokens=tokens, without_tls=sasl_without_tls),
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


@user_app.define(
    CHANGES,
    "dlog kafka user add alice",
    "dlog kafka user add alice < password.txt",
)
def add(
    user: User,
    *,
    password_file: Annotated[
        Path | None,
        typer.Option(
            help="Read the password from the first line of this file, not from stdin.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Add a user, or give one another password, read from standard input.

    Gateways apply it within seconds, and close connections that were made with the old one. What
    the user may do is granted to user:NAME, by 'dlog access grant'."""
    password = _password(password_file)

    async def command() -> bool:
        import secrets

        from dlog.changes import ourselves
        from dlog.kafka.protocol.scram import (
            SALT_BYTES,
            ScramMechanism,
            check_name,
            check_password,
            new_credential,
        )
        from dlog.kafka.protocol.users import DECOY_KEY_BYTES, USERS_PATH, KafkaUsers
        from ledger.security.documents import change_document

        check_password(check_name(user), password)
        salts = {each: secrets.token_bytes(SALT_BYTES) for each in ScramMechanism}
        credential = new_credential(password, salts)
        decoy_key = secrets.token_bytes(DECOY_KEY_BYTES)
        was_there = False

        def change(users: KafkaUsers) -> KafkaUsers:
            nonlocal was_there
            was_there = user in users.credentials
            return users.with_(user, credential, decoy_key)

        async with opened_store(uri) as store:
            await check_operator(store, "change users")
            await change_document(store, USERS_PATH, KafkaUsers, change, by=ourselves())
        return was_there

    was_there = run_at(uri, command())
    report(
        {"user": user, "replaced": was_there},
        f"user {user} has another password" if was_there else f"added user {user}",
        as_json=as_json,
    )


@user_app.define(READS, "dlog kafka user list", "dlog kafka user list --json", name="list")
def list_users(uri: Uri = None, *, as_json: Json = False) -> None:
    """List the users that have passwords, and who changed them last."""

    async def command() -> "KafkaUsers":
        from dlog.kafka.protocol.users import USERS_PATH, KafkaUsers
        from ledger.security.documents import read_document

        async with opened_store(uri) as store:
            await store.sync("/")
            return await read_document(store, USERS_PATH, KafkaUsers)

    users = run_at(uri, command())
    changed = {"changed_by": users.changed_by, "changed_ms": users.changed_ms}
    if as_json:
        print_json({"users": list(users.credentials), **changed})
        return
    if users.credentials:
        print_table(("user", "identity"), ((name, f"user:{name}") for name in users.credentials))
    else:
        warn("there are no users: 'dlog kafka user add'")
    if users.changed_ms:
        warn(f"changed by {users.changed_by} at {format_time(users.changed_ms)}")


@user_app.define(CHANGES, "dlog kafka user remove alice")
def remove(user: User, uri: Uri = None, *, as_json: Json = False) -> None:
    """Remove a user. Gateways close its connections within seconds; grants to it stay."""

    async def command() -> None:
        from dlog.changes import ourselves
        from dlog.kafka.protocol.users import USERS_PATH, KafkaUsers
        from ledger.security.documents import change_document

        async with opened_store(uri) as store:
            await check_operator(store, "change users")
            await change_document(
                store, USERS_PATH, KafkaUsers, lambda users: users.without(user), by=ourselves()
            )

    run_at(uri, command())
    report({"user": user, "removed": True}, f"removed user {user}", as_json=as_json)


def _password(file: Path | None) -> str:
    """Return the first line of *file*, or of standard input; ask for it at a terminal."""
    if file is not None:
        with file.open(encoding="utf-8") as lines:
            line = lines.readline(PASSWORD_LINE_MAX)
    elif sys.stdin.isatty():
        line = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    else:
        line = sys.stdin.readline(PASSWORD_LINE_MAX)
    return line.removesuffix("\n").removesuffix("\r")


def _tokens(issuer: str | None, audience: str | None, keys: str | None) -> "TokenSettings | None":
    from dlog.kafka.tokens import TokenSettings

    if not (issuer and audience and keys):
        return None
    return TokenSettings(issuer, audience, keys)


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
