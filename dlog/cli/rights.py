"""``dlog access|quota``: who may do what on bookies, and how much."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import CHANGES, READS, CommandGroup
from dlog.cli.connections import opened_store
from dlog.cli.init import named_roles, roles_given
from dlog.cli.options import Bookies, Clients, Json, Operators, Readers, Uri
from dlog.cli.output import Column, View, format_time, print_json, print_lines, print_table, warn
from dlog.cli.runner import run_at
from ledger.errors import InvalidGrant, InvalidQuota
from ledger.options import size
from ledger.values import counted, shown_size

if TYPE_CHECKING:
    from ledger.metastore.port import MetadataStore
    from ledger.security.access import Grant, Rules
    from ledger.security.quotas import Quota, Subject

access = CommandGroup("security#who-may-do-what")

_GRANT: "Final[View[Grant]]" = View(
    Column("who", lambda grant: grant.who),
    Column("role", lambda grant: str(grant.role)),
    Column("logs", lambda grant: grant.logs),
)

Who = Annotated[
    str,
    typer.Argument(
        metavar="WHO",
        help="KIND:NAME as in the certificate: uri, dns or cn; user or oidc for Kafka's clients. "
        "A trailing '*' matches anything, alone everybody who is known.",
    ),
]
RoleName = Annotated[
    str,
    typer.Argument(
        metavar="ROLE",
        help="reader; writer, who can also read; bookie, as autorecovery needs; operator.",
    ),
]
Logs = Annotated[
    str,
    typer.Argument(
        metavar="LOGS",
        help="For reader and writer: a log, or several by 'PREFIX*'. '*' is all, including "
        "ledgers of no log. The other roles apply to the whole cluster.",
        show_default=False,
    ),
]


@access.define(
    CHANGES,
    "dlog access grant cn:billing writer 'billing/*'",
    "dlog access grant uri:spiffe://prod/report reader orders",
    "dlog access grant cn:alice operator",
)
def grant(
    who: Who, role: RoleName, logs: Logs = "", uri: Uri = None, *, as_json: Json = False
) -> None:
    """Grant a role. Bookies apply it within seconds; granting it again is no error."""
    _change(uri, _grant(who, role, logs), as_json=as_json, revokes=False)


@access.define(CHANGES, "dlog access revoke cn:billing writer 'billing/*'")
def revoke(
    who: Who, role: RoleName, logs: Logs = "", uri: Uri = None, *, as_json: Json = False
) -> None:
    """Revoke a grant, named as 'list' shows it. It ends within seconds, from the next request
    on, also on open connections."""
    _change(uri, _grant(who, role, logs), as_json=as_json, revokes=True)


@access.define(READS, "dlog access list", "dlog access list --json", name="list")
def list_grants(uri: Uri = None, *, as_json: Json = False) -> None:
    """List all grants, and who changed them last."""

    async def command() -> None:
        rules = await _rules(uri)
        changed = {"changed_by": rules.changed_by, "changed_ms": rules.changed_ms}
        if as_json:
            print_json({"grants": _GRANT.rows(rules.grants), **changed})
            return
        if rules.grants:
            _GRANT.table(rules.grants)
        else:
            warn("nothing is granted: where TLS is required, bookies accept only autorecovery")
        if rules.changed_ms:
            warn(f"changed by {rules.changed_by} at {format_time(rules.changed_ms)}")

    run_at(uri, command())


@access.define(
    READS,
    "dlog access check cn:billing billing/invoices",
    "dlog access check cn:billing billing/invoices --json | jq .add",
)
def check(
    who: Annotated[str, typer.Argument(metavar="WHO", help="One identity, as KIND:NAME.")],
    log: Annotated[
        str | None,
        typer.Argument(
            metavar="LOG", help="A log. Default: ledgers of no log.", show_default=False
        ),
    ] = None,
    uri: Uri = None,
    *,
    as_json: Json = False,
) -> None:
    """Show what an identity may do with a log, and by which grant. The log need not exist."""
    _grant(who, "operator", "")

    async def command() -> None:
        from ledger.security.access import Permission, grant_for

        grants = (await _rules(uri)).of(who)
        allowing = {action.name.lower(): grant_for(grants, action, log) for action in Permission}
        if as_json:
            print_json({action: by and _GRANT.json(by) for action, by in allowing.items()})
            return
        rows = ((action, "yes" if by else "no", by or "-") for action, by in allowing.items())
        print_table(("action", "allowed", "by"), rows)

    run_at(uri, command())


@access.define(
    CHANGES,
    "dlog access protect --operator x509:CN=op --bookie x509:CN=bookie-1 "
    "--client x509:CN=orders --reader x509:CN=report",
    "dlog access protect",
)
def protect(
    *,
    operator: Operators = None,
    bookie: Bookies = None,
    client: Clients = None,
    reader: Readers = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Set who is operator, bookie, client and reader of a namespace on ZooKeeper.

    Sets the ACLs of all its nodes: only operators can then change grants, quotas and other
    rights. Name all of them. Without any name the roles stay, and ACLs that differ are
    restored. Running programs apply it within a minute: run it again then, or 'dlog doctor'."""
    given = roles_given(operator, bookie, client, reader)

    async def command() -> None:
        from dlog.namespace_init import NO_ROLES, acls_of, protect, shown_roles
        from ledger.errors import InvalidValue
        from ledger.metastore.acl_survey import read_roles

        async with opened_store(uri) as store:
            acls = acls_of(store)
            roles = given if given != NO_ROLES else await read_roles(acls)
            if not roles.keep_rights:
                raise InvalidValue("role", "", "name bookies and clients beside operators")
            changed = await protect(store, roles)
        if as_json:
            print_json({"changed": changed, "roles": shown_roles(roles)})
            return
        warn(f"{counted(changed, 'node')} {'has' if changed == 1 else 'have'} another ACL now")
        print_lines(named_roles(roles))

    run_at(uri, command())


