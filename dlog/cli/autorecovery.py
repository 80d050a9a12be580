"""``dlog autorecovery``: brings ledgers that lost copies back to full replication."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bookie.autorecovery.options import MIB, RATE, DelayS, GraceS, Ledgers, Rate
from dlog.cli.bookie.operating_shown import shown_duration, shown_size
from dlog.cli.connections import connected, opened_store
from dlog.cli.options import Json, Uri, examples
from dlog.cli.output import print_facts, print_json, print_table, shown_progress, shown_time
from dlog.cli.runner import FAILED, run_at, told, until_signal
from dlog.config import load
from ledger.options import HOST_DEFAULT, MetricsHost, MetricsPort, duration, mebibytes
from ledger.values import DURATION_HELP, counted

if TYPE_CHECKING:
    from bookie.autorecovery.worker import RepairThrottle

RATE_MIN: Final = 0.1
"""MiB/s: with less, a worker sleeps for minutes between two messages, and heeds no change."""

app = typer.Typer()


@app.command(
    epilog=examples(
        "dlog autorecovery start",
        "dlog autorecovery start --delay-s 60 --rate 100",
    )
)
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
        with served(exposed, metrics_host, metrics_port, told, security=security):
            async with connected(uri) as client:
                config = config_of(delay_s, grace_s, rate, ledgers)
                await until_signal(run_autorecovery(client, config, exposed))

    run_at(uri, command())


@app.command(epilog=examples("dlog autorecovery status", "dlog autorecovery status --json"))
def status(uri: Uri = None, as_json: Json = False) -> None:
    """Show whether repair is enabled, the auditor, how the last audit ended and what is left to
    do."""

    async def command() -> None:
        from bookie.autorecovery.status import autorecovery_status

        async with opened_store(uri) as store:
            found = await autorecovery_status(store)
        audit = found.last_audit
        facts: dict[str, object] = {
            "enabled": found.enabled,
            "auditor": found.auditor,
            "underreplicated": found.marked,
            "urgent": found.urgent,
            "repairing": len(found.repairing),
            "deferred": found.deferred,
            "waiting_for_bookies": found.waiting,
            "with_lost_entries": found.lost,
            "with_different_copies": found.differing,
            "delay_s": found.delay_s,
            "bytes_per_s": round(found.bytes_per_s),
            "left_s": found.left_s,
            "throttle": _throttle_facts(found.throttle),
        }
        last = {
            "at_ms": 0 if audit is None else audit.at_ms,
            "ledgers": 0 if audit is None else audit.ledgers,
            "marked": 0 if audit is None else audit.marked,
            "damaged": 0 if audit is None else audit.damaged,
            "lost": [] if audit is None else list(audit.lost),
            "alarm": "" if audit is None else audit.alarm,
        }
        if as_json:
            repairing = {str(ledger): found.repairing[ledger] for ledger in found.repairing}
            checks = {
                "ledgers": found.last_check,
                "placement": found.placement,
                "replicas": found.replicas,
            }
            facts["checks"] = {
                kind: None if check is None else asdict(check) for kind, check in checks.items()
            }
            workers = [asdict(worker) for worker in found.workers]
            print_json(
                {
                    **facts,
                    "repairing": repairing,
                    "workers": workers,
                    "last_audit": last if audit else None,
                }
            )
            return
        shown = {name.replace("_", " "): value for name, value in facts.items()}
        shown["enabled"] = "yes" if found.enabled else "no: see 'dlog autorecovery enable'"
        shown["auditor"] = found.auditor or "none: start 'dlog autorecovery start'"
        shown["delay s"] = "-" if found.delay_s is None else found.delay_s
        del shown["bytes per s"], shown["left s"]
        shown["workers"] = len(found.workers)
        shown["copied"] = f"{shown_size(found.bytes_per_s)}/s"
        shown["done in"] = "-" if not found.left_s else shown_duration(found.left_s)
        shown["throttle"] = _shown_throttle(found.throttle)
        if audit is None:
            shown["last audit"] = "never"
        else:
            shown["last audit"] = shown_time(audit.at_ms)
            shown["  ledgers read"] = audit.ledgers
            shown["  marked"] = audit.marked
            shown["  unreadable"] = audit.damaged
            shown["  bookies lost"] = ", ".join(audit.lost) or "-"
            shown["  alarm"] = audit.alarm or "-"
        if check := found.last_check:
            shown["last check of entries"] = shown_time(check.at_ms)
            shown["  ledgers lacking some"] = check.lacking
        if placement := found.placement:
            shown["last check of placement"] = shown_time(placement.at_ms)
            shown["  ledgers misplaced"] = placement.misplaced
        if replicas := found.replicas:
            shown["last count of replicas"] = shown_time(replicas.at_ms)
            shown["  ledgers with bookies away"] = replicas.away
            shown["  of them urgent"] = replicas.urgent
            shown["  ledgers of unknown bookies"] = replicas.unknown
        print_facts(shown)
        if found.workers:
            sys.stdout.write("\n")
            print_table(
                ("worker", "ledgers repaired", "copied", "now", "at most", "ledgers at a time"),
                (
                    (
                        each.worker,
                        each.ledgers,
                        shown_size(each.bytes),
                        f"{shown_size(each.bytes_per_s)}/s",
                        f"{shown_size(each.bytes_per_s_max)}/s" if each.bytes_per_s_max else "-",
                        each.ledgers_max,
                    )
                    for each in found.workers
                ),
            )

    run_at(uri, command())


@app.command(epilog=examples("dlog autorecovery audit", "dlog autorecovery audit --json"))
def audit(uri: Uri = None, as_json: Json = False) -> None:
    """Query all bookies for the entries that they hold, now, and mark the ledgers that lack
    some.

    The auditor does so once a week. No entry is read: 'dlog log verify' finds damaged ones.
    Exits with 1 if a ledger lacks entries, or cannot be read."""

    async def command() -> bool:
        from bookie.autorecovery.checks import Check, check_all, record
        from ledger.log_events import now_ms

        async with connected(uri) as client:
            with shown_progress() as report:

                def show(check: Check) -> None:
                    checked = counted(check.ledgers, "ledger")
                    report(f"{checked} checked, {check.lacking} without entries", 0, 0)

                check = await check_all(client, on_progress=show)
            await record(client.store, check, at_ms=now_ms())
        if as_json:
            print_json(
                {
                    "ledgers": check.ledgers,
                    "lacking": check.lacking,
                    "unsure": check.unsure,
                    "unreadable": check.unreadable,
                }
            )
        else:
            sys.stdout.write(
                f"{counted(check.ledgers, 'ledger')}: {check.lacking} without entries, of "
                f"{check.unsure} some bookies did not say all, {check.unreadable} cannot be read\n"
            )
        return not (check.lacking or check.unreadable)

    if not run_at(uri, command()):
        raise typer.Exit(FAILED)


@app.command(epilog=examples("dlog autorecovery disable"))
def disable(uri: Uri = None, as_json: Json = False) -> None:
    """Pause all workers of the namespace, for maintenance; the auditor continues to mark
    ledgers."""
    _switch(uri, on=False, as_json=as_json)


@app.command(epilog=examples("dlog autorecovery enable"))
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
        if as_json:
            print_json({"enabled": on})
        else:
            sys.stdout.write("workers repair\n" if on else "workers rest\n")

    run_at(uri, command())


@app.command(epilog=examples("dlog autorecovery delay 10m", "dlog autorecovery delay"))
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


@app.command(
    epilog=examples(
        "dlog autorecovery throttle",
        "dlog autorecovery throttle --rate 100",
        "dlog autorecovery throttle --rate 8 --ledgers 1",
        "dlog autorecovery throttle --reset",
    )
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
    if as_json:
        print_json(_throttle_facts(now))
    else:
        sys.stdout.write(_shown_throttle(now) + "\n")


def _throttle_facts(throttle: "RepairThrottle") -> dict[str, object]:
    return {"bytes_per_s": throttle.bytes_per_s, "ledgers": throttle.ledgers_max}


def _shown_throttle(throttle: "RepairThrottle") -> str:
    words = []
    if throttle.bytes_per_s == 0:
        words.append("each copies without a limit")
    elif throttle.bytes_per_s is not None:
        words.append(f"each copies {shown_size(throttle.bytes_per_s)}/s")
    if throttle.ledgers_max is not None:
        words.append(f"{counted(throttle.ledgers_max, 'ledger')} at a time")
    return ", ".join(words) or "each goes as fast as it was started with"
