"""``dlog debug``: what a report of trouble needs."""

import errno
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from dlog.cli.commands import READS, CommandGroup
from dlog.cli.options import Json, Uri
from dlog.cli.output import print_json, warn
from dlog.cli.runner import run
from ledger.values import counted

app = CommandGroup("operations#for-a-problem-report")


@app.callback()
def _debug() -> None:
    """Make `bundle` a command of its own, although it is the only one."""


@app.define(
    READS,
    "dlog debug bundle",
    "dlog debug bundle --out trouble.tar.gz --log-file /var/log/dlog/bookie.log",
    "dlog debug bundle --metrics bookie-1:9100 --metrics bookie-2:9100",
)
def bundle(
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The archive to create; must not exist. Default: dlog-debug-TIME.tar.gz here.",
            show_default=False,
        ),
    ] = None,
    log_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--log-file",
            metavar="FILE",
            help="Include the last MiB of this log; repeat it for several.",
            show_default=False,
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Include metrics and health of the process that serves them there; repeat it "
            "for several.",
            show_default=False,
        ),
    ] = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Collect what a problem report needs into one archive, which only its owner can read.

    It has versions, settings, the output of 'dlog status' and 'dlog doctor', bookies and
    underreplicated ledgers, and metrics and logs of the named processes. It has no payload and
    no key of any record. Secrets of the settings are left out, and anything in logs that looks
    like one; review it yourself before you send it. MISSING.txt lists what could not be
    collected, and why: the archive is created even if the metadata store or bookies cannot be
    reached. It holds 64 MiB at most, and takes two minutes at most. Reports progress on
    stderr."""

    async def command() -> tuple[Path, int, dict[str, str]]:
        from dlog.cli.bundle import Bundle, BundleRequest, Redactor, gather, secrets_known

        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        path = out if out is not None else Path(f"dlog-debug-{at}.tar.gz")
        _check_free(path)
        made = Bundle(Redactor(secrets_known(uri)))
        wanted = BundleRequest(uri, metrics or (), log_files or ())
        await gather(made, wanted, _report)
        return path, made.write(path), made.missing

    path, size_bytes, missing = run(command())
    if as_json:
        print_json({"file": str(path), "bytes": size_bytes, "missing": missing})
    else:
        typer.echo(str(path))
    if missing:
        warn(f"{counted(len(missing), 'item')} could not be collected: see MISSING.txt in it")


def _report(done: str) -> None:
    if sys.stderr.isatty():
        warn(done)


def _check_free(path: Path) -> None:
    """Refuse before minutes are spent on what could not be written."""
    if path.exists() or path.is_symlink():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
