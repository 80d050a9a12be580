"""The command line of one bookie: arguments, signals, logging, exit status.

Exit status 0 after a clean stop, 1 if it could not start or its storage failed. A failed
storage ends the process at once: threads that still hang in the disk are not waited for.
"""

import argparse
import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bookie.collector.plan import CollectorConfig
from bookie.config import BookieConfig
from bookie.disk.watch import DiskLimits
from bookie.process import run_bookie
from bookie.server.descriptors import raise_descriptor_limit
from ledger import log_events
from ledger.errors import LogError

_MIB: Final = 1024 * 1024
_PR_SET_PDEATHSIG: Final = 1
_ABOUT: Final = """\
Run one bookie: a server that keeps entries of ledgers on its disks, and acknowledges them only
when they are there to stay. It runs in the foreground until SIGTERM or Ctrl-C.

Exit status: 0 after a clean stop, 1 if it could not start or its disk failed, 2 for wrong options.
"""
_ABOUT_DIRECTORIES: Final = """\
Everything is in --dir unless other directories are named. An add is acknowledged when it is in a
journal: give journals disks of their own, and no add waits for anything else that is written.
Ledgers are shared out by their ids, so the directories stay as they were at the first start, in
the same order.
"""
_ABOUT_SPACE: Final = """\
A bookie with too little space on any of its disks becomes read-only: it serves reads, fences and
recovery, and refuses new entries, until there is space again. Shares are of the file system's
space, from 0 to 1.
"""
_ABOUT_COLLECTOR: Final = """\
Garbage collection deletes ledgers that the cluster does not know any more; compaction copies what
is left in entry logs to new ones, and removes the old. A minor compaction takes logs with little
left in them, a major one all that are worth it. A threshold or an interval of 0 switches one off.
"""
_EPILOG: Final = """\
examples:
  bookie --uri file:///var/lib/dlog/metadata --dir /var/lib/dlog/b1
  bookie --uri zk://zk1:2181,zk2:2181/dlog --host 0.0.0.0 --advertise b1.example.org \\
         --dir /ssd/bookie --journal-dir /nvme0/journal --journal-dir /nvme1/journal \\
         --ledger-dir /disk1/ledgers --ledger-dir /disk2/ledgers
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a bookie as *arguments* say; return the exit status."""
    options = _parsed(arguments)
    if options.die_with_parent:
        die_with_parent()
    log_events.configure()
    raise_descriptor_limit()
    try:
        config = _config(options)
        asyncio.run(run_until_signal(config))
    except LogError as error:
        print(f"bookie: {error}", file=sys.stderr, flush=True)  # noqa: T201 - for a person
        sys.stderr.flush()
        os._exit(1)
    return 0


async def run_until_signal(config: BookieConfig) -> None:
    """Run a bookie until SIGTERM or SIGINT, then stop it cleanly; a second one ends it at once."""
    running = asyncio.ensure_future(run_bookie(config))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if running.cancelling():
            # Cutting the clean stop short would leave its threads running, and the process with
            # them. What is acknowledged is in the journal: an end without ceremony is safe.
            os._exit(1)
        running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await asyncio.wait([running])
    if not running.cancelled():
        running.result()


