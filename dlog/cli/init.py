"""``dlog init``: make a namespace, on purpose."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.commands import CommandGroup, not_recorded
from dlog.cli.options import Bookies, Clients, Json, Operators, Readers
from dlog.cli.output import print_json, print_lines, warn
from dlog.cli.runner import run

if TYPE_CHECKING:
    from ledger.metastore.acl import AclRoles


app = CommandGroup("operations#a-namespace-is-created-once")


class _Layout(StrEnum):
    FLAT = "flat"
    HIERARCHICAL = "hierarchical"
    LONG_HIERARCHICAL = "longhierarchical"


def roles_given(
    operators: list[str] | None,
    bookies: list[str] | None,
    clients: list[str] | None,
    readers: list[str] | None,
) -> "AclRoles":
    """Return the roles that options name."""
    from ledger.metastore.acl import AclRoles

    return AclRoles(
        operators=tuple(operators or ()),
        bookies=tuple(bookies or ()),
        clients=tuple(clients or ()),
        readers=tuple(readers or ()),
    )


def named_roles(roles: "AclRoles") -> dict[str, str]:
    """Return them for people."""
    from dlog.namespace_init import shown_roles

    return {name: ", ".join(ids) or "none" for name, ids in shown_roles(roles).items()}


@app.define(
    not_recorded("there is no log before there is a namespace"),
    "dlog init zk://zk1:2181,zk2:2181,zk3:2181/prod",
    "dlog init zk://zk1:2181/prod --operator x509:CN=op --bookie x509:CN=bookie-1 "
    "--client x509:CN=orders --reader x509:CN=report",
    "dlog init 'zk://zk1:2181/prod?auth-file=/etc/dlog/zookeeper'",
    "dlog init zk://zk1:2181/prod --layout hierarchical",
    "dlog init file:///var/lib/dlog/metadata",
)
def init(
    uri: Annotated[
        str | None,
        typer.Argument(
            metavar="[URI]",
            help="zk://host:2181/root or file:///dir. Default: DLOG_URI, else the directory of "
            "'dlog up'.",
            show_default=False,
        ),
    ] = None,
    *,
    layout: Annotated[
        _Layout | None,
        typer.Option(
            help="How ledgers are stored in the metadata store: longhierarchical (the default; "
            "63-bit ids, any number), hierarchical or flat (as in BookKeeper: ten digits; "
            "flat is for thousands of ledgers at most). It can never be changed.",
            show_default=False,
        ),
    ] = None,
    operator: Operators = None,
    bookie: Bookies = None,
    client: Clients = None,
    reader: Readers = None,
    acl: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCHEME:ID",
            help="Instead of the roles above: an identity that may change everything on "
            "ZooKeeper, including grants, besides the user in the URI: x509:DN, sasl:NAME, "
            "digest:USER:HASH or ip:ADDRESS; followed by ' (read)', one that may only read. "
            "Without any of these: anyone who can reach ZooKeeper.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a namespace: the place in a metadata store where a cluster keeps its metadata.

    On ZooKeeper with certificates, assign roles, so that no writer can change grants, quotas or
    the identity of a bookie; 'dlog access protect' changes that later.

    Bookies and clients never create one, so a mistyped URI is an error, and not an empty
    cluster. An existing namespace stays as it is: that is no error, unless it differs from what
    is requested. 'dlog up', 'dlog demo' and dlog.testing create their own."""

    async def command() -> None:
        from dlog.config import load, resolve_uri
        from dlog.namespace_init import initialise

        settings = load()
        made = await initialise(
            resolve_uri(uri),
            layout=None if layout is None else layout.value,
            ids=tuple(acl or ()),
            roles=roles_given(operator, bookie, client, reader),
            session_timeout_s=settings.session_timeout_s,
            timeout_s=settings.timeout_s,
            tls=settings.secured,
        )
        if as_json:
            print_json(made.to_dict())
            return
        done = "was made" if made.made else "was there already"
        typer.echo(f"dlog: the namespace {made.uri} {done}", err=True)
        shown = {"instance": made.instance, "layout": made.layout}
        if made.roles.operators:
            print_lines({**shown, **named_roles(made.roles)})
            return
        print_lines(
            {**shown, "open to": ", ".join(made.ids) or "everybody who can reach the store"}
        )
        if len(made.ids) > 1:
            warn(
                "each of them may grant itself every role; --operator, --bookie, --client and "
                "--reader prevent that for programs that write logs"
            )

    run(command())
