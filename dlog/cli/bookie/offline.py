"""``dlog bookie format|check|mark|accept-loss``: a stopped bookie as a whole."""

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import READS, CommandGroup, changes_if, not_recorded
from dlog.cli.connections import opened_store
from dlog.cli.options import BookieDir, JournalDirs, Json, LedgerDirs, Uri, Yes
from dlog.cli.output import (
    Column,
    View,
    json_column,
    print_json,
    print_lines,
    progress_line,
    report,
    text_column,
    write_text,
)
from dlog.cli.runner import FAILED, confirm, failed, run, run_recorded
from ledger.values import counted

if TYPE_CHECKING:
    from bookie.disk.port import Directories
    from bookie.errors import IndexDamaged
    from bookie.tools.findings import Damage, Findings
    from bookie.tools.format import Formatted
    from bookie.tools.journal_walk import JournalEnd, JournalFile, MarkInfo

    Damaged = Damage | JournalEnd | IndexDamaged

OFFLINE: Final = "operations#offline-tools"
app = CommandGroup(OFFLINE)
DAMAGE: "Final[View[Damaged]]" = View(
    Column("path", lambda damage: damage.path),
    Column("offset", lambda damage: damage.offset),
    Column("reason", lambda damage: damage.reason),
)
_FILE: "Final[View[JournalFile]]" = View(
    Column("file", lambda file: file.journal_id, form="{:x}".format),
    json_column("path", lambda file: file.path),
    Column("bytes", lambda file: file.size_bytes),
    Column("before_mark", lambda file: file.before_mark),
)
_MARK: "Final[View[MarkInfo]]" = View(
    Column("journal", lambda info: info.directory),
    Column(
        "mark",
        lambda info: info.mark and {"file": info.mark.journal_id, "offset": info.mark.offset},
        form=lambda mark: f"file {mark['file']:x}, byte {mark['offset']}" if mark else "none",
    ),
    json_column("records", lambda info: info.records),
    json_column("replay_bytes", lambda info: info.replay_bytes),
    text_column(
        "to replay",
        lambda info: f"{counted(info.records, 'record')}, {counted(info.replay_bytes, 'byte')}",
    ),
    json_column("files", lambda info: _FILE.rows(info.files)),
    json_column("damages", lambda info: DAMAGE.rows(info.damages)),
)


def print_damage(damage: "Damaged") -> None:
    write_text(f"DAMAGED: {damage.path} at byte {damage.offset}: {damage.reason}\n")


def opened(
    directory: Path,
    journal_dir: list[Path] | None,
    ledger_dir: list[Path] | None,
    *,
    make: bool = False,
) -> "AbstractContextManager[Directories]":
    """Lock the directories of a bookie that is stopped."""
    from bookie.tools import offline

    return offline.opened(directory, journal_dir or (), ledger_dir or (), make=make)


@app.define(
    READS,
    "dlog bookie check --dir /data/bookie",
    "dlog bookie check --dir /data/bookie --json | jq '.damages[].path'",
    exit_codes="Exit codes: 0 nothing that was promised is missing; 1 something may be: each "
    "damage is printed with its file, its byte, and what to do.",
)
def check(
    directory: BookieDir,
    journal_dir: JournalDirs = None,
    ledger_dir: LedgerDirs = None,
    as_json: Json = False,
) -> None:
    """Check all files of a stopped bookie against each other, and change nothing.

    Follows every index slot to its entry and verifies the checksums, reads the journal from the
    mark on as the next start would, and scans every frame of every entry log. An entry counts
    as present if the next start recovers it from the journal."""

    async def command() -> bool:
        from bookie.tools.check import check as run_check

        with opened(directory, journal_dir, ledger_dir) as directories, progress_line() as report:
            findings = run_check(directories, report)
        if as_json:
            print_json(_findings_facts(findings))
        else:
            _print_findings(findings)
        return findings.is_whole

    if not run(command()):
        raise typer.Exit(FAILED)


