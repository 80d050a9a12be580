"""``dlog bookie ready``: is it there, and may another one be stopped? For rolling restarts."""

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.connections import opened_store
from dlog.cli.names import complete_bookie
from dlog.cli.options import Json, Uri, examples
from dlog.cli.output import print_json
from dlog.cli.runner import FAILED, run_at
from ledger.options import duration

if TYPE_CHECKING:
    from ledger.metastore.port import MetadataStore

_POLL_S: Final = 1.0
_NAMED_MAX: Final = 10
_EPILOG: Final = examples(
    "dlog bookie ready bookie-1",
    "dlog bookie ready --replicated --wait 10m && systemctl restart dlog-bookie",
    "dlog bookie ready bookie-1 --json",
)


@dataclass(frozen=True, slots=True)
class _Found:
    missing: tuple[str, ...]
    """Bookies that should be there."""
    marked: bool
    """Whether a ledger is known to lack copies."""

    @property
    def ready(self) -> bool:
        return not self.missing and not self.marked

    def __str__(self) -> str:
        away = ", ".join(self.missing[:_NAMED_MAX])
        found = [f"not registered: {away}"] if away else []
        return "; ".join([*found, *(["ledgers lack copies"] if self.marked else [])])


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

    async def command() -> _Found:
        deadline = time.monotonic() + wait_s
        async with opened_store(uri) as store:
            while not (found := await _look(store, bookie, replicated=replicated)).ready:
                if time.monotonic() >= deadline:
                    break
                await asyncio.sleep(_POLL_S)
            return found

    found = run_at(uri, command())
    if as_json:
        print_json(
            {"ready": found.ready, "missing": list(found.missing), "ledgers_lack": found.marked}
        )
    elif not found.ready:
        typer.echo(f"dlog: not ready: {found}", err=True)
    if not found.ready:
        raise typer.Exit(FAILED)


async def _look(store: "MetadataStore", bookie: str | None, *, replicated: bool) -> _Found:
    from bookie.autorecovery.marks import Marks
    from ledger.membership import attendance
    from ledger.metastore.port import children_of
    from ledger.registry import AVAILABLE, READ_ONLY

    if bookie is None:
        missing = tuple(each.bookie for each in (await attendance(store)).bookies if each.is_missed)
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
    return _Found(missing, marked)


def add_to(app: typer.Typer) -> None:
    """Add the command to *app*."""
    app.command(epilog=_EPILOG)(ready)