def _grant(who: str, role: str, logs: str) -> "Grant":
    """Raises `typer.BadParameter`."""
    from ledger.security.access import ANYTHING, Grant, Role

    try:
        named = Role(role)
    except ValueError:
        raise typer.BadParameter(f"{role!r} is not a role; use one of {', '.join(Role)}") from None
    try:
        return Grant(who, named, logs or (ANYTHING if named.is_of_cluster else ""))
    except InvalidGrant as error:
        raise typer.BadParameter(str(error)) from error


def _change(uri: str | None, grant: "Grant", *, as_json: bool, revokes: bool) -> None:
    async def command() -> None:
        from dlog.changes import ourselves
        from ledger.security.access import Rules
        from ledger.security.documents import change_rules

        change = Rules.revoked if revokes else Rules.granted
        async with opened_store(uri) as store:
            await check_operator(store, "change grants")
            changed = await change_rules(store, lambda rules: change(rules, grant), by=ourselves())
        if as_json:
            print_json({**_GRANT.json(grant), "changed": changed})
        elif revokes:
            warn(f"revoked: {grant}")
        else:
            warn(f"granted: {grant}" if changed else f"granted already: {grant}")

    run_at(uri, command())


async def check_operator(store: "MetadataStore", what: str) -> None:
    """Raise `AccessDenied` for a certificate without the role operator, once somebody has it.

    A store that lets operators alone write says so itself: this is for the others, where it keeps
    programs from mistakes, and nobody from anything."""
    from dlog.config import load
    from ledger.errors import AccessDenied
    from ledger.security.access import Role
    from ledger.security.certificates import Security, own_name
    from ledger.security.documents import read_rules
    from ledger.security.settings import TlsMode

    settings = load().secured
    if settings.mode is not TlsMode.REQUIRED:
        return
    if store.acls is not None and store.acls.roles.keep_rights:
        return
    rules = await read_rules(store)
    operators = [grant for grant in rules.grants if grant.role is Role.OPERATOR]
    identity = own_name(Security.of(settings))
    if operators and not any(grant.is_of(identity) for grant in operators):
        raise AccessDenied(identity, str(Role.OPERATOR), what)


