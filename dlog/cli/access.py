"""``dlog access``: who may do what, on bookies that demand to know who asks."""

from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.init import named_roles, roles_given
from dlog.cli.options import Bookies, Clients, Json, Operators, Readers, Uri, examples
from dlog.cli.output import print_facts, print_json, print_table, shown_time
from dlog.cli.runner import run_at, told
from ledger.errors import InvalidGrant
from ledger.values import counted

if TYPE_CHECKING:
    from ledger.metastore.port import MetadataStore
    from ledger.security.access import Grant, Rules

app = typer.Typer()

Who = Annotated[
    str,
    typer.Argument(
        metavar="WHO",
        help="KIND:NAME as in the certificate: uri, dns or cn. A trailing '*' matches anything, "
        "alone everybody who has a certificate.",
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


@app.command(
    epilog=examples(
        "dlog access grant cn:billing writer 'billing/*'",
        "dlog access grant uri:spiffe://prod/report reader orders",
        "dlog access grant cn:alice operator",
    )
)
def grant(
    who: Who, role: RoleName, logs: Logs = "", uri: Uri = None, *, as_json: Json = False
) -> None:
    """Grant a role. Bookies apply it within seconds; granting it again is no error."""
    _change(uri, _grant(who, role, logs), as_json=as_json, takes=False)


@app.command(epilog=examples("dlog access revoke cn:billing writer 'billing/*'"))
def revoke(
    who: Who, role: RoleName, logs: Logs = "", uri: Uri = None, *, as_json: Json = False
) -> None:
    """Revoke a grant, named as 'list' shows it. It ends within seconds, from the next request
    on, also on open connections."""
    _change(uri, _grant(who, role, logs), as_json=as_json, takes=True)


@app.command("list", epilog=examples("dlog access list", "dlog access list --json"))
def list_(uri: Uri = None, *, as_json: Json = False) -> None:
    """List all grants, and who changed them last."""

    async def command() -> None:
        rules = await _rules(uri)
        changed = {"changed_by": rules.changed_by, "changed_ms": rules.changed_ms}
        if as_json:
            print_json({"grants": [_facts(each) for each in rules.grants], **changed})
            return
        if rules.grants:
            rows = ((each.who, each.role, each.logs) for each in rules.grants)
            print_table(("who", "role", "logs"), rows)
        else:
            told("nothing is granted: where TLS is required, bookies accept only autorecovery")
        if rules.changed_ms:
            told(f"changed by {rules.changed_by} at {shown_time(rules.changed_ms)}")

    run_at(uri, command())


@app.command(
    epilog=examples(
        "dlog access check cn:billing billing/invoices",
        "dlog access check cn:billing billing/invoices --json | jq .add",
    )
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
        found = {action.name.lower(): grant_for(grants, action, log) for action in Permission}
        if as_json:
            print_json({name: one and _facts(one) for name, one in found.items()})
            return
        rows = ((name, "yes" if one else "no", one or "-") for name, one in found.items())
        print_table(("action", "allowed", "by"), rows)

    run_at(uri, command())


@app.command(
    epilog=examples(
        "dlog access protect --operator x509:CN=op --bookie x509:CN=bookie-1 "
        "--client x509:CN=orders --reader x509:CN=report",
        "dlog access protect",
    )
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
        from dlog.cli.connections import opened_store
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
        told(f"{counted(changed, 'node')} {'has' if changed == 1 else 'have'} another ACL now")
        print_facts(named_roles(roles))

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


def _change(uri: str | None, one: "Grant", *, as_json: bool, takes: bool) -> None:
    async def command() -> None:
        from dlog.changes import ourselves
        from dlog.cli.connections import opened_store
        from ledger.security.access import Rules
        from ledger.security.documents import change_rules

        change = Rules.revoked if takes else Rules.granted
        async with opened_store(uri) as store:
            await check_operator(store, "change grants")
            changed = await change_rules(store, lambda rules: change(rules, one), by=ourselves())
        if as_json:
            print_json({**_facts(one), "changed": changed})
        elif takes:
            told(f"revoked: {one}")
        else:
            told(f"granted: {one}" if changed else f"granted already: {one}")

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
    operators = [each for each in rules.grants if each.role is Role.OPERATOR]
    identity = own_name(Security.of(settings))
    if operators and not any(each.is_of(identity) for each in operators):
        raise AccessDenied(identity, str(Role.OPERATOR), what)


async def _rules(uri: str | None) -> "Rules":
    from dlog.cli.connections import opened_store
    from ledger.security.documents import read_rules

    async with opened_store(uri) as store:
        await store.sync("/")
        return await read_rules(store)


def _facts(one: "Grant") -> dict[str, str]:
    return {"who": one.who, "role": str(one.role), "logs": one.logs}