def die_with_parent() -> None:
    """Let the kernel send SIGTERM when the parent ends; Linux only, else do nothing."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the kernel was asked


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = parser()
    options = made.parse_args(arguments)
    if options.disk_low > options.disk_high:
        made.error("--disk-low cannot be above --disk-high")
    return options


def _config(options: argparse.Namespace) -> BookieConfig:
    return BookieConfig(
        uri=options.uri,
        directory=options.dir,
        journal_directories=tuple(options.journal_dir),
        ledger_directories=tuple(options.ledger_dir),
        host=options.host,
        port=options.port,
        advertise=options.advertise,
        bookie=options.id,
        rack=options.rack,
        unmade_ledgers_max=options.unmade_ledgers,
        disk_limits=DiskLimits(
            warn_share=options.disk_warn,
            high_share=options.disk_high,
            low_share=options.disk_low,
            reserve_bytes=options.disk_reserve * _MIB,
        ),
        collector=CollectorConfig(
            gc_interval_s=options.gc_interval,
            untraced_share=options.untraced_share,
            minor_share=options.minor_threshold,
            minor_interval_s=options.minor_interval,
            major_share=options.major_threshold,
            major_interval_s=options.major_interval,
            bytes_per_s=options.compaction_rate * _MIB,
        ),
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser of all options; `dlog bookie run` hands its own on to it."""
    made = argparse.ArgumentParser(
        prog="bookie",
        description=_ABOUT,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--uri", required=True, help="namespace: file:///dir or zk://host:port/root")
    made.add_argument(
        "--die-with-parent", action="store_true", help="stop when the parent process ends"
    )
    add_network(made)
    add_directories(made)
    add_space(made)
    add_collector(made)
    return made


def add_network(made: argparse.ArgumentParser) -> None:
    add = made.add_argument_group("who and where").add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add("--port", default=0, type=int, help="default: the last one, at first any free one")
    add("--advertise", default="", help="host that clients are told (default: --host)")
    add(
        "--id",
        "--bookie",
        dest="id",
        default=None,
        help="name for the life of the data (default: host and a random part)",
    )
    add("--rack", default="", help="where this bookie stands, for placement")
    add(
        "--unmade-ledgers",
        default=0,
        type=_count,
        metavar="N",
        help="take so many ledgers that the metadata store does not know; for tests (%(default)s)",
    )


def add_directories(made: argparse.ArgumentParser) -> None:
    add = made.add_argument_group(
        "directories",
        _ABOUT_DIRECTORIES,
    ).add_argument
    add("--dir", required=True, type=Path, help="main directory of this bookie")
    add(
        "--journal-dir",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="directory for a journal; repeat it for several (default: --dir)",
    )
    add(
        "--ledger-dir",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="directory for entry logs and index; repeat it for several (default: --dir)",
    )


def add_space(made: argparse.ArgumentParser) -> None:
    limits = DiskLimits()
    group = made.add_argument_group(
        "disk space",
        _ABOUT_SPACE,
    )
    for name, default, words in (
        ("--disk-warn", limits.warn_share, "share from which a warning is logged"),
        ("--disk-high", limits.high_share, "share from which it is read-only"),
        ("--disk-low", limits.low_share, "share below which it is not any more"),
    ):
        group.add_argument(
            name, type=_share, default=default, metavar="SHARE", help=f"{words} (%(default)s)"
        )
    group.add_argument(
        "--disk-reserve",
        type=_count,
        default=limits.reserve_bytes // _MIB,
        metavar="MIB",
        help="MiB that stay free in any case; twice as many to be writable again (%(default)s)",
    )


def add_collector(made: argparse.ArgumentParser) -> None:
    config = CollectorConfig()
    group = made.add_argument_group("collection and compaction", _ABOUT_COLLECTOR)
    for name, default, words in (
        ("--gc-interval", config.gc_interval_s, "garbage collections"),
        ("--minor-interval", config.minor_interval_s, "minor compactions"),
        ("--major-interval", config.major_interval_s, "major compactions"),
    ):
        group.add_argument(
            name,
            type=float,
            default=default,
            metavar="SECONDS",
            help=f"time between {words} (%(default)g)",
        )
    group.add_argument(
        "--untraced-share",
        type=float,
        default=config.untraced_share,
        metavar="SHARE",
        help="of all ledgers, how many may be deleted in a day though nothing but their absence "
        "from the metadata store tells that they were deleted (%(default)s)",
    )
    for name, default, words in (
        ("--minor-threshold", config.minor_share, "minor"),
        ("--major-threshold", config.major_share, "major"),
    ):
        group.add_argument(
            name,
            type=_threshold,
            default=default,
            metavar="SHARE",
            help=f"share of live bytes below which a {words} one takes a log (%(default)s)",
        )
    group.add_argument(
        "--compaction-rate",
        type=float,
        default=config.bytes_per_s / _MIB,
        metavar="MIB",
        help="MiB read and written a second, 0 for no limit (%(default)g)",
    )


def _threshold(text: str) -> float:
    share = float(text)
    if share >= 1:
        raise argparse.ArgumentTypeError("a log that is all live cannot shrink; give less than 1")
    return share


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError("a share is above 0 and at most 1")
    return share


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError("it cannot be negative")
    return count
