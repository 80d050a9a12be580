"""``dlog metadata|cluster``: the metadata store when it is damaged, or was restored from a backup;
the level of the formats in it, and its rise after an upgrade."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import CHANGES, READS, CommandGroup, changes_unless, not_recorded
from dlog.cli.connections import connected, opened_store
from dlog.cli.options import Json, Uri, Yes
from dlog.cli.output import Column, View, print_json, print_lines, report, warn
from dlog.cli.runner import failed, run_at, run_check
from dlog.config import resolve_uri
from ledger.errors import CallerError
from ledger.metastore.uri import FileUri, parse_uri, without_secrets
from ledger.values import counted

if TYPE_CHECKING:
    from ledger.feature_level import BookieLevel
    from ledger.feature_level_upgrade import Survey

_TIMEOUT_S = 10.0

metadata = CommandGroup("cli#ledgers-bookies-a-local-cluster")


class NotEmbedded(CallerError):
    def __init__(self, uri: str) -> None:
        shown = without_secrets(uri)
        super().__init__(f"{shown} is not a directory on this machine: it needs file:///...")


class NothingRestored(CallerError):
    def __init__(self, uri: str) -> None:
        super().__init__(
            f"no restore of {uri} was accepted, so there is nothing to reconcile. To accept one: "
            "'dlog metadata accept-restore'"
        )
        self.uri = uri


@metadata.define(
    not_recorded("the store is stopped, and no log can be written"),
    "dlog metadata accept-loss --uri file:///var/lib/orders/metadata",
    "dlog metadata accept-loss --yes",
    name="accept-loss",
)
def accept_loss(
    uri: Uri = None,
    *,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Continue with the newest consistent state of a damaged namespace.

    What was committed after it is lost: logs, segments, positions of consumers. Restore a
    backup instead if there is one. Nothing may use the namespace meanwhile; its files as they
    are now are kept beside it."""

    async def command() -> None:
        from ledger.metastore.sqlite_files import accept_loss as accept

        resolved = resolve_uri(uri)
        parsed = parse_uri(resolved)
        if not isinstance(parsed, FileUri):
            raise NotEmbedded(resolved)
        directory = parsed.directory
        state = accept(directory, really=False, timeout_s=_TIMEOUT_S)
        if not yes:
            newest = "the newest is unknown" if state.witnessed is None else state.witnessed
            question = f"Give up everything after commit {state.generation} (newest: {newest})?"
            typer.confirm(question, abort=True, err=True)
        done = accept(directory, really=True, timeout_s=_TIMEOUT_S)
        report(
            {"commit": done.generation, "lost_up_to": done.witnessed, "copy": str(done.copy)},
            f"the namespace continues from commit {done.generation}; the previous files are in "
            f"{done.copy}; before bookies start: 'dlog metadata accept-restore'",
            as_json=as_json,
        )

    run_at(uri, command())


