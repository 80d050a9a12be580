"""``dlog autorecovery``: brings ledgers that lost copies back to full replication."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bookie.autorecovery.options import MIB, RATE, DelayS, GraceS, Ledgers, Rate
from dlog.cli.commands import CHANGES, READS, SERVES, CommandGroup, Effect, Given
from dlog.cli.connections import connected, opened_store
from dlog.cli.options import Json, Uri
from dlog.cli.output import (
    Column,
    View,
    answer,
    format_duration,
    format_rate,
    format_size,
    format_time,
    json_column,
    print_json,
    print_lines,
    progress_line,
    text_column,
    warn,
)
from dlog.cli.runner import run_at, run_check, until_signal
from dlog.config import load
from ledger.options import HOST_DEFAULT, MetricsHost, MetricsPort, duration, mebibytes
from ledger.values import DURATION_HELP, counted

if TYPE_CHECKING:
    from bookie.autorecovery.checks import Audit, CheckRecord, PlacementRecord, ReplicasRecord
    from bookie.autorecovery.status import AutorecoveryStatus
    from bookie.autorecovery.worker import RepairThrottle, WorkerReport

RATE_MIN: Final = 0.1
"""MiB/s: with less, a worker sleeps for minutes between two messages, and heeds no change."""

app = CommandGroup("cli#ledgers-bookies-a-local-cluster")


def _format_throttle(throttle: "RepairThrottle") -> str:
    words = []
    if throttle.bytes_per_s == 0:
        words.append("each copies without a limit")
    elif throttle.bytes_per_s is not None:
        words.append(f"each copies {format_rate(throttle.bytes_per_s)}")
    if throttle.ledgers_max is not None:
        words.append(f"{counted(throttle.ledgers_max, 'ledger')} at a time")
    return ", ".join(words) or "each copies at the rate it was started with"


_THROTTLE: "Final[View[RepairThrottle]]" = View(
    json_column("bytes_per_s", lambda throttle: throttle.bytes_per_s),
    json_column("ledgers", lambda throttle: throttle.ledgers_max),
)
_AUDIT: "Final[View[Audit]]" = View(
    Column("at_ms", lambda audit: audit.at_ms, "last audit", format_time),
    Column("ledgers", lambda audit: audit.ledgers, "  ledgers read"),
    Column("marked", lambda audit: audit.marked, "  marked"),
    Column("damaged", lambda audit: audit.damaged, "  unreadable"),
    Column("lost", lambda audit: list(audit.lost), "  bookies lost"),
    Column("alarm", lambda audit: audit.alarm, "  alarm"),
)
_CHECK: "Final[View[CheckRecord]]" = View(
    text_column("last check of entries", lambda check: format_time(check.at_ms)),
    text_column("  ledgers lacking some", lambda check: check.lacking),
)
_PLACEMENT: "Final[View[PlacementRecord]]" = View(
    text_column("last check of placement", lambda check: format_time(check.at_ms)),
    text_column("  ledgers misplaced", lambda check: check.misplaced),
)
_REPLICAS: "Final[View[ReplicasRecord]]" = View(
    text_column("last count of replicas", lambda check: format_time(check.at_ms)),
    text_column("  ledgers with unavailable bookies", lambda check: check.away),
    text_column("  of them urgent", lambda check: check.urgent),
    text_column("  ledgers of unknown bookies", lambda check: check.unknown),
)
_WORKER: "Final[View[WorkerReport]]" = View(
    text_column("worker", lambda worker: worker.worker),
    text_column("ledgers repaired", lambda worker: worker.ledgers),
    text_column("copied", lambda worker: format_size(worker.bytes)),
    text_column("now", lambda worker: format_rate(worker.bytes_per_s)),
    text_column(
        "at most",
        lambda worker: format_rate(worker.bytes_per_s_max) if worker.bytes_per_s_max else "-",
    ),
    text_column("ledgers at a time", lambda worker: worker.ledgers_max),
)
_STATUS: "Final[View[AutorecoveryStatus]]" = View(
    Column(
        "enabled",
        lambda status: status.enabled,
        form=lambda on: "yes" if on else "no: see 'dlog autorecovery enable'",
    ),
    Column(
        "auditor",
        lambda status: status.auditor,
        form=lambda name: name or "none: start 'dlog autorecovery start'",
    ),
    Column("underreplicated", lambda status: status.marked),
    Column("urgent", lambda status: status.urgent),
    Column("repairing", lambda status: {str(k): v for k, v in status.repairing.items()}, form=len),
    Column("deferred", lambda status: status.deferred),
    Column("waiting_for_bookies", lambda status: status.waiting),
    Column("with_lost_entries", lambda status: status.lost),
    Column("with_different_copies", lambda status: status.differing),
    Column("delay_s", lambda status: status.delay_s),
    json_column("bytes_per_s", lambda status: round(status.bytes_per_s)),
    json_column("left_s", lambda status: status.left_s),
    json_column("throttle", lambda status: _THROTTLE.json(status.throttle)),
    text_column("throttle", lambda status: _format_throttle(status.throttle)),
    json_column(
        "checks",
        lambda status: {
            "ledgers": _dict(status.last_check),
            "placement": _dict(status.placement),
            "replicas": _dict(status.replicas),
        },
    ),
    json_column("workers", lambda status: [asdict(worker) for worker in status.workers]),
    json_column(
        "last_audit", lambda status: _AUDIT.json(status.last_audit) if status.last_audit else None
    ),
    text_column("workers", lambda status: len(status.workers)),
    text_column("copied", lambda status: format_rate(status.bytes_per_s)),
    text_column(
        "done in", lambda status: format_duration(status.left_s) if status.left_s else None
    ),
)


def _dict(record: "CheckRecord | PlacementRecord | ReplicasRecord | None") -> object:
    return None if record is None else asdict(record)


@app.define(SERVES, "dlog autorecovery start", "dlog autorecovery start --delay-s 60 --rate 100")
def start(
    *,
    delay_s: DelayS = 300.0,
    grace_s: GraceS = 30.0,
    rate: Rate = RATE,
    ledgers: Ledgers = 4,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = HOST_DEFAULT,
    uri: Uri = None,
) -> None:
    """Run one autorecovery process in the foreground until SIGTERM or Ctrl-C.

    Start one beside each bookie, or a few for a cluster: one of them is elected auditor and
    finds missing copies, all of them copy. Stopping one at any moment is safe. 'dlog bookie
    start --autorecovery' runs one with the bookie."""

    async def command() -> None:
        from bookie.autorecovery.process import config_of, run_autorecovery
        from ledger import log_events
        from ledger.metering.declaration import Exposed
        from ledger.metering.http_server import served
        from ledger.process import yield_processor
        from ledger.security.certificates import Security

        yield_processor()
        log_events.configure()
        exposed = Exposed()
        security = await Security.settled(load().secured)
        with served(exposed, metrics_host, metrics_port, warn, security=security):
            async with connected(uri) as client:
                config = config_of(delay_s, grace_s, rate, ledgers)
                await until_signal(run_autorecovery(client, config, exposed))

    run_at(uri, command())


