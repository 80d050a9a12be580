"""``dlog cluster``: the level of a cluster, and its rise after an upgrade."""

from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.options import Json, Uri, examples
from dlog.cli.output import print_facts, print_json, print_table
from dlog.cli.runner import failed, run_at, told
from ledger.values import counted

if TYPE_CHECKING:
    from ledger.feature_level_upgrade import Survey

app = typer.Typer()


@app.command(epilog=examples("dlog cluster status", "dlog cluster status --json | jq .obstacles"))
def status(uri: Uri = None, *, as_json: Json = False) -> None:
    """Show the level of the cluster, what each bookie can read, and whether the level can
    rise."""

    async def command() -> None:
        from dlog.cli.connections import opened_store
        from ledger.feature_level_upgrade import survey

        async with opened_store(uri, made=False) as store:
            found = await survey(store)
        _show(found, as_json=as_json)

    run_at(uri, command())


@app.command(epilog=examples("dlog cluster upgrade --dry-run", "dlog cluster upgrade"))
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
        from dlog.cli.connections import opened_store
        from ledger.feature_level import LEVEL_MAX
        from ledger.feature_level_upgrade import raise_level, survey

        async with opened_store(uri) as store:
            if dry_run:
                found = await survey(store)
                _show(found, as_json=as_json)
                if found.held.level < LEVEL_MAX and found.obstacles(LEVEL_MAX):
                    raise failed("the cluster cannot be upgraded yet; nothing was changed")
                return
            risen = await raise_level(
                store,
                progress=lambda owned: told(f"owner nodes: {counted(owned, 'ledger')}"),
            )
        if as_json:
            print_json({"before": risen.before, "level": risen.level, "late": list(risen.late)})
        elif risen.before == risen.level:
            told(f"the cluster is at level {risen.level} already")
        else:
            told(f"the cluster is at level {risen.level} now; it was at {risen.before}")
        if risen.late:
            raise failed(
                f"{', '.join(risen.late)} started before the upgrade and cannot read this level: "
                "upgrade to this release"
            )

    run_at(uri, command())


def _show(found: "Survey", *, as_json: bool) -> None:
    from ledger.feature_level import LEVEL_MAX, LEVELS

    in_the_way = found.obstacles(LEVEL_MAX) if found.held.level < LEVEL_MAX else []
    if as_json:
        print_json(
            {
                "level": found.held.level,
                "raising_to": found.held.raising_to or None,
                "this_release": LEVEL_MAX,
                "obstacles": list(in_the_way),
                "bookies": [
                    {"bookie": each.bookie, "reads": each.reads} for each in found.standings
                ],
                "left_out": found.left_out,
            }
        )
        return
    facts: dict[str, object] = {"level": found.held.level, "this release reads": LEVEL_MAX}
    if found.held.raising_to:
        facts["being raised to"] = f"{found.held.raising_to} (unfinished: 'dlog cluster upgrade')"
    for level in range(found.held.level + 1, LEVEL_MAX + 1):
        facts[f"level {level} brings"] = LEVELS[level].brings
    if found.held.level < LEVEL_MAX:
        facts["can rise"] = f"no: {'; '.join(in_the_way)}" if in_the_way else "yes"
    print_facts(facts)
    if found.standings:
        rows = [
            (each.bookie, "unknown: it does not run" if each.reads is None else each.reads)
            for each in found.standings
        ]
        print_table(("bookie", "reads levels up to"), rows)
