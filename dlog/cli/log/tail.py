"""``dlog log tail``: records out, in a format that may be written as kcat writes it."""

import codecs
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import APPLIES, CommandGroup
from dlog.cli.completion import complete_position
from dlog.cli.connections import connected
from dlog.cli.options import Json, LogName, Uri, parse_start, parse_time
from dlog.cli.output import escaped_bytes, json_bytes, json_text, warn
from dlog.cli.runner import run_at
from dlog.starts import START_HELP, TIME_HELP
from ledger.errors import InvalidValue
from ledger.options import usage

if TYPE_CHECKING:
    from dlog.aio import Consumer, Reader
    from dlog.headers import Pairs
    from dlog.log_schema import LogSchemas
    from dlog.log_schema.records import DecodedRecord
    from dlog.position import BeyondEnd, Record, Start
    from ledger.client import LedgerClient

Part = Callable[["Record"], bytes]
FORMAT_HELP: Final = (
    "%s value, %S its length, %k key, %K its length (-1: none), %o offset, %d DLSN, %x txid, "
    "%T time in milliseconds, %h headers as a=1,b=2 (the name alone is a null), "
    "%t log, %% a percent sign"
)


app = CommandGroup("cli#logs")


def compile_format(
    text: str, log: str, *, escape: Callable[[bytes], bytes] = bytes
) -> Callable[["Record"], bytes]:
    r"""Return what prints a record of *log* as *text* says; \n, \t, \0 and \x1e are understood.

    *escape* is done to what comes from the log, not to what *text* says itself. Raises
    `InvalidValue` for a letter that means nothing."""
    plain = codecs.escape_decode(text.encode())[0]
    pieces: list[Part] = []
    rest: bytes = plain
    while rest:
        before, percent, rest = rest.partition(b"%")
        if before:
            pieces.append(_constant(before))
        if not percent:
            break
        letter, rest = rest[:1].decode(errors="replace"), rest[1:]
        if letter == "t":
            pieces.append(_constant(escape(log.encode())))
        elif letter in _PARTS:
            pieces.append(_escaped(_PARTS[letter], escape))
        else:
            raise InvalidValue("--format", text, f"%{letter} is unknown; use {FORMAT_HELP}")

    def shown(record: "Record") -> bytes:
        return b"".join([piece(record) for piece in pieces])

    return shown


def _constant(text: bytes) -> Part:
    return lambda _: text


def _escaped(part: Part, escape: Callable[[bytes], bytes]) -> Part:
    return lambda record: escape(part(record))


def _headers(record: "Record") -> bytes:
    pairs = record.headers.pairs()
    return b",".join([n.encode() if v is None else n.encode() + b"=" + v for n, v in pairs])


_PARTS: Final[dict[str, Part]] = {
    "%": _constant(b"%"),
    "s": lambda record: bytes(record.value),
    "S": lambda record: b"%d" % len(record.value),
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "o": lambda record: b"%d" % record.offset,
    "d": lambda record: str(record.dlsn).encode(),
    "x": lambda record: b"" if record.txid is None else b"%d" % record.txid,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "h": _headers,
}


