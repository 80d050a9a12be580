"""`ledger.values` for options of commands: parsers for typer, whose refusals are usage errors."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import typer

from ledger.errors import InvalidValue
from ledger.values import VALUE_MAX, duration_s, share_of, size_bytes

T = TypeVar("T")

MIB: Final = 1024 * 1024


def usage(parse: Callable[[], T], option: str | None = None) -> T:
    """Return what *parse* returns; what it refuses is a usage error, of *option* if typer does not
    know it itself."""
    try:
        return parse()
    except InvalidValue as error:
        raise typer.BadParameter(f"{error.value!r}: {error.reason}", param_hint=option) from None


def duration(
    *, least: float = 0.0, most: float = VALUE_MAX, unit: str = "s"
) -> Callable[[object], float]:
    """Return the parser of an option that says how long, in seconds."""
    return lambda value: usage(lambda: duration_s(value, "", least=least, most=most, unit=unit))


def size(*, least: int = 0, most: int = VALUE_MAX, unit: str = "") -> Callable[[object], int]:
    """Return the parser of an option that says how many bytes."""
    return lambda value: usage(lambda: size_bytes(value, "", least=least, most=most, unit=unit))


def mebibytes(value: object) -> float:
    """Parse an option that counts MiB, as 100, 100M or 1G; as what it always was, a float."""
    return usage(lambda: size_bytes(value, "", unit="m")) / MIB


def share(value: object) -> float:
    """Parse an option that is a share, as 0.95 or 95%."""
    return usage(lambda: share_of(value, ""))


def directory(value: object) -> Path:
    """Parse an option that names a directory: an empty name would mean the current one."""
    text = str(value)
    if not text.strip():
        raise typer.BadParameter("it is empty; name a directory, '.' for this one")
    if "\0" in text:
        raise typer.BadParameter("a zero byte cannot be in the name of a directory")
    return Path(text)