@app.define(READS, "dlog autorecovery status", "dlog autorecovery status --json")
def status(uri: Uri = None, as_json: Json = False) -> None:
    """Show whether repair is enabled, the auditor, how the last audit ended and what is left to
    do."""

    async def command() -> None:
        from bookie.autorecovery.status import autorecovery_status

        async with opened_store(uri) as store:
            status = await autorecovery_status(store)
        if as_json:
            print_json(_STATUS.json(status))
            return
        lines = _STATUS.lines(status)
        lines |= _AUDIT.lines(status.last_audit) if status.last_audit else {"last audit": "never"}
        lines |= _CHECK.lines(status.last_check) if status.last_check else {}
        lines |= _PLACEMENT.lines(status.placement) if status.placement else {}
        lines |= _REPLICAS.lines(status.replicas) if status.replicas else {}
        print_lines(lines)
        if status.workers:
            sys.stdout.write("\n")
            _WORKER.table(status.workers)

    run_at(uri, command())


@app.define(CHANGES, "dlog autorecovery audit", "dlog autorecovery audit --json")
def audit(uri: Uri = None, as_json: Json = False) -> None:
    """Query all bookies for the entries that they hold, now, and mark the ledgers that lack
    some.

    The auditor does so once a week. No entry is read: 'dlog log verify' finds damaged ones.
    Exits with 1 if a ledger lacks entries, or cannot be read."""

    async def command() -> bool:
        from bookie.autorecovery.checks import Check, check_all, record
        from ledger.log_events import now_ms

        async with connected(uri) as client:
            with progress_line() as report:

                def show(check: Check) -> None:
                    checked = counted(check.ledgers, "ledger")
                    report(f"{checked} checked, {check.lacking} without entries", 0, 0)

                check = await check_all(client, on_progress=show)
            await record(client.store, check, at_ms=now_ms())
        answer(
            {
                "ledgers": check.ledgers,
                "lacking": check.lacking,
                "unsure": check.unsure,
                "unreadable": check.unreadable,
            },
            f"{counted(check.ledgers, 'ledger')}: {check.lacking} without entries, "
            f"{check.unsure} not fully reported, {check.unreadable} unreadable\n",
            as_json=as_json,
        )
        return not (check.lacking or check.unreadable)

    run_check(uri, command())


