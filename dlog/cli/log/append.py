"""``dlog log append``: records in, out of messages between delimiters, or of lines of JSON."""

import base64
import binascii
import codecs
import json
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from dlog.cli.commands import APPLIES, CommandGroup
from dlog.cli.connections import connected
from dlog.cli.options import Json, LogName, Uri, parse_headers
from dlog.cli.output import print_json
from dlog.cli.runner import failed, run_at
from dlog.errors import RecordTooLarge
from dlog.headers import HeadersGiven
from dlog.settings import RECORD_BYTES_LIMIT
from ledger.errors import InvalidValue, LogError, TooManyPending
from ledger.options import usage
from ledger.values import counted

if TYPE_CHECKING:
    import asyncio

    from dlog.aio import Log
    from dlog.position import RecordId
    from ledger.client import LedgerClient

_FIELDS: Final = ("value", "key", "txid", "timestamp_ms", "headers")
_PLACES: Final = ("offset", "dlsn", "log")
"""Positions in the output of ``tail --json``; a copy has positions of its own."""
_HEADERS_FORM: Final = "headers are an object of names and values, or a list of [name, value]"
_READ_BYTES: Final = 1 << 18
_CHUNKS_MAX: Final = 4
_PENDING_MAX: Final = 20_000


app = CommandGroup("cli#logs")


class InputRow(NamedTuple):
    """A record as it is to be appended."""

    value: bytes
    key: bytes | None = None
    txid: int | None = None
    timestamp_ms: int | None = None
    headers: HeadersGiven | None = None


@dataclass(frozen=True, slots=True)
class Messages:
    """Each message is the value of a record; or its key, *key_delimiter*, and its value."""

    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    bytes_max: int = 2 * RECORD_BYTES_LIMIT
    """Without a delimiter so far, no more is taken."""
    headers: Sequence[tuple[str, bytes | None]] = ()

    def row(self, message: bytes) -> InputRow:
        """Return the record; without the delimiter in it, it has no key."""
        headers = self.headers or None
        if self.key_delimiter is None:
            return InputRow(message, headers=headers)
        key, delimiter, value = message.partition(self.key_delimiter)
        return (
            InputRow(value, key, headers=headers)
            if delimiter
            else InputRow(message, headers=headers)
        )


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Each line is a record as ``tail --json`` prints it."""

    headers: Sequence[tuple[str, bytes | None]] = ()
    """For each record, before its own; where names are the same, its own alone."""
    delimiter: bytes = b"\n"
    bytes_max: int = 8 * RECORD_BYTES_LIMIT
    """Of one line: a character may take six in JSON."""

    def row(self, message: bytes) -> InputRow:
        """Return the record. Raises `InvalidValue`."""
        try:
            fields = json.loads(message)
        except ValueError as error:
            raise _refused(message, f"not JSON ({error}); use what 'tail --json' prints") from None
        if not isinstance(fields, dict) or "value" not in fields:
            raise _refused(message, "use an object with \"value\", as 'tail --json' prints")
        for name in fields:
            if name not in _FIELDS and name not in _PLACES:
                known = ", ".join(_FIELDS)
                raise _refused(message, f"{name!r} is unknown; a record has {known}")
        own = _headers(fields.get("headers"), message)
        names = {name for name, _ in own}
        shared = [pair for pair in self.headers if pair[0] not in names]
        value = _bytes(fields["value"], message)
        key = None if fields.get("key") is None else _bytes(fields["key"], message)
        return InputRow(
            value,
            key,
            _number(fields, "txid", message),
            _number(fields, "timestamp_ms", message),
            [*shared, *own] or None,
        )


def parse_delimiter(text: str, option: str) -> bytes:
    r"""Return the bytes that *text* names, in which \n, \t, \0 and \x1e stand for one each.

    Raises `InvalidValue`."""
    try:
        delimiter = codecs.escape_decode(text.encode())[0]
    except ValueError as error:
        raise InvalidValue(option, text, str(error)) from None
    if not delimiter:
        raise InvalidValue(option, text, r"use one character or more, as \n, \t, : or \x1e")
    return delimiter


def _bytes(value: object, message: bytes) -> bytes:
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    if isinstance(value, dict) and list(value) == ["base64"]:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            pass
    raise _refused(message, f'{value!r} is neither text nor {{"base64": "..."}}')


def _headers(headers: object, message: bytes) -> list[tuple[str, bytes | None]]:
    """Return headers as ``tail --json`` prints them: an object of names and values, or pairs of
    them in a list."""
    pairs = headers.items() if isinstance(headers, dict) else headers or ()
    if not isinstance(pairs, Iterable) or isinstance(pairs, str):
        raise _refused(message, _HEADERS_FORM)
    decoded: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise _refused(message, _HEADERS_FORM)
        name, value = pair
        decoded.append((name, None if value is None else _bytes(value, message)))
    return decoded


def _number(fields: Mapping[str, object], name: str, message: bytes) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refused(message, f"{name} is a whole number")
    return value


def _refused(message: bytes, reason: str) -> InvalidValue:
    return InvalidValue("record", message[:200].decode(errors="replace"), reason)


class InputFormat(StrEnum):
    """The form of the input's lines."""

    LINES = "lines"
    JSON = "json"