@app.define(
    READS,
    "dlog bookie mark --dir /data/bookie",
    "dlog bookie mark --dir /data/bookie --json | jq .replay_bytes",
)
def mark(
    directory: BookieDir,
    journal_dir: JournalDirs = None,
    ledger_dir: LedgerDirs = None,
    as_json: Json = False,
) -> None:
    """Show where the next start begins to replay each journal, and how much that is.

    Everything before the mark is in entry logs and index. Exits with 1 if a journal is
    damaged."""

    async def command() -> bool:
        from bookie.tools.journal_walk import mark_info
        from bookie.tools.offline import check_used

        with opened(directory, journal_dir, ledger_dir) as directories:
            check_used(directories)
            marks = [mark_info(disk) for disk in directories.journals]
        for info in marks:
            _MARK.print(info, as_json=as_json)
            if not as_json and info.files:
                _FILE.table(info.files)
            for end in info.damages if not as_json else ():
                print_damage(end)
        return not any(info.damages for info in marks)

    if not run(command()):
        raise typer.Exit(FAILED)


@app.define(
    changes_if("forget"),
    "dlog bookie format --dir /data/new",
    "dlog bookie format --dir /data/old --wipe --forget --uri zk://zk1:2181/dlog",
    name="format",
)
def format_(
    directory: BookieDir,
    journal_dir: JournalDirs = None,
    ledger_dir: LedgerDirs = None,
    *,
    wipe: Annotated[bool, typer.Option("--wipe", help="Remove the existing data.")] = False,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Also retire the bookie's name in the cluster at --uri."),
    ] = False,
    identity: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="With --forget: name of the bookie, if the directories no longer have it.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Prepare directories for a new bookie; with --wipe, empty those of an old one.

    Wiped data are gone: do it only when all ledgers have enough replicas elsewhere. The cluster
    permanently refuses a bookie without its data, so give new data another name. --forget
    records that nobody waits for these data any more."""

    async def command() -> None:
        from bookie.tools.format import (
            check_forgettable,
            contents,
            format_directories,
            owner,
            retire,
        )

        with opened(directory, journal_dir, ledger_dir, make=True) as directories:
            there = contents(directories)
            known = owner(directories)
            name = known.bookie if known is not None else identity
            if forget and name is None:
                raise failed("the directories do not name the bookie to forget; give its --id")
            if there and wipe and not yes:
                question = f"Permanently remove {', '.join(there)}?"
                typer.confirm(question, abort=True, err=True)
            if not forget or name is None:
                formatted = format_directories(directories, wipe=wipe)
                forgotten = False
            else:
                async with opened_store(uri) as store:
                    await check_forgettable(store, name, known)
                    formatted = format_directories(directories, wipe=wipe)
                    forgotten = await retire(store, name, known)
        if as_json:
            print_json(_formatted_facts(formatted, name, forgotten=forgotten))
        else:
            _print_formatted(formatted, name, forget=forget, forgotten=forgotten)

    run_recorded(uri, command())


@app.define(
    not_recorded(
        "it changes the files of one bookie, which is stopped and tells the cluster itself"
    ),
    "dlog bookie accept-loss --dir /data/bookie",
    "dlog bookie accept-loss --dir /data/bookie --yes --reason 'the newer disk died'",
    name="accept-loss",
)
def accept_loss(
    directory: BookieDir,
    journal_dir: JournalDirs = None,
    ledger_dir: LedgerDirs = None,
    *,
    reason: Annotated[
        str, typer.Option(help="Reason; it is kept, and shown as long as the bookie is in limbo.")
    ] = "an operator accepted that its data may not be the newest",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Let a stopped bookie start on data that may not be the newest, such as a backup or a
    copy.

    What it has promised since may be lost, and it does not know what that was. So it starts in
    limbo: it serves what it has, and denies nothing that it may have known; open ledgers stay
    open until they are recovered from the other bookies. Never do it to several bookies at
    once, and never while the newest data can still be recovered."""

    async def command() -> None:
        from bookie.identity import stamp as identity
        from bookie.tools.offline import NotABookie, check_places, check_used

        with opened(directory, journal_dir, ledger_dir) as directories:
            check_used(directories)
            known = check_places(directories)
            if known is None:
                raise NotABookie(str(directory), "it has no cookie")
            confirm(
                f"Accept that bookie {known.bookie} may have lost data that it promised?", yes=yes
            )
            identity.accept_loss(directories, reason)
        report(
            {"bookie": known.bookie, "doubt": reason},
            f"bookie {known.bookie} may start, and will be in limbo: start it, then recover "
            "the ledgers that are open (`dlog bookie status` says how many are in doubt)",
            as_json=as_json,
        )

    run(command())


