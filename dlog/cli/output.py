"""The form of results and of waiting: JSON for programs; tables and bars for people.

A command describes its result once, as a `View`: columns with a value, its name in JSON, and its
title and form for people.
"""

import base64
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import typer

if TYPE_CHECKING:
    from bookie.tools.findings import Progress
    from ledger.quorum import Quorum

_WIDE: Final = 10_000
Value = object
"""Anything that `json.dumps` takes."""
Advance = Callable[[int, int | None, str], None]
"""Called with how much is done, how much there is (None: not known), and a few words."""
T = TypeVar("T")
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_INTERVAL_S: Final = 0.2
_CLEAR: Final = "\r\x1b[K"


def escaped(text: str) -> str:
    r"""Return *text* with all that a terminal obeys, or shows out of order, written as ``\x1b``:
    control characters, escape sequences, marks of direction. Lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(each if _is_shown(each) else _escape(each) for each in text)


def escaped_bytes(data: bytes) -> bytes:
    r"""Return what `escaped` makes of *data*; bytes that are no UTF-8 are written as ``\xff``."""
    return escaped(data.decode(errors="backslashreplace")).encode()


def write_text(text: str) -> None:
    """Print *text*, to a terminal escaped: it may hold what others have chosen."""
    sys.stdout.write(escaped(text) if sys.stdout.isatty() else text)


def warn(sentence: str) -> None:
    """Print *sentence* on stderr."""
    typer.echo(f"dlog: {escaped(sentence)}", err=True)


def colored(text: str, color: str) -> str:
    """Return *text* in *color* if stdout is a terminal and NO_COLOR is not set (no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty():
        return text
    return typer.style(text, fg=color, bold=True)


def json_text(value: Value) -> str:
    """Return one line of JSON in which nothing means something to a terminal."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def print_json(value: Value) -> None:
    """Print one line of JSON, and see that it gets out: the reader may wait for it."""
    sys.stdout.write(json_text(value) + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escaped(str(cell)) for cell in row))
    # Only a terminal has a width that cells must be folded to.
    width = None if sys.stdout.isatty() else _WIDE
    Console(width=width, highlight=False, markup=False).print(table)


def print_lines(facts: Mapping[str, object]) -> None:
    """Print names and values, one to a line."""
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        write_text(f"{name:<{width}}  {value}\n")


def report(result: Value, sentence: str, *, as_json: bool) -> None:
    """Print *result* as JSON, or *sentence* on stderr."""
    if as_json:
        print_json(result)
    else:
        typer.echo(sentence, err=True)


def answer(result: Value, text: str, *, as_json: bool) -> None:
    """Print *result* as JSON, or *text*, of whole lines, on stdout."""
    if as_json:
        print_json(result)
    else:
        write_text(text)


def rendered(value: object) -> str:
    """Return *value* for a person: what there is not as a hyphen, the items of a list in a row."""
    match value:
        case None | "" | () | []:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One value of a result."""

    name: str
    """In JSON; empty: people alone see it."""
    value: Callable[[T], Value]
    title: str | None = None
    """For people; None: the name in words; empty: JSON alone has it."""
    form: Callable[[Any], object] = rendered
    """The value for people."""
    is_optional: bool = False
    """People see no line for None."""

    @property
    def heading(self) -> str:
        return self.name.replace("_", " ") if self.title is None else self.title


def text_column(title: str, value: Callable[[T], Value], *, is_optional: bool = False) -> Column[T]:
    """Return a column for people alone."""
    return Column("", value, title, is_optional=is_optional)


def json_column(name: str, value: Callable[[T], Value]) -> Column[T]:
    """Return a column that JSON alone has."""
    return Column(name, value, "")


class View(Generic[T]):
    """A result of a command: an object of JSON, lines of names and values, a row of a table."""

    def __init__(self, *columns: Column[T]) -> None:
        self.columns = columns

    def json(self, item: T) -> dict[str, Value]:
        return {column.name: column.value(item) for column in self.columns if column.name}

    def rows(self, items: Iterable[T]) -> list[dict[str, Value]]:
        """Return `json` of each."""
        return [self.json(item) for item in items]

    def lines(self, item: T) -> dict[str, object]:
        """Return titles and values for people."""
        values = ((column, column.value(item)) for column in self.columns if column.heading)
        return {
            column.heading: column.form(value)
            for column, value in values
            if not (column.is_optional and value is None)
        }

    def only(self, *headings: str) -> "View[T]":
        """Return a view with these columns, for a table of less."""
        by_heading = {column.heading: column for column in self.columns}
        return View(*(by_heading[heading] for heading in headings))

    def print(self, item: T, *, as_json: bool) -> None:
        """Print one result: a line of JSON, or a line for each column."""
        if as_json:
            print_json(self.json(item))
        else:
            print_lines(self.lines(item))

    def table(self, items: Iterable[T], title: str = "") -> None:
        """Print a row for each."""
        columns = [column for column in self.columns if column.heading]
        rows = [[column.form(column.value(item)) for column in columns] for item in items]
        print_table([column.heading for column in columns], rows, title)

    def print_all(self, items: Sequence[T], none: str, *, as_json: bool) -> None:
        """Print all results: one list of JSON, or a table; *none* on stderr if there are none."""
        if as_json:
            print_json(self.rows(items))
        elif items:
            self.table(items)
        else:
            typer.echo(none, err=True)


def json_bytes(value: bytes | None) -> Value:
    """Return *value* as text if it is UTF-8, else as ``{"base64": ...}``."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def format_bytes(value: bytes) -> str:
    """Return *value* for a person: as text if it is printable, else as hexadecimal digits."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
    return text if text.isprintable() else f"0x{value.hex()}"


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in "\n\t"


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()


def format_time(time_ms: int) -> str:
    if time_ms <= 0:
        return "-"
    from dlog.position import TIMESTAMP_MS_MAX

    if time_ms > TIMESTAMP_MS_MAX:  # of a program that did not refuse it
        return f"{time_ms} ms"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def format_quorum(quorum: "Quorum") -> str:
    return f"E={quorum.ensemble} Qw={quorum.write} Qa={quorum.ack}"


def format_size(size_bytes: float) -> str:
    for unit in _SIZES:
        if size_bytes < 1024 or unit == _SIZES[-1]:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("the last unit takes all")


def format_rate(bytes_per_s: float) -> str:
    return f"{format_size(bytes_per_s)}/s"


def format_duration(duration_s: float) -> str:
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if duration_s >= 2 * length_s:
            return f"{duration_s / length_s:.0f} {unit}"
    return f"{duration_s:.1f} s"


@contextmanager
def progress_bar(what: str) -> Iterator[Advance]:
    """Yield what to call with how far *what* is; the bar is gone when the block ends."""
    if not sys.stderr.isatty():
        yield lambda _done, _total, _words: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
    )
    # Lines of a result go above the bar, if both are seen; a file of results gets only them.
    console, above = Console(stderr=True), sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, redirect_stdout=above) as progress:
        task = progress.add_task(what, total=None, words="")

        def advance(done: int, total: int | None, words: str) -> None:
            progress.update(task, completed=done, total=total or None, words=words)

        yield advance


@contextmanager
def progress_line() -> "Iterator[Progress]":
    """Yield what to call with how far work is; the line is gone when the block ends."""
    shows = sys.stderr.isatty()
    last_s = 0.0

    def report(what: str, done: int, total: int) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if shows and now_s - last_s >= _INTERVAL_S:
            last_s = now_s
            share = f" {100 * done // total} %" if total else ""
            sys.stderr.write(f"{_CLEAR}{what}{share}")
            sys.stderr.flush()

    try:
        yield report
    finally:
        if last_s:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
