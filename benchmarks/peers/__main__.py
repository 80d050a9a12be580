"""dlog beside Apache BookKeeper, DistributedLog and Kafka, on this machine, in turns.

    python -m benchmarks.peers [--only ROW ...] [--beside SYSTEM ...] [--rounds N] [--quick]
                               [--dir DIR] [--keep FILE] [--json]
                               [--warm-under COMMAND] [--measure-under COMMAND]
    python -m benchmarks.peers --table [--keep FILE]

Three servers each, three copies of which two are acknowledged, synced before that; one writer. In
each round every system is measured once, in turns, after one round that counts for nothing. Servers
are started when they are needed first, and end with the run. Before each measurement, but for
catching up, the system's memory lets go of what it has of all their files. A peer that fails is
left out of the round, which is said. Samples are added to FILE; --table makes
`benchmarks/peers.md` and `benchmarks/peers.svg` of all that are in it. So rows may be measured in
runs of their own, on a machine that is quiet for minutes.

Peers come from Maven Central, through Maven; their clients are compiled with javac of Java 17 or
newer. What is missing is said in a sentence, with exit code 3.
"""

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.peers.holding import held
from benchmarks.peers.jars import PeerMissing
from benchmarks.peers.rows import QUICK, ROWS, Measured, On, Row, Sizes, warmed
from benchmarks.peers.samples import BadSamples, Sample, Samples, keep, kept
from benchmarks.peers.systems import SYSTEMS, Cluster
from benchmarks.peers.table import drawing, page, summary
from benchmarks.peers.uncached import let_go

_MISSING: Final = 3
_INTERRUPTED: Final = 130
_FREE_BYTES: Final = 50 << 30
"""A row writes as much on a quick disk; a bookie takes no more when its disk is nearly full."""
_PAGE: Final = Path(__file__).parents[1] / "peers.md"
_KEPT: Final = Path("build/bench-peers.jsonl")


async def measure(options: argparse.Namespace, place: Path) -> list[Sample]:
    """Measure what *options* ask for; each round is kept as soon as it ends."""
    sizes = QUICK if options.quick else Sizes()
    run = datetime.now(UTC).isoformat(timespec="seconds")
    samples: list[Sample] = []
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with Cluster(place) as cluster:
        on = On(cluster, sizes)
        rows = {name: _wanted(name, options) for name in options.only or ROWS}
        async with held(options.warm_under):
            await warmed(on, dict.fromkeys(each for wanted in rows.values() for each in wanted))
        for name, wanted in rows.items():
            row = ROWS[name]
            check_room(name, options)
            async with held(options.measure_under) as check:
                for number in range(0 if row.warm else 1, options.rounds + 1):
                    turn = wanted[number % len(wanted) :] + wanted[: number % len(wanted)]
                    found = await one_round(on, row, turn)
                    check()
                    if number:
                        samples += _keep(found, run, number, options.keep)
    return samples


async def one_round(on: On, row: Row, turn: Iterable[str]) -> dict[str, Measured]:
    """Return what each in *turn* did. A peer that fails is left out; its client begins anew, warm.

    Raises `PeerMissing` if it is dlog that fails, or a peer's second client."""
    found: dict[str, Measured] = {}
    for each in turn:
        if row.uncached:
            await asyncio.to_thread(let_go, on.cluster.directory)
        try:
            found[each] = await row.measure(on, each, on.sizes.seconds)
        except PeerMissing as error:
            if SYSTEMS[each].servers == "dlog":
                raise
            print(f"bench-peers: a round without {each}: {error}", file=sys.stderr)
            await on.forget(each)
            await warmed(on, [each])
    return found


def check_room(row: str, options: argparse.Namespace) -> None:
    """Raises `PeerMissing` if the disk has no room for what *row* writes."""
    free = shutil.disk_usage(options.dir).free
    if not options.quick and free < _FREE_BYTES:
        raise PeerMissing(
            f"{options.dir} has {free >> 30} GiB free, and {row} needs {_FREE_BYTES >> 30}; if "
            f"rows before it took them, a run of its own has them again: --only {row}"
        )


def _wanted(row: str, options: argparse.Namespace) -> list[str]:
    """Return the systems to measure *row* of. Raises `PeerMissing` if there are none."""
    wanted = [each for each in ROWS[row].systems if each in (options.beside or SYSTEMS)]
    if not wanted:
        raise PeerMissing(f"{row} is not measured of {', '.join(options.beside)}")
    return wanted


def _keep(found: Mapping[str, Measured], run: str, number: int, path: Path) -> Iterable[Sample]:
    samples = [
        Sample(metric, system, value, run, number)
        for system, measured in found.items()
        for metric, value in measured.items()
    ]
    keep(samples, path)
    for each in samples:
        print(f"{each.round} {each.metric:16} {each.system:24} {each.value:10.3f}", file=sys.stderr)
    return samples


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", choices=list(ROWS), nargs="+", help="not all rows, but these")
    add("--beside", choices=list(SYSTEMS), nargs="+", help="not all systems, but these")
    add("--rounds", type=_at_least_one, default=3, help="that count, of each row (3)")
    add("--quick", action="store_true", help="very little of each, to see that it works")
    add("--dir", type=Path, default=Path("build"), help="on the disk to be measured")
    add("--keep", type=Path, default=_KEPT, help=f"where samples are added ({_KEPT})")
    add("--warm-under", default="", metavar="COMMAND", help="hold this while all gets warm")
    add(
        "--measure-under",
        default="",
        metavar="COMMAND",
        help="hold this while a row is measured: a command that runs another when it may, as "
        "`flock FILE`",
    )
    add("--table", action="store_true", help="measure nothing: make the page of what was kept")
    add("--json", action="store_true", help="print samples as lines of JSON instead of tables")
    return parser.parse_args()


def _at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: it takes one round at least")
    return int(text)


def main() -> int:
    options = arguments()
    try:
        samples = kept(options.keep) if options.table else _measured(options)
    except (PeerMissing, BadSamples) as error:
        print(f"bench-peers: {error}", file=sys.stderr)
        return _MISSING
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("bench-peers: interrupted; whole rounds are kept", file=sys.stderr)
        return _INTERRUPTED
    if options.table:
        _PAGE.write_text(page(Samples(samples)))
        _PAGE.with_suffix(".svg").write_text(drawing(Samples(samples)))
    if options.json:
        for each in samples:
            print(json.dumps(asdict(each)))
    else:
        print(summary(Samples(samples)))
    return 0


def _measured(options: argparse.Namespace) -> list[Sample]:
    options.dir.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="bench-peers-", dir=options.dir)).absolute()
    try:
        return asyncio.run(measure(options, place))
    except PeerMissing:
        said = place.with_name("bench-peers-logs")
        shutil.rmtree(said, ignore_errors=True)
        for log in place.rglob("*.log"):
            if not log.name[0].isdigit():  # Kafka's segments are called so too
                target = said / log.relative_to(place)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(log, target)
        print(f"bench-peers: what the processes said is in {said}", file=sys.stderr)
        raise
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