@app.define(
    APPLIES,
    "echo hello | dlog log append greetings",
    "dlog log append flights --file flights.jsonl",
    "tail -F app.log | dlog log append app/lines",
    "dlog log append flights --file flights.jsonl --header format=json --header source=tower",
    "printf 'k1:v1\\nk2:v2\\n' | dlog log append keyed -K :",
    "dlog log tail flights --json | dlog log append copy --input json",
)
def append(
    log: LogName,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="Read lines from this file, not from stdin.", exists=True, dir_okay=False
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME=VALUE",
            help="A header for each record, as text; NAME alone is a null one. Repeat it for "
            "several, also of one name.",
            show_default=False,
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(
            "--delimiter",
            "-D",
            metavar="TEXT",
            help="Delimiter between records, as \\\\t, \\\\0 or \\\\x1e. Default: the line's end.",
            show_default=False,
        ),
    ] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option(
            "--key-delimiter",
            "-K",
            metavar="TEXT",
            help="Delimiter between a record's key and its value. Default: records have no keys.",
            show_default=False,
        ),
    ] = None,
    *,
    input_format: Annotated[
        InputFormat,
        typer.Option(
            "--input",
            help="lines: each is the value of a record. json: each is a record as "
            "'tail --json' prints it.",
        ),
    ] = InputFormat.LINES,
    create: Annotated[bool, typer.Option(help="Create the log if it does not exist.")] = True,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Append even if another program leads or writes the log, which then loses it.",
        ),
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Append each line of stdin (or of a file) as one record; print the last offset.

    With --input json, keys, txids, times and headers are copied; offsets are new. The end of
    the line is not part of the record. A log has one writer: where another program leads the
    log, or did not close it, the command is refused without --take-over. Records that were
    acknowledged before an error stay appended."""
    headers = parse_headers(header or [])
    incoming: JsonLines | Messages
    if input_format is InputFormat.JSON:
        if delimiter is not None or key_delimiter is not None:
            raise typer.BadParameter("--input json has one record per line: do not give delimiters")
        incoming = JsonLines(headers)
    else:
        between = None if key_delimiter is None else _delimiter(key_delimiter, "--key-delimiter")
        end = b"\n" if delimiter is None else _delimiter(delimiter, "--delimiter")
        incoming = Messages(end, between, headers=headers)
    run_at(
        uri,
        _append(log, file, incoming, create=create, take_over=take_over, uri=uri, as_json=as_json),
    )


def _delimiter(text: str, option: str) -> bytes:
    return usage(lambda: parse_delimiter(text, option), option)


async def _append(
    name: str,
    file: Path | None,
    incoming: JsonLines | Messages,
    *,
    create: bool,
    take_over: bool,
    uri: str | None,
    as_json: bool,
) -> None:
    async with connected(uri) as client:
        epoch = None if take_over else await _idle_epoch(client, name)
        await _append_to(
            client,
            name,
            file,
            incoming,
            create=create,
            expected_epoch=epoch,
            take_over=take_over,
            as_json=as_json,
        )


async def _idle_epoch(client: "LedgerClient", name: str) -> int:
    """Return the epoch of a log that no program leads or writes; 0 if there is no log. Leaves with
    a sentence otherwise."""
    from dlog.aio.maintain.survey import was_left_open
    from dlog.aio.store import ManifestNode
    from dlog.errors import NoSuchLog
    from leader import current_leader

    node = ManifestNode(client.store, name)
    leader = await current_leader(client.store, name)
    if leader is not None:
        raise failed(
            f"{leader.candidate} leads log {name!r}, and would lose it; append through that "
            "application, or take the log over with --take-over"
        )
    try:
        manifest, _ = await node.read()
    except NoSuchLog:
        return 0
    if was_left_open(manifest):
        raise failed(
            f"log {name!r} is being written by {manifest.owner or 'another program'}, or that "
            "ended without closing it. If nothing writes it any more, or may lose it: --take-over"
        )
    return manifest.epoch


async def _append_to(
    client: "LedgerClient",
    name: str,
    file: Path | None,
    incoming: JsonLines | Messages,
    *,
    create: bool,
    expected_epoch: int | None,
    take_over: bool,
    as_json: bool,
) -> None:
    from dlog.aio import Log

    source = os.open(file, os.O_RDONLY) if file else sys.stdin.fileno()
    appended = _Appended(incoming)
    log = await Log.open(
        name, client=client, create=create, expected_epoch=expected_epoch, take_over=take_over
    )
    try:
        with _progress(file) as advance:
            async for lines in _lines(name, source, incoming, advance):
                await appended.push(log, lines)
            await appended.settle(0)
    except BaseException:
        with suppress(LogError):  # it says the same as what is on its way
            await log.close()
        appended.say_what_was_done()
        raise
    await log.close()
    last = appended.last
    offset = last.offset if last else log.last_offset if log.last_offset >= 0 else None
    if as_json:
        print_json(
            {
                "log": name,
                "records": appended.count,
                "last_offset": offset,
                "last_dlsn": str(last.dlsn) if last else None,
            }
        )
    elif offset is not None:
        sys.stdout.write(f"{offset}\n")


class _Appended:
    """Appends on their way, oldest first, and what has become of those before."""

    def __init__(self, incoming: JsonLines | Messages) -> None:
        self._row = incoming.row
        self._pending: deque[asyncio.Future[RecordId]] = deque()
        self.count = 0
        self.last: RecordId | None = None

    async def push(self, log: "Log", lines: Iterable[bytes]) -> None:
        """Send *lines*, waiting for older ones as long as too many are on their way."""
        for line in lines:
            if len(self._pending) >= _PENDING_MAX:
                await self.settle(_PENDING_MAX // 2)
            value, key, txid, time_ms, headers = self._row(line)
            try:
                future = log.append_async(
                    value, key=key, txid=txid, timestamp_ms=time_ms, headers=headers
                )
            except TooManyPending:
                await self.settle(0)
                future = log.append_async(
                    value, key=key, txid=txid, timestamp_ms=time_ms, headers=headers
                )
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
        was = "was" if self.count == 1 else "were"
        at = f", the last at offset {self.last.offset}" if self.last else ""
        typer.echo(f"dlog: {counted(self.count, 'record')} {was} appended{at}", err=True)

    def _count(self, record: "RecordId") -> None:
        self.last = record
        self.count += 1


async def _lines(
    name: str, source: int, incoming: JsonLines | Messages, advance: Callable[[int, int], None]
) -> AsyncIterator[list[bytes]]:
    """Yield what stands before each delimiter in file descriptor *source*, as much as has come.

    A thread reads it, and is left behind when nobody waits for it any more: a read of a
    terminal or pipe cannot be interrupted. So the descriptor is never closed here."""
    import asyncio

    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_MAX)

    def read() -> None:
        chunk: bytes | OSError = b"."
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
        *lines, rest = (rest + chunk).split(incoming.delimiter)
        if len(rest) > incoming.bytes_max:
            raise RecordTooLarge(name, len(rest), RECORD_BYTES_LIMIT)
        yield lines
        advance(len(chunk), len(lines))
        room.release()
    if rest:
        yield [rest]


@contextmanager
def _progress(file: Path | None) -> Iterator[Callable[[int, int], None]]:
    """Show on stderr how far it is, if a person looks there; yield what to call with it."""
    if not sys.stderr.isatty() or (file is None and sys.stdin.isatty()):
        yield lambda _bytes, _lines: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[records]}"),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        total = file.stat().st_size if file else None
        task = progress.add_task("appending", total=total or None, records=counted(0, "record"))
        records = 0

        def advance(size_bytes: int, lines: int) -> None:
            nonlocal records
            records += lines
            progress.update(task, advance=size_bytes, records=counted(records, "record"))

        yield advance
