"""How results look: JSON for programs, tables for people."""

import base64
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import typer

_WIDE: Final = 10_000

Value = object
"""What `json.dumps` takes, or a nesting of it."""


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
