"""``dlog init``: make a namespace, on purpose."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from dlog.cli.options import Json, examples
from dlog.cli.render.output import print_facts, print_json
from dlog.cli.runner import run

EPILOG: Final = examples(
    "dlog init zk://zk1:2181,zk2:2181,zk3:2181/prod",
    "dlog init 'zk://zk1:2181/prod?auth-file=/etc/dlog/zookeeper' --acl 'x509:CN=dlog,O=Example'",
    "dlog init zk://zk1:2181/prod --layout hierarchical",
    "dlog init file:///var/lib/dlog/metadata",
)


class _Layout(StrEnum):
    FLAT = "flat"
    HIERARCHICAL = "hierarchical"
    LONG_HIERARCHICAL = "longhierarchical"


def init(
    uri: Annotated[
        str | None,
        typer.Argument(
            metavar="[URI]",
            help="zk://host:2181/root or file:///dir. Default: DLOG_URI, else the place of "
            "'dlog up'.",
            show_default=False,
        ),
    ] = None,
    *,
    layout: Annotated[
        _Layout | None,
        typer.Option(
            help="How ledgers lie in the metadata store: longhierarchical (the default; 63-bit "
            "ids, any number), hierarchical or flat (as BookKeeper has them: ten digits; flat is "
            "for thousands of ledgers at most). It can never be changed.",
            show_default=False,
        ),
    ] = None,
    acl: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCHEME:ID",
            help="Who may touch the namespace on ZooKeeper, besides the user in the URI: "
            "x509:DN, sasl:NAME, digest:USER:HASH or ip:ADDRESS; repeat it for several; with "
            "' (read)' behind it, who may only read. All nodes get it, those too that others make "
            "later. Without any: whoever reaches ZooKeeper.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a namespace: the place in a metadata store where a cluster keeps what it knows.

    Bookies and clients never make one, so a mistyped URI is an error, and not an empty cluster.
    What is there already stays as it is: that is no error, unless it differs from what is asked
    for. 'dlog up', 'dlog demo' and dlog.testing make their own."""

    async def command() -> None:
        from dlog.config import load, resolve_uri
        from dlog.initialising import initialise

        settings = load()
        made = await initialise(
            resolve_uri(uri),
            layout=None if layout is None else layout.value,
            ids=tuple(acl or ()),
            session_timeout_s=settings.session_timeout_s,
            timeout_s=settings.timeout_s,
            tls=settings.secured,
        )
        if as_json:
            print_json(made.shown())
            return
        done = "was made" if made.made else "was there already"
        typer.echo(f"dlog: the namespace {made.uri} {done}", err=True)
        print_facts(
            {
                "instance": made.instance,
                "layout": made.layout,
                "open to": ", ".join(made.ids) or "everybody who reaches the store",
            }
        )

    run(command())
