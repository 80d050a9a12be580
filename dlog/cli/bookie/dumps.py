"""``dlog bookie journal|entrylog|index``: the files of a stopped bookie, one kind at a time.

They are shown as JSON for programs, as lines and tables for people.
"""

import hashlib
import sys
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.bookie.offline import DAMAGE, OFFLINE, opened, print_damage
from dlog.cli.commands import READS, CommandGroup, not_recorded
from dlog.cli.connections import opened_store
from dlog.cli.options import BookieDir, JournalDirs, Json, Ledger, LedgerDirs, Uri, Yes
from dlog.cli.output import Column, View, answer, print_json, print_lines, progress_line
from dlog.cli.runner import FAILED, confirm, failed, run
from ledger.values import counted

if TYPE_CHECKING:
    from bookie.entrylog.catalog import Batch
    from bookie.index.format import LedgerHeader
    from bookie.tools.entrylog_files import LogEnd, LogSummary
    from bookie.tools.index_files import IndexFiles
    from bookie.tools.journal_walk import JournalEnd, Placed
    from bookie.tools.rebuild import Rebuilt

_KEY_DIGITS: Final = 8
journal = CommandGroup(OFFLINE, "Inspect the journals of a stopped bookie.")
entrylog = CommandGroup(OFFLINE, "Inspect the entry logs of a stopped bookie.")
index = CommandGroup(OFFLINE, "Inspect the index of a stopped bookie, or rebuild it.")
_LOGGED: Final[View[tuple[int, ...]]] = View(
    Column("ledger", itemgetter(0)),
    Column("entries", itemgetter(1)),
    Column("bytes", itemgetter(2)),
)
_PLACE: Final[View[tuple[int, int, int, int]]] = View(
    Column("entry", itemgetter(0)),
    Column("log", itemgetter(1), form="{:08x}".format),
    Column("offset", itemgetter(2)),
    Column("bytes", itemgetter(3)),
)


def show_record(placed: "Placed", *, as_json: bool) -> None:
    record = placed.record
    entries = record.entries
    if as_json:
        print_json(
            {
                "file": placed.journal_id,
                "path": placed.path,
                "offset": placed.offset,
                "kind": record.kind.name.lower(),
                "ledger": record.ledger_id,
                "key_digest": key_digest(record.key),
                "entries": list(entries),
                "bytes": placed.length,
                "synced_to": placed.synced_to,
            }
        )
        return
    what = f"{entries[0]}..{entries[-1]} ({len(entries)})" if entries else "-"
    sys.stdout.write(
        f"{placed.journal_id:x}:{placed.offset}\t{record.kind.name.lower()}\t"
        f"ledger {record.ledger_id}\tentries {what}\t{placed.length} bytes\t"
        f"synced to {placed.synced_to}\n"
    )


def show_end(end: "JournalEnd", *, as_json: bool) -> None:
    if as_json:
        print_json(
            {"path": end.path, "end": end.offset, "reason": end.reason, "damaged": end.is_damage}
        )
        return
    kind = "DAMAGED" if end.is_damage else "ends"
    sys.stdout.write(f"{end.path} {kind} at byte {end.offset}: {end.reason}\n")


def show_log(log: "LogSummary", ledger: int | None, *, as_json: bool) -> None:
    ledger_map = log.ledger_map
    rows: list[tuple[int, ...]] = []
    if ledger_map is not None:
        columns = (ledger_map.ledgers, ledger_map.counts, ledger_map.sizes_bytes)
        rows = [row for row in zip(*columns, strict=True) if ledger in (None, row[0])]
    if as_json:
        print_json(
            {
                "log": log.log_id,
                "path": log.path,
                "bytes": log.size_bytes,
                "damage": log.damage or None,
                "frames_end": ledger_map and ledger_map.frames_end,
                "sources": list(ledger_map.sources) if ledger_map else None,
                "ledgers": _LOGGED.rows(rows) if ledger_map else None,
            }
        )
        return
    facts: dict[str, object] = {"log": f"{log.log_id:08x}", "file": log.path}
    facts["bytes"] = log.size_bytes
    if log.damage:
        facts["DAMAGED"] = log.damage
    elif ledger_map is None:
        facts["map"] = "none: it was not ended in order, as a crash leaves it"
    else:
        facts["map"] = (
            f"{counted(len(ledger_map.ledgers), 'ledger')}, "
            f"frames end at byte {ledger_map.frames_end}"
        )
        if ledger_map.sources:
            sources = ", ".join(f"{source:08x}" for source in ledger_map.sources)
            facts["compacted from"] = sources
    print_lines(facts)
    if rows:
        _LOGGED.table(rows)
    sys.stdout.write("\n")


