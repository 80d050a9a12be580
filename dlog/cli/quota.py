"""``dlog quota``: how much an identity, or those who use some logs, may append and read."""

from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.options import Json, Uri, examples
from dlog.cli.output import print_json, print_table, shown_time
from dlog.cli.runner import run_at, told
from ledger.errors import InvalidQuota
from ledger.options import size
from ledger.values import shown_size

if TYPE_CHECKING:
    from ledger.security.quotas import Quota, Subject

app = typer.Typer()

SubjectName = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="'identity' or 'logs': what NAME is.")
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="An identity, as KIND:NAME with a KIND of uri, dns or cn; or a log. A trailing '*' "
        "matches anything.",
    ),
]
_BYTES = typer.Option(
    metavar="SIZE", parser=size(least=1), help="Bytes a second, as 10M.", show_default=False
)


@app.command(
    "set",
    epilog=examples(
        "dlog quota set logs 'billing/*' --append-bytes 20M --read-bytes 50M",
        "dlog quota set identity cn:report --read-requests 200",
    ),
)
def set_(
    subject: SubjectName,
    name: Name,
    append_bytes: Annotated[int | None, _BYTES] = None,
    append_entries: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", min=1, help="Entries a second; under load many records share one."
        ),
    ] = None,
    read_bytes: Annotated[int | None, _BYTES] = None,
    read_requests: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", min=1, help="Reads a second; one returns many records."),
    ] = None,
    uri: Uri = None,
    *,
    as_json: Json = False,
) -> None:
    """Set a quota, replacing the one that NAME has. Bookies apply it within seconds. Values
    that are not given are not limited."""
    one = _quota(
        subject, name, append_bytes or 0, append_entries or 0, read_bytes or 0, read_requests or 0
    )

    async def command() -> None:
        from dlog.changes import ourselves
        from dlog.cli.access import check_operator
        from dlog.cli.connections import opened_store
        from ledger.security.documents import change_quotas

        async with opened_store(uri) as store:
            await check_operator(store, "change quotas")
            changed = await change_quotas(store, lambda quotas: quotas.with_(one), by=ourselves())
        if as_json:
            print_json({**_facts(one), "changed": changed})
        else:
            told(f"set: quota of {one}" if changed else f"set already: quota of {one}")

    run_at(uri, command())


@app.command(epilog=examples("dlog quota remove logs 'billing/*'"))
def remove(subject: SubjectName, name: Name, uri: Uri = None, *, as_json: Json = False) -> None:
    """Remove a quota: nothing limits NAME any more, unless another quota does."""
    of = _subject(subject)

    async def command() -> None:
        from dlog.changes import ourselves
        from dlog.cli.access import check_operator
        from dlog.cli.connections import opened_store
        from ledger.security.documents import change_quotas

        async with opened_store(uri) as store:
            await check_operator(store, "change quotas")
            await change_quotas(store, lambda quotas: quotas.without(of, name), by=ourselves())
        if as_json:
            print_json({"subject": str(of), "name": name, "removed": True})
        else:
            told(f"removed: quota of {of} {name}")

    run_at(uri, command())


@app.command("list", epilog=examples("dlog quota list", "dlog quota list --json"))
def list_(uri: Uri = None, *, as_json: Json = False) -> None:
    """List all quotas, and who changed them last."""

    async def command() -> None:
        from dlog.cli.connections import opened_store
        from ledger.security.documents import read_quotas

        async with opened_store(uri) as store:
            await store.sync("/")
            quotas = await read_quotas(store)
        changed = {"changed_by": quotas.changed_by, "changed_ms": quotas.changed_ms}
        if as_json:
            print_json({"quotas": [_facts(each) for each in quotas.quotas], **changed})
            return
        if quotas.quotas:
            columns = ("subject", "name", "append", "entries/s", "read", "reads/s")
            print_table(columns, map(_row, quotas.quotas))
        else:
            told("there are no quotas: no client is delayed")
        if quotas.changed_ms:
            told(f"changed by {quotas.changed_by} at {shown_time(quotas.changed_ms)}")

    run_at(uri, command())


def _subject(subject: str) -> "Subject":
    """Raises `typer.BadParameter`."""
    from ledger.security.quotas import Subject

    try:
        return Subject(subject)
    except ValueError:
        raise typer.BadParameter(
            f"{subject!r} has no quotas; use one of {', '.join(Subject)}"
        ) from None


def _quota(subject: str, name: str, *rates: int) -> "Quota":
    """Raises `typer.BadParameter`."""
    from ledger.security.quotas import Quota

    try:
        return Quota(_subject(subject), name, *rates)
    except InvalidQuota as error:
        raise typer.BadParameter(str(error)) from error


def _row(one: "Quota") -> tuple[object, ...]:
    append, entries, read, requests = one.rates
    return (
        one.subject,
        one.name,
        f"{shown_size(append)}/s" if append else "-",
        entries or "-",
        f"{shown_size(read)}/s" if read else "-",
        requests or "-",
    )


def _facts(one: "Quota") -> dict[str, str | int]:
    return {
        "subject": str(one.subject),
        "name": one.name,
        "append_bytes_s": one.append_bytes_s,
        "append_entries_s": one.append_entries_s,
        "read_bytes_s": one.read_bytes_s,
        "read_requests_s": one.read_requests_s,
    }
