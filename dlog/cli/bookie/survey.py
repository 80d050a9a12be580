"""``dlog bookie list|ready|where``: which bookies there are, whether one more may be stopped, and
what they hold of a ledger or a log."""

import asyncio
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import READS, CommandGroup
from dlog.cli.completion import complete_bookie, complete_log
from dlog.cli.connections import connected, opened_store
from dlog.cli.options import Json, Uri
from dlog.cli.output import (
    Column,
    View,
    format_time,
    json_column,
    print_json,
    print_table,
    progress_bar,
    text_column,
    warn,
    write_text,
)
from dlog.cli.runner import FAILED, run_at, run_check
from ledger.ids import LedgerId
from ledger.options import duration

if TYPE_CHECKING:
    from bookie.autorecovery.replica_scan import Holder, Located
    from ledger.client import LedgerClient
    from ledger.membership import RetiredName
    from ledger.metastore.port import MetadataStore
    from ledger.registry import BookieRegistration

app = CommandGroup("operations#operating-running-bookies")
_BOOKIE: "Final[View[tuple[BookieRegistration, str]]]" = View(
    Column("bookie", lambda listed: listed[0].bookie),
    Column("address", lambda listed: listed[0].address),
    Column("rack", lambda listed: listed[0].rack),
    json_column("read_only", lambda listed: listed[0].read_only),
    text_column(
        "state",
        lambda listed: (
            ("read-only" if listed[0].read_only else "writable")
            + (", in limbo" if listed[1] else "")
        ),
    ),
    json_column("limbo", lambda listed: listed[1]),
    json_column("incarnation", lambda listed: listed[0].incarnation),
)
_RETIRED: "Final[View[RetiredName]]" = View(
    text_column("bookie", lambda name: name.bookie),
    text_column("retired", lambda name: format_time(name.retired_ms)),
    text_column("named by ledgers", lambda name: "no" if name.emptied else "maybe"),
    Column("", lambda name: name.reason, "why", str),
)
_POLL_S: Final = 1.0
_NAMED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class _Readiness:
    missing: tuple[str, ...]
    """Bookies that are known and not registered."""
    marked: bool
    """A ledger is known to lack copies."""

    @property
    def ready(self) -> bool:
        return not self.missing and not self.marked

    def __str__(self) -> str:
        missing = ", ".join(self.missing[:_NAMED_MAX])
        obstacles = [f"not registered: {missing}"] if missing else []
        return "; ".join([*obstacles, *(["ledgers lack copies"] if self.marked else [])])


