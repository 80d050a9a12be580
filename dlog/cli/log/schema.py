"""``dlog log schema``: what the payloads of a log mean, in versions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import CHANGES, READS, CommandGroup, changes_unless
from dlog.cli.options import Json, LogName, Uri, Yes
from dlog.cli.output import (
    Column,
    View,
    format_size,
    format_time,
    json_bytes,
    json_column,
    print_table,
    rendered,
    report,
)
from dlog.cli.runner import confirm, run_at
from ledger.values import counted

if TYPE_CHECKING:
    from dlog.log_schema import LogSchema

app = CommandGroup("cli#logs", "Show and change the schema of a log's payloads.")
_SCHEMA: "Final[View[LogSchema]]" = View(
    Column("version", lambda schema: schema.version),
    Column("format", lambda schema: schema.format),
    Column("message", lambda schema: schema.message),
    Column("bytes", lambda schema: len(schema.definition), "definition", format_size),
    Column("created_ms", lambda schema: schema.created_ms, "created", format_time),
    json_column("definition", lambda schema: json_bytes(schema.definition)),
)
_LISTED: Final = _SCHEMA.only("version", "format", "message", "definition", "created")
Version = Annotated[
    int | None,
    typer.Option("--version", help="This version; the newest if it is left out.", min=1),
]


@app.define(
    changes_unless("dry_run"),
    "dlog log schema set orders --file orders.avsc",
    "dlog log schema set orders --file orders.avsc --dry-run",
    "dlog log schema set orders --file orders.proto --message shop.Order",
    "dlog log schema set orders --file orders.json",
    name="set",
)
def set_(
    log: LogName,
    file: Annotated[
        Path,
        typer.Option(
            "--file",
            help="The definition: .avsc (Avro), .json (JSON Schema), .arrow (a schema as IPC "
            "message), .proto, or .desc (a set of file descriptors that protoc wrote).",
            exists=True,
            dir_okay=False,
        ),
    ],
    message: Annotated[
        str, typer.Option(help="Full name of the message, for Protobuf.", show_default=False)
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check whether it could be set.")
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Set the schema of a log, as its next version; print the number.

    It must read all records of the versions that are kept: added fields are optional, required ones
    stay, a type stays or is widened. Setting the newest version again changes nothing."""

    async def command() -> None:
        from dlog.aio.admin import set_log_schema
        from dlog.schema_file import read_schema

        schema = read_schema(file, message)
        done = await set_log_schema(log, schema, dry_run=dry_run, uri=uri)
        word = "could be" if dry_run else "is"
        report(
            {"log": log, **_SCHEMA.json(done), "dry_run": dry_run},
            f"the schema of log {log!r} {word} version {done.version}: {done.format}",
            as_json=as_json,
        )

    run_at(uri, command())


@app.define(
    READS,
    "dlog log schema show orders",
    "dlog log schema show orders --version 2",
    "dlog log schema show orders --json | jq -r .definition > orders.avsc",
)
def show(log: LogName, version: Version = None, uri: Uri = None, as_json: Json = False) -> None:
    """Show a schema of a log with its fields; with --json its definition too.

    A definition that is no text, as of Arrow and Protobuf, is {"base64": ...}."""

    async def command() -> None:
        from dlog.aio.admin import log_schemas

        schema = (await log_schemas(log, uri=uri)).find(log, version)
        _SCHEMA.print(schema, as_json=as_json)
        if not as_json:
            rows = [
                (field.name, field.type_name, rendered(field.nullable), rendered(field.optional))
                for field in schema.fields
            ]
            print_table(("field", "type", "null", "optional"), rows)

    run_at(uri, command())


@app.define(READS, "dlog log schema list orders", name="list")
def list_(log: LogName, uri: Uri = None, as_json: Json = False) -> None:
    """List the versions of a log's schema. With --json, one line for all."""

    async def command() -> None:
        from dlog.aio.admin import log_schemas

        versions = (await log_schemas(log, uri=uri)).versions
        view = _SCHEMA if as_json else _LISTED
        view.print_all(versions, f"log {log!r} has no schema", as_json=as_json)

    run_at(uri, command())


@app.define(
    CHANGES,
    "dlog log schema clear orders --before 3",
    "dlog log schema clear orders --yes",
)
def clear(
    log: LogName,
    before: Annotated[
        int | None,
        typer.Option(help="Only versions below this one.", min=1, show_default=False),
    ] = None,
    yes: Yes = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Forget versions of a log's schema; records stay as they are.

    Records that name a version which is gone cannot be read as columns any more, so clear those
    that retention has passed. Numbers are not given again."""
    which = "all versions" if before is None else f"versions below {before}"
    confirm(f"Forget {which} of the schema of log {log!r}?", yes=yes)

    async def command() -> None:
        from dlog.aio.admin import clear_log_schema

        left = await clear_log_schema(log, before=before, uri=uri)
        kept = [each.version for each in left.versions]
        report(
            {"log": log, "versions": kept},
            f"log {log!r} has {counted(len(kept), 'version')} of its schema",
            as_json=as_json,
        )

    run_at(uri, command())