def show_frames(log_id: int, batch: "Batch", *, as_json: bool) -> None:
    from ledger.entry import parse_header

    view = memoryview(batch.run.data)
    for entry_id, offset, length in batch.entries():
        header = parse_header(view[offset - batch.offset :])
        answer(
            {
                "log": log_id,
                "offset": offset,
                "ledger": batch.ledger_id,
                "entry": entry_id,
                "bytes": length,
                "payload_bytes": header.payload_bytes,
                "last_add_confirmed": header.last_add_confirmed,
                "digest": header.digest.name,
            },
            f"{log_id:08x}:{offset}\tledger {batch.ledger_id}\tentry {entry_id}\t"
            f"{length} bytes\tLAC {header.last_add_confirmed}\n",
            as_json=as_json,
        )


def show_log_end(log: "LogSummary", end: "LogEnd", *, as_json: bool) -> None:
    if as_json:
        print_json(
            {"log": log.log_id, "end": end.offset, "reason": end.reason, "damaged": end.is_damage}
        )
        return
    kind = "DAMAGED" if end.is_damage else "frames end"
    reason = f": {end.reason}" if end.reason else ""
    sys.stdout.write(f"{log.path} {kind} at byte {end.offset}{reason}\n")


def show_ledger(files: "IndexFiles", ledger_id: int, entries: bool, *, as_json: bool) -> bool:
    """Return whether it could be read wholly."""
    from bookie.errors import IndexDamaged

    damages: list[IndexDamaged] = []
    header: LedgerHeader | None = None
    count = 0
    places: list[tuple[int, int, int, int]] = []
    try:
        header = files.header(ledger_id)
    except IndexDamaged as damage:
        damages.append(damage)
    for number in files.pages(header) if header else ():
        assert header is not None
        try:
            locations = files.locations(header, number)
        except IndexDamaged as damage:
            damages.append(damage)
            continue
        count += len(locations)
        if entries:
            places += locations
    indexed = _index_view(count)
    if as_json:
        facts: dict[str, object] = {"ledger": ledger_id, "path": files.path(ledger_id)}
        facts |= indexed.json(header) if header is not None else {}
        facts |= {"places": _PLACE.rows(places)} if places else {}
        print_json({**facts, "damages": DAMAGE.rows(damages)})
        return not damages
    lines: dict[str, object] = {"ledger": ledger_id, "file": files.path(ledger_id)}
    print_lines({**lines, **(indexed.lines(header) if header is not None else {})})
    for one in damages:
        print_damage(one)
    if places:
        _PLACE.table(places)
    sys.stdout.write("\n")
    return not damages


def _index_view(entries: int) -> "View[LedgerHeader]":
    """Return the form of an index file with so many *entries*."""
    return View(
        Column("fenced", lambda header: header.fenced),
        Column("last_entry", lambda header: header.last_entry),
        Column("entries", lambda _: entries),
        Column("last_add_confirmed", _lac, "LAC"),
        Column("key_digest", lambda header: key_digest(header.key)),
        Column("pages", lambda header: [list(extent) for extent in header.extents], form=_extents),
    )


def _extents(pages: list[list[int]]) -> str:
    return ", ".join(f"{first}..{last}" for first, last in pages) or "none"