@app.define(CHANGES, "dlog autorecovery disable")
def disable(uri: Uri = None, as_json: Json = False) -> None:
    """Pause all workers of the namespace, for maintenance; the auditor continues to mark
    ledgers."""
    _switch(uri, on=False, as_json=as_json)


@app.define(CHANGES, "dlog autorecovery enable")
def enable(uri: Uri = None, as_json: Json = False) -> None:
    """Resume workers that were disabled."""
    _switch(uri, on=True, as_json=as_json)


def _switch(uri: str | None, *, on: bool, as_json: bool) -> None:
    async def command() -> None:
        from bookie.autorecovery.marks import Marks
        from ledger.log_events import now_ms

        async with opened_store(uri) as store:
            if on:
                await Marks(store).enable()
            else:
                await Marks(store).disable(now_ms=now_ms())
        answer(
            {"enabled": on}, "repair is enabled\n" if on else "repair is paused\n", as_json=as_json
        )

    run_at(uri, command())


@app.define(CHANGES, "dlog autorecovery delay 10m", "dlog autorecovery delay")
def delay(
    seconds: Annotated[
        float | None,
        typer.Argument(
            metavar="[DURATION]",
            help=f"{DURATION_HELP}; without it auditors use the delay they were started with.",
            parser=duration(),
        ),
    ] = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Set for all auditors how long a bookie may be unavailable before its copies are made
    elsewhere.

    It applies from the next time that a bookie registers or disappears."""

    async def command() -> None:
        from bookie.autorecovery.marks import Marks

        async with opened_store(uri) as store:
            await Marks(store).set_delay(seconds)
        if as_json:
            print_json({"delay_s": seconds})
        elif seconds is None:
            sys.stdout.write("each auditor waits as long as it was started with\n")
        else:
            sys.stdout.write(f"auditors wait {seconds:g} s\n")

    run_at(uri, command())


def _sets_throttle(given: Given) -> bool:
    return given["reset"] is True or (given["rate"], given["ledgers"]) != (None, None)


@app.define(
    Effect(_sets_throttle),
    "dlog autorecovery throttle",
    "dlog autorecovery throttle --rate 100",
    "dlog autorecovery throttle --rate 8 --ledgers 1",
    "dlog autorecovery throttle --reset",
)
def throttle(
    *,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            help="MiB (or 100M, 1G) that each process copies a second; 0: no limit.",
            parser=mebibytes,
            metavar="SIZE",
        ),
    ] = None,
    ledgers: Annotated[
        int | None,
        typer.Option(
            "--ledgers", help="Ledgers that each process repairs at a time.", min=1, max=64
        ),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Return to the rate that each process was started with.")
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Set how fast all autorecovery processes copy, while they run; without an option, show it.

    Options that are not given keep their values. Applied within a second or two, also by
    processes that start later. Lower it when the cluster is busy; raise it when a second loss
    would be dangerous. 'dlog autorecovery status' shows the current rate. Manual recoveries
    ('dlog bookie recover', 'dlog bookie rebalance') have a --rate of their own."""
    if rate is not None and 0 < rate < RATE_MIN:
        raise typer.BadParameter(
            f"{rate:g} is less than {RATE_MIN:g}; see 'dlog autorecovery disable'"
        )
    if reset and (rate, ledgers) != (None, None):
        raise typer.BadParameter("--reset cannot be combined with --rate or --ledgers")

    async def command() -> "RepairThrottle":
        from bookie.autorecovery.worker import RepairThrottle, read_throttle, set_throttle

        async with opened_store(uri) as store:
            before = RepairThrottle() if reset else await read_throttle(store)
            wanted = RepairThrottle(
                bytes_per_s=before.bytes_per_s if rate is None else rate * MIB,
                ledgers_max=before.ledgers_max if ledgers is None else ledgers,
            )
            if reset or wanted != before:
                await set_throttle(store, wanted)
        return wanted

    now = run_at(uri, command())
    answer(_THROTTLE.json(now), _format_throttle(now) + "\n", as_json=as_json)