@app.define(
    APPLIES,  # a consumer moves on
    "dlog log tail greetings",
    "dlog log tail greetings -f --start end",
    "dlog log tail greetings -f --last 10",
    "dlog log tail flights --from-time 2h --json",
    "dlog log tail flights --start txid:5000 --limit 10 --json",
    "dlog log tail flights -f --consumer printer",
    r"dlog log tail flights --format '%o %k: %s\n'",
    "dlog log tail orders --decode | jq .customer",
    "dlog log tail flights --json | dlog log append copy --input json",
)
def tail(
    log: LogName,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records at the end, until Ctrl-C.")
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION",
            autocompletion=complete_position,
            help=f"Where to begin: {START_HELP}. Default: start.",
            show_default=False,
        ),
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=f"Begin with the first record of this time or later: {TIME_HELP}.",
            show_default=False,
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(help="Start this many records before the end.", min=0, show_default=False),
    ] = None,
    stop: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION",
            autocompletion=complete_position,
            help="End position (exclusive).",
            show_default=False,
        ),
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Continue at the position of this named consumer, and commit what was printed. "
            "A new one begins where the other options say.",
            show_default=False,
        ),
    ] = None,
    exclusive: Annotated[
        bool, typer.Option("--exclusive", help="Fail if another process has the consumer open.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for a start beyond the end of the log.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="Stop after this many records.", min=0)
    ] = None,
    offsets: Annotated[
        bool, typer.Option("--offsets", help="Print offset and a tab before each record.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help=f"Output format, with kcat's placeholders: {FORMAT_HELP}.",
            show_default=False,
        ),
    ] = None,
    decode: Annotated[
        bool,
        typer.Option(
            "--decode",
            help="Print rows by the schema of the log, as JSON; with --json beside the rest.",
        ),
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Print the records of a log, one per line. Never interferes with its writer.

    A pipe or file gets values as they are; on a terminal control characters are escaped. With
    --json, a key or value that is not UTF-8 text is {"base64": ...}. With --decode, a record that
    is none of the schema is null, and its offset and the reason are on stderr."""
    if sum(each is not None for each in (start, from_time, last)) > 1:
        raise typer.BadParameter("give one of --start, --from-time and --last")
    if exclusive and consumer is None:
        raise typer.BadParameter("it needs --consumer", param_hint="--exclusive")
    position = _start(start, from_time)
    until = None if stop is None else parse_start(stop, "--stop")
    if sum((form is not None, offsets, as_json)) > 1:
        raise typer.BadParameter("give one of --format, --offsets and --json")
    if decode and (form is not None or offsets):
        raise typer.BadParameter("it goes with --json alone", param_hint="--decode")
    # Records may come from anybody: a terminal must not obey them.
    escape = escaped_bytes if sys.stdout.isatty() else bytes
    show: Callable[[Record], None]
    if form is not None:
        shown = usage(lambda: compile_format(form, log, escape=escape), "--format")
        show = _show_as(shown)
    elif as_json:
        show = _show_json
    else:
        show = partial(_show_offset if offsets else _show_value, escape=escape)

    async def command() -> None:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(connected(uri))
            begin = position if last is None else await _before_end(client, log, last)
            if consumer is not None:
                reader: Reader = await _consumer(
                    client, consumer, log, begin, exclusive=exclusive, follow=follow
                )
            else:
                reader = await _reader(client, log, begin, follow=follow, wait=wait)
            stack.push_async_callback(reader.close)
            end = None if until is None else await offset_of(client, log, until)
            decoder = _Decoder(client, log, whole=as_json) if decode else None
            if decoder is not None:
                await decoder.read_schemas()
            await _print(reader, end=end, limit=limit, show=show, decoder=decoder)

    run_at(uri, command())


async def offset_of(client: "LedgerClient", log: str, position: "Start") -> int:
    """Return the offset that *position* names. Raises as `dlog.aio.Log.tail`."""
    from dlog.aio.read.places import start_offset
    from dlog.aio.store import ManifestNode

    return await start_offset(client, ManifestNode(client.store, log), position)


def record_json(record: "Record") -> dict[str, object]:
    return {
        "offset": record.offset,
        "dlsn": str(record.dlsn),
        "timestamp_ms": record.timestamp_ms,
        "txid": record.txid,
        "key": json_bytes(record.key),
        "value": json_bytes(record.value),
        "headers": _headers_json(record.headers.pairs()),
    }


def _headers_json(pairs: "Pairs") -> object:
    """Return an object of names and values, or a list of both where a name comes twice."""
    values = [(name, json_bytes(value)) for name, value in pairs]
    named = dict(values)
    return named if len(named) == len(values) else values


def _start(start: str | None, from_time: str | None) -> "Start":
    from dlog.position import Timestamp

    if from_time is not None:
        return Timestamp(parse_time(from_time, "--from-time"))
    return parse_start("start" if start is None else start)


async def _before_end(client: "LedgerClient", log: str, count: int) -> int:
    first = await offset_of(client, log, "start")
    return max(first, await offset_of(client, log, "end") - count)


async def _reader(
    client: "LedgerClient", log: str, start: "Start", *, follow: bool, wait: bool
) -> "Reader":
    from dlog.aio import Log

    beyond_end: BeyondEnd = "wait" if wait else "raise"
    return await Log.tail(log, start=start, follow=follow, beyond_end=beyond_end, client=client)


async def _consumer(
    client: "LedgerClient", name: str, log: str, start: "Start", *, exclusive: bool, follow: bool
) -> "Consumer":
    from dlog.aio import Log

    return await Log.consumer(
        name, log, start=start, exclusive=exclusive, follow=follow, client=client
    )


class _Decoder:
    """The rows of the records that were read last, by the schemas of their log."""

    def __init__(self, client: "LedgerClient", log: str, *, whole: bool) -> None:
        """*whole*: they are shown beside what `--json` has of a record."""
        self._client, self._log, self._whole = client, log, whole
        self._schemas: LogSchemas | None = None
        self._rows: dict[int, DecodedRecord] = {}

    async def read_schemas(self) -> "LogSchemas":
        """Raises `NoSuchSchema` if there is none."""
        from dlog.aio.admin import log_schemas

        self._schemas = await log_schemas(self._log, client=self._client)
        self._schemas.find(self._log).check()
        return self._schemas

    async def decode(self, records: "Sequence[Record]") -> None:
        """Read the schemas again if a record names a newer one: at most once for *records*."""
        from dlog.log_schema.records import decode_records, named_version

        assert self._schemas is not None, "read before"
        schemas = self._schemas
        if any((named_version(record) or 0) >= schemas.next_number for record in records):
            schemas = await self.read_schemas()
        decoded = decode_records(self._log, schemas, records)
        self._rows = {r.offset: row for r, row in zip(records, decoded, strict=True)}

    def show(self, record: "Record") -> None:
        """Print the rows of *record*, which was decoded last."""
        decoded = self._rows[record.offset]
        if decoded.problem:
            warn(f"record {record.offset}: {decoded.problem}")
        rows: Sequence[object] = decoded.rows
        if self._whole:
            rows = (record_json(record) | {"decoded": decoded.json},)
        elif decoded.problem:
            rows = (None,)
        for row in rows:
            sys.stdout.buffer.write(json_text(row).encode() + b"\n")


async def _print(
    reader: "Reader",
    *,
    end: int | None,
    limit: int | None,
    show: Callable[["Record"], None],
    decoder: _Decoder | None = None,
) -> None:
    """Print up to *limit* records before *end*; a consumer commits what got out."""
    from dlog.aio import Consumer

    left = limit
    while (left is None or left > 0) and (end is None or reader.position < end):
        batch = await reader.read_batch()
        if not batch:
            break
        taken = [each for each in batch[:left] if end is None or each.offset < end]
        if decoder is not None:
            await decoder.decode(taken)
        for record in taken:
            if decoder is not None:
                decoder.show(record)
            else:
                show(record)
        sys.stdout.buffer.flush()
        if taken and isinstance(reader, Consumer):
            await reader.commit(taken[-1].offset + 1)
        left = None if left is None else max(0, left - len(batch))


def _show_as(shown: Callable[["Record"], bytes]) -> Callable[["Record"], None]:
    def show(record: "Record") -> None:
        sys.stdout.buffer.write(shown(record))

    return show


def _show_value(record: "Record", *, escape: Callable[[bytes], bytes]) -> None:
    sys.stdout.buffer.write(escape(record.value) + b"\n")


def _show_offset(record: "Record", *, escape: Callable[[bytes], bytes]) -> None:
    sys.stdout.buffer.write(b"%d\t%b\n" % (record.offset, escape(record.value)))


def _show_json(record: "Record") -> None:
    sys.stdout.buffer.write(json_text(record_json(record)).encode() + b"\n")
