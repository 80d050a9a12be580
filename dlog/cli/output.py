"""How results and waiting look: JSON for programs; tables and bars for people."""

import base64
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from bookie.tools.findings import Progress

_WIDE: Final = 10_000
Value = object
"""What `json.dumps` takes, or a nesting of it."""
Advance = Callable[[int, int | None, str], None]
"""Called with how much is done, how much there is (None: not known), and a few words."""
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


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one to a line."""
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        write_text(f"{name:<{width}}  {value}\n")


def json_bytes(value: bytes | None) -> Value:
    """Return *value* as text if it is UTF-8, else as ``{"base64": ...}``."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def shown_bytes(value: bytes) -> str:
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


def shown_time(time_ms: int) -> str:
    if time_ms <= 0:
        return "-"
    from dlog.position import TIMESTAMP_MS_MAX

    if time_ms > TIMESTAMP_MS_MAX:  # of a program that did not refuse it
        return f"{time_ms} ms"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


@contextmanager
def shown_bar(what: str) -> Iterator[Advance]:
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
def shown_progress() -> "Iterator[Progress]":
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
