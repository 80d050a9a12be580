"""``dlog log append`` and ``dlog log tail``: records in and out."""

import asyncio
import json
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TransferSpeedColumn

from dlog.cli.options import Json, LogName, Uri, examples
from dlog.cli.output import json_bytes, print_json
from dlog.cli.running import run
from dlog.errors import RecordTooLarge
from dlog.settings import RECORD_BYTES_LIMIT
from ledger.errors import LogError, TooManyPending

if TYPE_CHECKING:
    from dlog.aio import Log
    from dlog.position import Record, RecordId, Start

_READ_BYTES: Final = 1 << 18
_CHUNKS_MAX: Final = 4
_PENDING_MAX: Final = 20_000

APPEND_EPILOG = examples(
    "echo hello | dlog log append greetings",
    "dlog log append flights --file flights.jsonl",
    "tail -F app.log | dlog log append app/lines",
)
TAIL_EPILOG = examples(
    "dlog log tail greetings",
    "dlog log tail greetings -f --start end",
    "dlog log tail flights --start txid:5000 --limit 10 --json",
)


def append(
    log: LogName,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="Read lines from this file, not from stdin.", exists=True, dir_okay=False
        ),
    ] = None,
    create: Annotated[bool, typer.Option(help="Create the log if there is none.")] = True,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Append each line of stdin (or of a file) as one record; print the last offset.

    The line's end is not part of the record. This takes the log over: another program that
    writes it loses it. What has been acknowledged when an error stops it stays appended."""
    run(_append(log, file, create=create, uri=uri, as_json=as_json))


def tail(
    log: LogName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more at the end, until Ctrl-C.")
    ] = False,
    start: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="Where to begin: start, end, an offset, a DLSN as 3:17:0, or txid:NUMBER.",
        ),
    ] = "start",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="Stop after this many records.", min=0)
    ] = None,
    offsets: Annotated[
        bool, typer.Option("--offsets", help="Print offset and a tab before each record.")
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Print the records of a log, one to a line. Never disturbs its writer.

    With --json, a key or value that is not UTF-8 text is {"base64": ...}."""
    position = parse_start(start)
    show = _show_json if as_json else _show_offset if offsets else _show_value
    run(_tail(log, position, follow=follow, limit=limit, uri=uri, show=show))


def parse_start(text: str) -> "Start":
    """Return the position that *text* names; a usage error if it names none."""
    from dlog.position import DLSN, Txid

    if text == "start":
        return "start"
    if text == "end":
        return "end"
    try:
        if text.startswith("txid:"):
            return Txid(int(text.removeprefix("txid:")))
        if ":" in text:
            return DLSN.parse(text)
        if (offset := int(text)) >= 0:
            return offset
    except ValueError:
        pass  # said below, once for all
    raise typer.BadParameter(
        f"{text!r} is no position; use start, end, an offset, segment:entry:slot or txid:NUMBER",
        param_hint="--start",
    )


async def _append(
    name: str, file: Path | None, *, create: bool, uri: str | None, as_json: bool
) -> None:
    from dlog.aio import Log

    source = os.open(file, os.O_RDONLY) if file else sys.stdin.fileno()
    appended = _Appended()
    log = await Log.open(name, uri=uri, create=create)
    try:
        with _progress(file) as advance:
            async for lines in _lines(name, source, advance):
                await appended.push(log, lines)
            await appended.settle(0)
    except BaseException:
        with suppress(LogError):  # it says the same as what is on its way
            await log.close()
        appended.say_what_was_done()
        raise
    await log.close()
    last = appended.last
    if as_json:
        print_json(
            {
                "log": name,
                "records": appended.count,
                "last_offset": last.offset if last else log.last_offset,
                "last_dlsn": str(last.dlsn) if last else None,
            }
        )
    else:
        sys.stdout.write(f"{last.offset if last else log.last_offset}\n")