def _findings_facts(findings: "Findings") -> dict[str, object]:
    counts = findings.counts
    return {
        "whole": findings.is_whole,
        "counts": {name: getattr(counts, name) for name in counts.__slots__},
        "damage_count": findings.damage_count,
        "damages": [{**DAMAGE.json(each), "advice": each.advice} for each in findings.damages],
        "note_count": findings.note_count,
        "notes": [{"path": note.path, "reason": note.reason} for note in findings.notes],
    }


def _print_findings(findings: "Findings") -> None:
    counts = findings.counts
    print_lines(
        {
            "journal": f"{counted(counts.journal_records, 'record')}, "
            f"{counted(counts.journal_bytes, 'byte')} from the mark on, in "
            f"{counted(counts.journal_files, 'file')}",
            "index": f"{counted(counts.ledgers, 'ledger')} ({counts.fenced} fenced), "
            f"{counted(counts.index_entries, 'entry')} in {counted(counts.index_pages, 'page')}",
            "entry logs": f"{counted(counts.frames, 'entry')}, "
            f"{counted(counts.frame_bytes, 'byte')} in {counted(counts.entry_logs, 'log')}",
            "orphans": f"{counted(counts.orphans, 'entry')}, "
            f"{counted(counts.orphan_bytes, 'byte')} that no index names (harmless)",
        }
    )
    if counts.healed:
        come = "comes" if counts.healed == 1 else "come"
        sys.stdout.write(
            f"{counted(counts.healed, 'damaged entry')} {come} back from the journal\n"
        )
    for note in findings.notes:
        sys.stdout.write(f"note: {note.path}: {note.reason}\n")
    _print_more(findings.note_count - len(findings.notes), "more note")
    for damage in findings.damages:
        print_damage(damage)
    _print_more(findings.damage_count - len(findings.damages), "more damage")
    for advice in dict.fromkeys(damage.advice for damage in findings.damages):
        sys.stdout.write(f"what to do: {advice}\n")
    if findings.is_whole:
        sys.stdout.write("whole: nothing that was promised is missing\n")


def _print_more(count: int, what: str) -> None:
    if count > 0:
        sys.stdout.write(f"... and {counted(count, what)}\n")


def _formatted_facts(
    formatted: "Formatted", name: str | None, *, forgotten: bool
) -> dict[str, object]:
    return {
        "directories": list(formatted.directories),
        "wiped": list(formatted.wiped),
        "bookie": name,
        "forgotten": forgotten,
    }


def _print_formatted(
    formatted: "Formatted", name: str | None, *, forget: bool, forgotten: bool
) -> None:
    for path in formatted.wiped:
        typer.echo(f"{path} was removed", err=True)
    for path in formatted.directories:
        typer.echo(f"{path} is ready for a new bookie", err=True)
    if forgotten:
        typer.echo(f"the name {name} is retired: no bookie can use it again", err=True)
    elif forget:
        typer.echo(f"the cluster does not know these data of bookie {name}", err=True)
    elif name is not None:
        typer.echo(
            f"the cluster still knows bookie {name} and refuses it without its data: a new one "
            "gets another name. To give the old one up: dlog bookie format --wipe --forget --id "
            f"{name}",
            err=True,
        )