@metadata.define(
    not_recorded("no bookie is there to record it; the store has the reason"),
    "dlog metadata accept-restore",
    "dlog metadata accept-restore --yes --reason 'back to the backup of Monday'",
    name="accept-restore",
)
def accept_restore(
    uri: Uri = None,
    *,
    reason: Annotated[
        str, typer.Option(help="Reason; bookies keep it, and show it while they are in limbo.")
    ] = "the metadata store was restored from a backup",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Accept a metadata store that was restored from an older backup, permanently.

    Stop all bookies first; start all of them afterwards. What was created since the backup is
    unknown to the store: each bookie keeps it, gives new ledgers ids above it, and does not let
    a ledger that was open in the backup end by what it does not know. Then run 'dlog metadata
    reconcile', which closes these ledgers with all that the bookies hold."""

    async def command() -> None:
        from bookie.identity.restore import accept_restore as accept
        from bookie.identity.restore import registered_bookies
        from ledger.cluster import open_namespace
        from ledger.manager import LedgerStore

        async with opened_store(uri) as store:
            if not yes and not await registered_bookies(store):
                question = (
                    "Give up everything that the metadata store does not know, on all bookies?"
                )
                typer.confirm(question, abort=True, err=True)
            namespace = await open_namespace(store)
            restore = await accept(LedgerStore(store, namespace.layout), reason)
        report(
            {"token": restore.token, "accepted_ms": restore.accepted_ms},
            "accepted: start all bookies, then run 'dlog metadata reconcile'",
            as_json=as_json,
        )

    run_at(uri, command())


@metadata.define(
    CHANGES,
    "dlog metadata reconcile",
    "dlog metadata reconcile --without bookie-2 --json | jq 'select(.problem != \"\")'",
)
def reconcile(
    uri: Uri = None,
    *,
    without: Annotated[
        list[str] | None,
        typer.Option(
            help="A bookie that is permanently gone: data that only it holds are given up."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Close the ledgers that were open in a restored metadata store, with all that bookies
    hold.

    Run it after 'dlog metadata accept-restore', when all bookies are available. It queries each
    bookie of the cluster, also for ledgers that the store does not know it has, so nothing
    acknowledged is cut. Ledgers that cannot be decided for certain stay open, and are named
    with the reason. Exits with 1 if something is left to decide. It may be interrupted and
    repeated."""

    async def command() -> bool:
        from bookie.identity.restore import read_restore
        from ledger.reconciliation import reconcile as reconciled

        count, left = 0, 0
        async with connected(uri) as client:
            restore = await read_restore(client.store)
            if restore is None:
                raise NothingRestored(client.store.uri)
            async for each in reconciled(client, restore.below, without=without or ()):
                count += 1
                left += each.end is None or each.lost > 0
                if as_json:
                    print_json(asdict(each))
                    continue
                end = "still open" if each.end is None else f"closed at {each.end}"
                typer.echo(
                    f"ledger {each.ledger_id}: {end}, "
                    f"{counted(each.found_elsewhere, 'entry')} found at bookies that "
                    f"it does not name, {each.cut} cut that were never acknowledged"
                    + (f": {each.problem}" if each.problem else "")
                )
            names = ", ".join(bookie.bookie for bookie in client.bookies.available())
        typer.echo(
            f"{counted(count, 'ledger')} to close, {left} left to decide; "
            f"queried {names}: a bookie that joined after the backup and "
            "has not been started since is not among them",
            err=True,
        )
        return left == 0

    run_check(uri, command())


@metadata.define(
    not_recorded("nothing uses the namespace"),
    "dlog metadata copy zk://old:2181/prod zk://new:2181/prod",
    "dlog metadata copy file:///data/metadata zk://zk1:2181/prod",
)
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="URI of the namespace.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="URI of an empty target.")],
    *,
    as_json: Json = False,
) -> None:
    """Copy a namespace to another metadata store, such as another ZooKeeper.

    Stop everything that uses it first, and start it afterwards with the new URI; nothing may
    use the old one any more. Bookies keep their data and their names. Access lists are not
    copied: 'dlog access protect' sets them on the new one."""

    async def command() -> None:
        from ledger.namespace_copy import copy_namespace

        async with opened_store(source) as old, opened_store(target, made=False) as new:
            copied = await copy_namespace(old, new)
        report(
            asdict(copied),
            f"namespace {copied.instance} is at {without_secrets(target)}: "
            f"{counted(copied.nodes, 'node')}; {copied.left_out} of sessions were left out",
            as_json=as_json,
        )

    run_at(source, command())


cluster = CommandGroup("operations#upgrade")
_READER: "Final[View[BookieLevel]]" = View(
    Column("bookie", lambda reader: reader.bookie),
    Column(
        "reads",
        lambda reader: reader.reads,
        "reads levels up to",
        lambda level: "unknown: it does not run" if level is None else level,
    ),
)


@cluster.define(READS, "dlog cluster status", "dlog cluster status --json | jq .obstacles")
def status(uri: Uri = None, *, as_json: Json = False) -> None:
    """Show the level of the cluster, what each bookie can read, and whether the level can
    rise."""

    async def command() -> None:
        from ledger.feature_level_upgrade import survey

        async with opened_store(uri, made=False) as store:
            surveyed = await survey(store)
        _show(surveyed, as_json=as_json)

    run_at(uri, command())


@cluster.define(changes_unless("dry_run"), "dlog cluster upgrade --dry-run", "dlog cluster upgrade")
def upgrade(
    uri: Uri = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report whether the level can rise; change nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Raise the cluster to the highest level that this release knows, once every program can
    read it.

    Refused as long as a known bookie does not run, or runs an older release; the error names
    it. Clients do not report what they can read: upgrade readers and writers first. There is no
    way back: programs that do not know the level are refused from then on."""

    async def command() -> None:
        from ledger.feature_level import LEVEL_MAX
        from ledger.feature_level_upgrade import raise_level, survey

        async with opened_store(uri) as store:
            if dry_run:
                surveyed = await survey(store)
                _show(surveyed, as_json=as_json)
                if surveyed.held.level < LEVEL_MAX and surveyed.obstacles(LEVEL_MAX):
                    raise failed("the cluster cannot be upgraded yet; nothing was changed")
                return
            risen = await raise_level(
                store,
                progress=lambda owned: warn(f"owner nodes: {counted(owned, 'ledger')}"),
            )
        if as_json:
            print_json({"before": risen.before, "level": risen.level, "late": list(risen.late)})
        elif risen.before == risen.level:
            warn(f"the cluster is at level {risen.level} already")
        else:
            warn(f"the cluster is at level {risen.level} now; it was at {risen.before}")
        if risen.late:
            raise failed(
                f"{', '.join(risen.late)} started before the upgrade and cannot read this level: "
                "upgrade to this release"
            )

    run_at(uri, command())


def _show(surveyed: "Survey", *, as_json: bool) -> None:
    from ledger.feature_level import LEVEL_MAX, LEVELS

    in_the_way = surveyed.obstacles(LEVEL_MAX) if surveyed.held.level < LEVEL_MAX else []
    if as_json:
        print_json(
            {
                "level": surveyed.held.level,
                "raising_to": surveyed.held.raising_to or None,
                "this_release": LEVEL_MAX,
                "obstacles": list(in_the_way),
                "bookies": _READER.rows(surveyed.standings),
                "left_out": surveyed.left_out,
            }
        )
        return
    facts: dict[str, object] = {"level": surveyed.held.level, "this release reads": LEVEL_MAX}
    if surveyed.held.raising_to:
        facts["being raised to"] = (
            f"{surveyed.held.raising_to} (unfinished: 'dlog cluster upgrade')"
        )
    for level in range(surveyed.held.level + 1, LEVEL_MAX + 1):
        facts[f"level {level} brings"] = LEVELS[level].brings
    if surveyed.held.level < LEVEL_MAX:
        facts["can rise"] = f"no: {'; '.join(in_the_way)}" if in_the_way else "yes"
    print_lines(facts)
    if surveyed.standings:
        _READER.table(surveyed.standings)