async def _rules(uri: str | None) -> "Rules":
    from ledger.security.documents import read_rules

    async with opened_store(uri) as store:
        await store.sync("/")
        return await read_rules(store)


quota = CommandGroup("security#quotas")


def _format_rate(bytes_per_s: int) -> str:
    return f"{shown_size(bytes_per_s)}/s" if bytes_per_s else "-"


def _or_hyphen(count: int) -> object:
    return count or "-"


_QUOTA: "Final[View[Quota]]" = View(
    Column("subject", lambda quota: str(quota.subject)),
    Column("name", lambda quota: quota.name),
    Column("append_bytes_s", lambda quota: quota.append_bytes_s, "append", _format_rate),
    Column("append_entries_s", lambda quota: quota.append_entries_s, "entries/s", _or_hyphen),
    Column("read_bytes_s", lambda quota: quota.read_bytes_s, "read", _format_rate),
    Column("read_requests_s", lambda quota: quota.read_requests_s, "reads/s", _or_hyphen),
)

SubjectName = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="'identity' or 'logs': what NAME is.")
]
QuotaName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="An identity, as KIND:NAME with a KIND of uri, dns or cn, for Kafka's clients also "
        "user, oidc or client; or a log. A trailing '*' matches anything.",
    ),
]
_BYTES = typer.Option(
    metavar="SIZE", parser=size(least=1), help="Bytes a second, as 10M.", show_default=False
)


@quota.define(
    CHANGES,
    "dlog quota set logs 'billing/*' --append-bytes 20M --read-bytes 50M",
    "dlog quota set identity cn:report --read-requests 200",
    name="set",
)
def set_(
    subject: SubjectName,
    name: QuotaName,
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
    given = _quota(
        subject, name, append_bytes or 0, append_entries or 0, read_bytes or 0, read_requests or 0
    )

    async def command() -> None:
        from dlog.changes import ourselves
        from ledger.security.documents import change_quotas

        async with opened_store(uri) as store:
            await check_operator(store, "change quotas")
            changed = await change_quotas(store, lambda quotas: quotas.with_(given), by=ourselves())
        if as_json:
            print_json({**_QUOTA.json(given), "changed": changed})
        else:
            warn(f"set: quota of {given}" if changed else f"set already: quota of {given}")

    run_at(uri, command())


@quota.define(CHANGES, "dlog quota remove logs 'billing/*'")
def remove(
    subject: SubjectName, name: QuotaName, uri: Uri = None, *, as_json: Json = False
) -> None:
    """Remove a quota: nothing limits NAME any more, unless another quota does."""
    of = _subject(subject)

    async def command() -> None:
        from dlog.changes import ourselves
        from ledger.security.documents import change_quotas

        async with opened_store(uri) as store:
            await check_operator(store, "change quotas")
            await change_quotas(store, lambda quotas: quotas.without(of, name), by=ourselves())
        if as_json:
            print_json({"subject": str(of), "name": name, "removed": True})
        else:
            warn(f"removed: quota of {of} {name}")

    run_at(uri, command())


@quota.define(READS, "dlog quota list", "dlog quota list --json", name="list")
def list_quotas(uri: Uri = None, *, as_json: Json = False) -> None:
    """List all quotas, and who changed them last."""

    async def command() -> None:
        from ledger.security.documents import read_quotas

        async with opened_store(uri) as store:
            await store.sync("/")
            quotas = await read_quotas(store)
        changed = {"changed_by": quotas.changed_by, "changed_ms": quotas.changed_ms}
        if as_json:
            print_json({"quotas": _QUOTA.rows(quotas.quotas), **changed})
            return
        if quotas.quotas:
            _QUOTA.table(quotas.quotas)
        else:
            warn("there are no quotas: no client is delayed")
        if quotas.changed_ms:
            warn(f"changed by {quotas.changed_by} at {format_time(quotas.changed_ms)}")

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
