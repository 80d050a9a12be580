"""``dlog bookie journal|entrylog|index``: the files of a stopped bookie, one kind at a time."""

from typing import Annotated

import typer

from dlog.cli.bookie.dumps_shown import (
    show_end,
    show_frames,
    show_ledger,
    show_log,
    show_log_end,
    show_rebuilt,
    show_record,
)
from dlog.cli.bookie.offline import opened
from dlog.cli.connections import opened_store
from dlog.cli.options import BookieDir, JournalDirs, Json, Ledger, LedgerDirs, Uri, Yes, examples
from dlog.cli.render.progress import shown_progress
from dlog.cli.runner import FAILED, failed, run

journal = typer.Typer(no_args_is_help=True, help="Inspect the journals of a stopped bookie.")
entrylog = typer.Typer(no_args_is_help=True, help="Inspect the entry logs of a stopped bookie.")
index = typer.Typer(
    no_args_is_help=True, help="Inspect the index of a stopped bookie, or rebuild it."
)


def add_to(app: typer.Typer) -> None:
    app.add_typer(journal, name="journal")
    app.add_typer(entrylog, name="entrylog")
    app.add_typer(index, name="index")


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is no number in hexadecimal digits, as in a file's name"
        ) from error


@journal.command(
    "dump",
    epilog=examples(
        "dlog bookie journal dump --dir /data/bookie",
        "dlog bookie journal dump --dir /data/bookie --ledger 12 --all",
        "dlog bookie journal dump --dir /data/bookie --file 1f --json | jq -c .entries",
    ),
)
def dump_journal(
    directory: BookieDir,
    journal_dir: JournalDirs = None,
    ledger_dir: LedgerDirs = None,
    *,
    ledger: Ledger = None,
    file: Annotated[
        int | None,
        typer.Option(
            help="Only this file, from its beginning: the digits of its name.",
            parser=_hexadecimal,
            metavar="HEX",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also records before the mark.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the records that the next start replays, and where and why each file ends.

    After an end that is DAMAGED something is missing: a start refuses, or begins in limbo. This
    command exits with 1 then."""

    async def command() -> bool:
        from bookie.tools.journal_walk import JournalEnd, walk
        from bookie.tools.offline import check_used

        whole = True
        with opened(directory, journal_dir, ledger_dir) as directories:
            check_used(directories)
            for disk in directories.journals:
                for item in walk(disk, everything=everything, only=file):
                    if isinstance(item, JournalEnd):
                        whole = whole and not item.is_damage
                        show_end(item, as_json=as_json)
                    elif ledger in (None, item.record.ledger_id):
                        show_record(item, as_json=as_json)
        return whole

    if not run(command()):
        raise typer.Exit(FAILED)


@entrylog.command(
    "dump",
    epilog=examples(
        "dlog bookie entrylog dump --dir /data/bookie",
        "dlog bookie entrylog dump --dir /data/bookie --log 1a --ledger 12 --frames",
    ),
)
def dump_entry_logs(
    directory: BookieDir,
    journal_dir: JournalDirs = None,
    ledger_dir: LedgerDirs = None,
    *,
    log: Annotated[
        int | None,
        typer.Option(
            help="Only this log: the digits of its name.",
            parser=_hexadecimal,
            metavar="HEX",
            show_default=False,
        ),
    ] = None,
    ledger: Ledger = None,
    frames: Annotated[
        bool, typer.Option("--frames", help="Also every entry, which reads and verifies them all.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the contents of entry logs, from the map at the end of each, or frame by frame.

    A log without a map was not finished in order, as after a crash. Exits with 1 if a log is
    damaged."""

    async def command() -> bool:
        from bookie.tools import entrylog_files
        from bookie.tools.entrylog_files import LogEnd
        from bookie.tools.offline import check_used, read_only

        whole = True
        with opened(directory, journal_dir, ledger_dir) as directories:
            check_used(directories)
            for disk in read_only(directories).ledgers:
                for log_id in entrylog_files.log_ids(disk):
                    if log not in (None, log_id):
                        continue
                    found = entrylog_files.summary(disk, log_id)
                    whole = whole and not found.damage
                    show_log(found, ledger, as_json=as_json)
                    for item in entrylog_files.frames(disk, found) if frames else ():
                        if isinstance(item, LogEnd):
                            whole = whole and not item.is_damage
                            show_log_end(found, item, as_json=as_json)
                        elif ledger in (None, item.ledger_id):
                            show_frames(log_id, item, as_json=as_json)
        return whole

    if not run(command()):
        raise typer.Exit(FAILED)


@index.command(
    "dump",
    epilog=examples(
        "dlog bookie index dump --dir /data/bookie",
        "dlog bookie index dump --dir /data/bookie --ledger 12 --entries",
    ),
)
def dump_index(
    directory: BookieDir,
    journal_dir: JournalDirs = None,
    ledger_dir: LedgerDirs = None,
    *,
    ledger: Ledger = None,
    entries: Annotated[bool, typer.Option("--entries", help="Also where each entry lies.")] = False,
    as_json: Json = False,
) -> None:
    """Show the index of each ledger: fence, last entry, LAC, pages, entries.

    Records in the journal from the mark on are not in the index yet. Of the access key only a
    short digest is shown. Exits with 1 if an index file is damaged."""

    async def command() -> bool:
        from bookie.loss.census import counted_rolls
        from bookie.tools.index_files import IndexFiles
        from bookie.tools.offline import check_used, read_only

        whole = True
        with opened(directory, journal_dir, ledger_dir) as directories:
            check_used(directories)
            for at, disk in enumerate(read_only(directories).ledgers):
                files = IndexFiles(disk, counted_rolls(directories.main, at).index)
                try:
                    for ledger_id in files.ledgers():
                        if ledger in (None, ledger_id):
                            shown = show_ledger(files, ledger_id, entries, as_json=as_json)
                            whole = whole and shown
                finally:
                    files.close()
        return whole

    if not run(command()):
        raise typer.Exit(FAILED)


@index.command(
    epilog=examples(
        "dlog bookie index rebuild --dir /data/bookie --uri zk://zk1:2181/dlog",
        "dlog bookie index rebuild --dir /data/bookie --no-store --yes",
    )
)
def rebuild(
    directory: BookieDir,
    journal_dir: JournalDirs = None,
    ledger_dir: LedgerDirs = None,
    *,
    no_store: Annotated[
        bool,
        typer.Option(
            "--no-store",
            help="Do not query the metadata store. Then a ledger that was fenced here, has no "
            "entries here, and lost its index file, is no longer fenced.",
        ),
    ] = False,
    yes: Yes = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Rebuild the index of a stopped bookie from its entry logs.

    It fences every ledger, because nobody knows which were fenced: writers that still use this
    bookie continue with another one, or get the error that they lost their ledger. The metadata
    store has the access keys and knows which ledgers belong here. It is refused if an entry log
    is damaged; then let the ledgers be copied from the other replicas instead. It may be
    repeated after a crash."""
    if not yes:
        question = f"Replace the index in {directory}, and fence all of its ledgers?"
        typer.confirm(question, abort=True, err=True)

    async def command() -> None:
        from bookie.tools.offline import check_places, check_used
        from bookie.tools.rebuild import rebuild as run_rebuild
        from bookie.tools.store_ledgers import store_ledgers

        with opened(directory, journal_dir, ledger_dir) as directories, shown_progress() as report:
            check_used(directories)
            cookie = check_places(directories)
            stored = None
            if not no_store:
                if cookie is None:
                    raise failed(
                        "the directories have no cookie, so nobody knows which bookie they "
                        "belong to; put it back, or say --no-store"
                    )
                async with opened_store(uri) as store:
                    stored = await store_ledgers(
                        store,
                        bookie=cookie.bookie,
                        instance=cookie.instance,
                        directory=directories.main.describe(""),
                        progress=report,
                    )
            result = run_rebuild(directories, stored, progress=report)
        show_rebuilt(result, as_json=as_json)

    run(command())