@app.define(
    READS,
    "dlog bookie ready bookie-1",
    "dlog bookie ready --replicated --wait 10m && systemctl restart dlog-bookie",
    "dlog bookie ready bookie-1 --json",
)
def ready(
    bookie: Annotated[
        str | None,
        typer.Argument(
            metavar="[BOOKIE]",
            autocompletion=complete_bookie,
            help="Name of a bookie, or its part before a hyphen. Default: all known bookies.",
            show_default=False,
        ),
    ] = None,
    *,
    replicated: Annotated[
        bool,
        typer.Option(
            "--replicated", help="Also require that no ledger is known to be underreplicated."
        ),
    ] = False,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="DURATION",
            help="How long to wait for that.",
            parser=duration(),
        ),
    ] = 0.0,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Report whether bookies are registered, and with --replicated whether one more may be
    stopped.

    Exits with 0 if so, at the latest after --wait, else with 1: a rolling restart stops the
    next bookie only after 'dlog bookie ready --replicated'. Reads metadata only."""

    async def command() -> _Readiness:
        deadline = time.monotonic() + wait_s
        async with opened_store(uri) as store:
            while not (readiness := await _look(store, bookie, replicated=replicated)).ready:
                if time.monotonic() >= deadline:
                    break
                await asyncio.sleep(_POLL_S)
            return readiness

    readiness = run_at(uri, command())
    if as_json:
        print_json(
            {
                "ready": readiness.ready,
                "missing": list(readiness.missing),
                "ledgers_lack": readiness.marked,
            }
        )
    elif not readiness.ready:
        warn(f"not ready: {readiness}")
    if not readiness.ready:
        raise typer.Exit(FAILED)


async def _look(store: "MetadataStore", bookie: str | None, *, replicated: bool) -> _Readiness:
    from bookie.autorecovery.marks import Marks
    from ledger.membership import attendance
    from ledger.metastore.port import children_of
    from ledger.registry import AVAILABLE, READ_ONLY

    if bookie is None:
        missing = tuple(
            bookie.bookie for bookie in (await attendance(store)).bookies if bookie.is_missed
        )
    else:
        await store.sync()
        there = {*await children_of(store, AVAILABLE), *await children_of(store, READ_ONLY)}
        is_there = any(name == bookie or name.startswith(f"{bookie}-") for name in there)
        missing = () if is_there else (bookie,)
    marked = False
    if replicated:
        async for bucket in Marks(store).buckets():
            marked = marked or bool(bucket)
            if marked:
                break
    return _Readiness(missing, marked)


@app.define(
    READS, "dlog bookie list", "dlog bookie list --json", "dlog bookie list --retired", name="list"
)
def list_bookies(
    *,
    retired: Annotated[
        bool,
        typer.Option(
            "--retired", help="List the names that no bookie can ever use again, and why."
        ),
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """List the registered bookies, and why those in limbo are.

    Exits with 1 if a registration cannot be read: it is reported, and the others are listed."""
    if retired:
        run_at(uri, _list_retired(uri, as_json=as_json))
        return

    async def command() -> bool:
        from ledger.registry import BookieDirectory, limbo_of

        async with opened_store(uri) as store:
            directory = BookieDirectory(store)
            await directory.start()
            available, damaged = directory.available(), directory.damaged()
            await directory.close()
            limbo = await limbo_of(store, [bookie.bookie for bookie in available])
        for error in damaged:
            warn(f"left out: {error}")
        listed = [(bookie, limbo.get(bookie.bookie, "")) for bookie in available]
        _BOOKIE.print_all(listed, "no bookie is registered", as_json=as_json)
        if not as_json:
            for bookie, reason in limbo.items():
                write_text(f"bookie {bookie} is {reason}\n")
        sys.stdout.flush()
        return not damaged

    run_check(uri, command())


async def _list_retired(uri: str | None, *, as_json: bool) -> None:
    from ledger.membership import retired_names

    async with opened_store(uri) as store:
        names = await retired_names(store)
    if as_json:
        print_json([asdict(name) for name in names])
    else:
        _RETIRED.table(names)


@app.define(
    READS,
    "dlog bookie where 12",
    "dlog bookie where flights",
    "dlog bookie where flights --json | jq 'select(.whole | not)'",
    documented="cli#ledgers-bookies-a-local-cluster",
)
def where(
    thing: Annotated[
        str,
        typer.Argument(
            metavar="LEDGER|LOG",
            help="Id of a ledger, or name of a log; a number is an id.",
            autocompletion=complete_log,
        ),
    ],
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Show which bookies hold which entries, whether they are available, and what they lack.

    Queries the available ones for what they hold; no entry is read ('dlog log verify' does
    that). With --json, one line for each ledger. Exits with 1 if a copy is missing: a bookie is
    unavailable, or reports that it lacks entries it should have."""

    async def command() -> bool:
        from bookie.autorecovery.replica_scan import locate, states_of

        is_whole = True
        async with connected(uri) as client:
            ledgers = await _ledgers(client, thing)
            states = await states_of(client)
            with progress_bar(f"asking the bookies of {thing}") as advance:
                for number, ledger_id in enumerate(ledgers):
                    advance(number, len(ledgers), f"ledger {ledger_id}")
                    located = await locate(client, ledger_id, states)
                    is_whole &= located.is_whole
                    if as_json:
                        print_json(_facts(located))
                    else:
                        _print(located)
        return is_whole

    run_check(uri, command())


async def _ledgers(client: "LedgerClient", thing: str) -> list[LedgerId]:
    if thing.isascii() and thing.isdigit():
        return [LedgerId(int(thing))]
    from dlog.aio.admin import log_info

    manifest = (await log_info(thing, client=client)).manifest
    return list(manifest.listed_ledgers)


def _facts(located: "Located") -> dict[str, object]:
    mark = located.mark
    return {
        "ledger": located.ledger_id,
        "state": located.metadata.state.name,
        "whole": located.is_whole,
        "marked": mark is not None,
        "why": "" if mark is None else mark.deferred_why,
        "fragments": [
            {
                "first_entry": place.first,
                "last_entry": place.last,
                "bookies": [
                    {
                        "bookie": holder.bookie,
                        "state": holder.state.value,
                        "missing": [list(span) for span in holder.missing],
                        "unsure": [list(span) for span in holder.unsure],
                    }
                    for holder in place.holders
                ],
            }
            for place in located.places
        ],
    }


def _print(located: "Located") -> None:
    mark = "" if located.mark is None else ", marked to be repaired"
    title = f"ledger {located.ledger_id}: {located.metadata.state.name}{mark}"
    rows = [
        (
            place.first,
            "..." if place.last is None else place.last,
            holder.bookie,
            holder.state.value,
            _lacks(holder),
        )
        for place in located.places
        for holder in place.holders
    ]
    print_table(("from entry", "to", "bookie", "state", "lacks"), rows, title)
    if located.mark is not None and located.mark.deferred_why:
        write_text(f"not repaired yet: {located.mark.deferred_why}\n")
    write_text("\n")


def _lacks(holder: "Holder") -> str:
    words = [f"{first}..{last}" for first, last in holder.missing]
    if holder.unsure:
        spans = ", ".join(f"{first}..{last}" for first, last in holder.unsure)
        words.append(f"{'did not report' if holder.state.serves else 'cannot give'} {spans}")
    return ", ".join(words) or "-"