def _lac(header: "LedgerHeader") -> int | None:
    from ledger.entry import parse_header
    from ledger.errors import DamagedEntry

    if not header.lac_proof:
        return None
    try:
        return parse_header(header.lac_proof).last_add_confirmed
    except DamagedEntry:
        return None


def key_digest(key: bytes) -> str:
    """Return enough of an access key's hash to compare keys, and too little to use one."""
    return hashlib.sha256(key).hexdigest()[:_KEY_DIGITS]


def show_rebuilt(result: "Rebuilt", *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "ledgers": result.ledgers,
                "entries": result.entries,
                "entry_logs": result.entry_logs,
                "damaged_before": result.damaged_before,
                "left_out": list(result.left_out),
                "asked_store": result.asked_store,
                "losses": list(result.losses),
            }
        )
        return
    typer.echo(
        f"the index of {counted(result.ledgers, 'ledger')} with "
        f"{counted(result.entries, 'entry')} was rebuilt from "
        f"{counted(result.entry_logs, 'entry log')}; all of them are fenced. Before, "
        f"{result.damaged_before} could not be read",
        err=True,
    )
    if result.left_out:
        shown = ", ".join(map(str, result.left_out[:10]))
        typer.echo(
            "left out, because the cluster no longer knows them: "
            f"{counted(len(result.left_out), 'ledger')} "
            f"({shown}{', ...' if len(result.left_out) > 10 else ''})",
            err=True,
        )
    if result.losses:
        typer.echo(
            "entries may be lost, so the bookie denies none of ledgers that are open until those "
            f"are closed (limbo): {'; '.join(result.losses)}",
            err=True,
        )
    if not result.asked_store:
        typer.echo(
            "ledgers that were only fenced here, and whose index was lost, are no longer fenced",
            err=True,
        )


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is not a hexadecimal number as in a file's name"
        ) from error


@journal.define(
    READS,
    "dlog bookie journal dump --dir /data/bookie",
    "dlog bookie journal dump --dir /data/bookie --ledger 12 --all",
    "dlog bookie journal dump --dir /data/bookie --file 1f --json | jq -c .entries",
    name="dump",
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


@entrylog.define(
    READS,
    "dlog bookie entrylog dump --dir /data/bookie",
    "dlog bookie entrylog dump --dir /data/bookie --log 1a --ledger 12 --frames",
    name="dump",
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
                    summary = entrylog_files.summary(disk, log_id)
                    whole = whole and not summary.damage
                    show_log(summary, ledger, as_json=as_json)
                    for item in entrylog_files.frames(disk, summary) if frames else ():
                        if isinstance(item, LogEnd):
                            whole = whole and not item.is_damage
                            show_log_end(summary, item, as_json=as_json)
                        elif ledger in (None, item.ledger_id):
                            show_frames(log_id, item, as_json=as_json)
        return whole

    if not run(command()):
        raise typer.Exit(FAILED)


@index.define(
    READS,
    "dlog bookie index dump --dir /data/bookie",
    "dlog bookie index dump --dir /data/bookie --ledger 12 --entries",
    name="dump",
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


@index.define(
    not_recorded("it changes the files of one bookie, which is stopped"),
    "dlog bookie index rebuild --dir /data/bookie --uri zk://zk1:2181/dlog",
    "dlog bookie index rebuild --dir /data/bookie --no-store --yes",
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
    confirm(f"Replace the index in {directory}, and fence all of its ledgers?", yes=yes)

    async def command() -> None:
        from bookie.tools.offline import check_places, check_used
        from bookie.tools.rebuild import rebuild as run_rebuild
        from bookie.tools.rebuild_plan import store_ledgers

        with opened(directory, journal_dir, ledger_dir) as directories, progress_line() as report:
            check_used(directories)
            cookie = check_places(directories)
            stored = None
            if not no_store:
                if cookie is None:
                    raise failed(
                        "the directories have no cookie, so nobody knows which bookie they "
                        "belong to; put it back, or use --no-store"
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