class _Appended:
    """Appends on their way, oldest first, and what has become of those before."""

    def __init__(self) -> None:
        self._pending: deque[asyncio.Future[RecordId]] = deque()
        self.count = 0
        self.last: RecordId | None = None

    async def push(self, log: "Log", lines: Iterable[bytes]) -> None:
        """Send *lines*, waiting for older ones as long as too many are on their way."""
        for line in lines:
            if len(self._pending) >= _PENDING_MAX:
                await self.settle(_PENDING_MAX // 2)
            try:
                future = log.append_async(line)
            except TooManyPending:
                await self.settle(0)
                future = log.append_async(line)
            self._pending.append(future)

    async def settle(self, left: int) -> None:
        """Wait until *left* are on their way; raises what the first failed with."""
        while len(self._pending) > left:
            self._count(await self._pending[0])
            self._pending.popleft()

    def say_what_was_done(self) -> None:
        for future in self._pending:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._count(future.result())
        at = f", the last at offset {self.last.offset}" if self.last else ""
        typer.echo(f"dlog: {self.count} records were appended{at}", err=True)

    def _count(self, record: "RecordId") -> None:
        self.last = record
        self.count += 1


async def _lines(
    name: str, source: int, advance: Callable[[int, int], None]
) -> AsyncIterator[list[bytes]]:
    """Yield the lines of file descriptor *source*, as many as have come, without their ends.

    A thread reads it, and is left behind when nobody waits for it any more: a read of a
    terminal or pipe cannot be interrupted. So the descriptor is never closed here."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_MAX)

    def read() -> None:
        chunk: bytes | OSError = b"\n"
        while chunk and not isinstance(chunk, OSError):
            room.acquire()
            try:
                chunk = os.read(source, _READ_BYTES)
            except OSError as error:
                chunk = error
            with suppress(RuntimeError):  # the loop may have ended, and the command with it
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    threading.Thread(target=read, name="lines", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise chunk
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > RECORD_BYTES_LIMIT:
            raise RecordTooLarge(name, len(rest), RECORD_BYTES_LIMIT)
        yield lines
        advance(len(chunk), len(lines))
        room.release()
    if rest:
        yield [rest]


@contextmanager
def _progress(file: Path | None) -> Iterator[Callable[[int, int], None]]:
    """Show on stderr how far it is, if a person looks there; yield what to tell it."""
    if not sys.stderr.isatty() or (file is None and sys.stdin.isatty()):
        yield lambda _bytes, _lines: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[records]:,} records"),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        total = file.stat().st_size if file else None
        task = progress.add_task("appending", total=total or None, records=0)
        records = 0

        def advance(size_bytes: int, lines: int) -> None:
            nonlocal records
            records += lines
            progress.update(task, advance=size_bytes, records=records)

        yield advance


async def _tail(
    name: str,
    start: "Start",
    *,
    follow: bool,
    limit: int | None,
    uri: str | None,
    show: Callable[["Record"], None],
) -> None:
    from dlog.aio import Log

    reader = await Log.tail(name, uri=uri, start=start, follow=follow)
    try:
        left = limit
        while left is None or left > 0:
            batch = await reader.read_batch()
            if not batch:
                break
            for record in batch[:left]:
                show(record)
            sys.stdout.buffer.flush()
            left = None if left is None else max(0, left - len(batch))
    finally:
        await reader.close()


def _show_value(record: "Record") -> None:
    sys.stdout.buffer.write(bytes(record.value) + b"\n")


def _show_offset(record: "Record") -> None:
    sys.stdout.buffer.write(b"%d\t%b\n" % (record.offset, record.value))


def _show_json(record: "Record") -> None:
    sys.stdout.buffer.write(json.dumps(record_facts(record), ensure_ascii=False).encode() + b"\n")


def record_facts(record: "Record") -> dict[str, object]:
    return {
        "offset": record.offset,
        "dlsn": str(record.dlsn),
        "timestamp_ms": record.timestamp_ms,
        "txid": record.txid,
        "key": json_bytes(record.key),
        "value": json_bytes(record.value),
    }
