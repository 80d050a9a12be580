"""``dlog status|doctor``: the health of the cluster, problems first, with what to do about them."""

import sys
import textwrap
from typing import TYPE_CHECKING, Final

import typer

from dlog.cli.commands import READS, CommandGroup
from dlog.cli.connections import opened_store
from dlog.cli.options import Json, Uri
from dlog.cli.output import colored, print_json, print_lines, write_text
from dlog.cli.runner import FAILED, run_at
from dlog.config import load, resolve_uri
from ledger.errors import CallerError, LogError
from ledger.values import counted

if TYPE_CHECKING:
    from dlog.health.findings import Finding, Report

_WIDTH: Final = 100
_COLORS: Final = {"CRITICAL": "red", "WARNING": "yellow", "NOTE": None}


app = CommandGroup("cli#health")


@app.define(
    READS,
    "dlog status",
    "dlog status --json | jq -r '.findings[].what'",
    "dlog status --uri zk://host:2181/dlog || page-somebody",
)
def status(uri: Uri = None, as_json: Json = False) -> None:
    """Check the health of the cluster: problems, most severe first, and what to do about them.

    Checks the metadata store, known and registered bookies, underreplicated ledgers, and logs
    that lost their leader. Reads metadata only and changes nothing; for a large cluster it
    reports what it did not check. A killed bookie counts as unavailable once its session has
    expired, after 10 s by default. Exits with 1 if there is a problem."""
    _examine(uri, deep=False, as_json=as_json)


@app.define(READS, "dlog doctor", "dlog doctor --json | jq .servers")
def doctor(uri: Uri = None, as_json: Json = False) -> None:
    """Check the whole cluster in more depth than 'dlog status': query every bookie, read every
    log.

    Besides the checks of 'dlog status': whether clients and operators reach each bookie from
    here, its disks, alarms, version, certificate, and how far its clock is from the local one;
    deletions that make no progress, and who would finish them. Changes nothing; each query has
    5 s at most. Exits with 1 if there is a problem."""
    _examine(uri, deep=True, as_json=as_json)


async def report_of(uri: str | None, *, deep: bool) -> "Report":
    """Return what 'dlog status' says, or 'dlog doctor' if *deep*. Raises `CallerError`."""
    from dlog.health.checks import examine, unreachable
    from ledger.security.certificates import Security

    settings = load()
    security = await Security.settled(settings.secured)
    try:
        async with opened_store(uri, made=False) as store:
            return await examine(
                store, deep=deep, timeout_s=settings.bookie_timeout_s, security=security
            )
    except CallerError:
        raise
    except LogError as error:
        return unreachable(resolve_uri(uri), error)


def _examine(uri: str | None, *, deep: bool, as_json: bool) -> None:
    report = run_at(uri, report_of(uri, deep=deep))
    if as_json:
        print_json(report.to_dict())
    else:
        _print(report)
    if not report.healthy:
        raise typer.Exit(FAILED)


def _print(report: "Report") -> None:
    findings = report.findings
    wrong = sum(finding.is_wrong for finding in findings)
    if not wrong:
        _colored("No problems found", "green")
        write_text(" in what was checked.\n")
    else:
        most_severe = max(finding.severity for finding in findings).name
        said = f"{counted(wrong, 'problem')} found"
        _colored(said, _COLORS[most_severe])
        write_text(".\n")
    for finding in findings:
        write_text("\n")
        _colored(finding.severity.name, _COLORS[finding.severity.name])
        write_text(_shown(finding).removeprefix(finding.severity.name))
        for consequence in finding.consequences:
            write_text(_below(consequence))
    write_text("\n")
    summaries = {
        one.name.replace("_", " "): one.facts.summary()
        for one in report.checked
        if one.facts is not None
    }
    print_lines(summaries)
    if report.unseen:
        write_text(f"\nNot checked, because there is too much: {'; '.join(report.unseen)}.\n")
    sys.stdout.flush()


def _colored(words: str, color: str | None) -> None:
    """Print *words*, which are dlog's own, as a terminal shows them."""
    sys.stdout.write(words if color is None else colored(words, color))


def _shown(finding: "Finding") -> str:
    return _wrapped(f"{finding.severity.name}: {finding.what}", "", "  ") + _action(
        finding, "  -> "
    )


def _below(consequence: "Finding") -> str:
    return _wrapped(consequence.what, "  - ", "    ") + _action(consequence, "    -> ")


def _action(finding: "Finding", indent: str) -> str:
    return _wrapped(finding.action, indent, " " * len(indent)) if finding.action else ""


def _wrapped(words: str, indent: str, further: str) -> str:
    lines = textwrap.wrap(
        words, _WIDTH, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False
    )
    return "".join(f"{line}\n" for line in lines)
