"""What people give as values: durations, sizes, counts, shares. Pure, and the only parser of them.

Arguments of calls, options of commands, settings, the environment and options of Spark all come
here, so "7d" and 604800 mean the same everywhere, and what means nothing is refused everywhere, in
the words of who gave it.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from ledger.errors import InvalidValue

Duration = float | str
"""Seconds, as a number or as text with a unit: 90, "90s", "15m"."""
Size = int | str
"""Bytes, as a number or as text with a unit: 1048576, "1M"."""

DURATION_HELP: Final = "seconds, or 250ms, 90s, 15m, 2h, 7d, 1w"
SIZE_HELP: Final = "bytes, or 512K, 10M, 2G, 1T (powers of 1024)"
SHARE_HELP: Final = "a share as 0.95 or 95%"
VALUE_MAX: Final = 2**53
"""No duration, size or count is larger."""
NEAR_MAX: Final = 1000
"""Names that one is compared with, which takes 50 ms at most."""
NEAR_SHARE: Final = 0.7
"""Names this similar (`difflib`) may be meant."""

_SECONDS: Final = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}
_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_NUMBER: Final = r"([0-9]{1,16}(?:\.[0-9]{1,9})?)"
_DURATION: Final = re.compile(_NUMBER + r" ?(ms|s|m|min|h|d|w)")
_SIZE: Final = re.compile(_NUMBER + r" ?([kmgt]?)(?:i?b)?", re.IGNORECASE)
_COUNT: Final = re.compile(r"[0-9]{1,16}")
_SHARE: Final = re.compile(_NUMBER + "(%?)")


def duration_s(
    value: object, name: str, *, least: float = 0.0, most: float = VALUE_MAX, unit: str = "s"
) -> float:
    """Return *value* as seconds. Raises `InvalidValue`, which calls it *name*.

    A number without a unit counts *unit*. The result is from *least* to *most*, never NaN."""
    seconds = _plain(value)
    if seconds is not None:
        seconds *= _SECONDS[unit]
    elif isinstance(value, str):
        text = value.strip()
        if (found := _DURATION.fullmatch(text)) is not None:
            seconds = float(found[1]) * _SECONDS[found[2]]
        elif re.fullmatch(_NUMBER, text):
            seconds = float(text) * _SECONDS[unit]
    if seconds is None or not least <= seconds <= most:
        raise InvalidValue(name, value, f"use {_DURATIONS[unit]}{_from_to(least, most, 's')}")
    return seconds


def duration_or_none(value: object, name: str, *, least: float = 0.0) -> float | None:
    """As `duration_s`; None, which means for ever, stays None."""
    return None if value is None else duration_s(value, name, least=least)


def size_bytes(
    value: object, name: str, *, least: int = 0, most: int = VALUE_MAX, unit: str = ""
) -> int:
    """Return *value* as bytes. Raises `InvalidValue`, which calls it *name*.

    A number without a unit counts *unit*: "" or "m" for MiB, as an option may always have."""
    size: float | None = None
    if (number := _plain(value)) is not None and (unit or number.is_integer()):
        size = number * _BYTES[unit]
    elif isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())) is not None:
        factor = _BYTES[found[2].lower() or unit]
        if factor > 1 or "." not in found[1]:  # there are no parts of a byte
            size = float(found[1]) * factor
    if size is None or not least <= size <= most:
        raise InvalidValue(name, value, f"use {_SIZES[unit]}{_from_to(least, most)}")
    return round(size)


def count_of(value: object, name: str, *, least: int = 0, most: int = VALUE_MAX) -> int:
    """Return *value*, a whole number or its digits. Raises `InvalidValue`."""
    if isinstance(value, str) and _COUNT.fullmatch(text := value.strip()):
        value = int(text)  # it knows fewer blanks than `strip`
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidValue(name, value, f"use a whole number{_from_to(least, most)}")
    return value


def share_of(value: object, name: str) -> float:
    """Return *value*, as 0.95 or "95%". Raises `InvalidValue`, which calls it *name*."""
    share = _plain(value)
    if isinstance(value, str) and (found := _SHARE.fullmatch(value.strip())) is not None:
        share = float(found[1]) / (100.0 if found[2] else 1.0)
    if share is None or not 0 <= share < math.inf:
        raise InvalidValue(name, value, f"use {SHARE_HELP}")
    return share


def flag_of(value: object, name: str) -> bool:
    """Return *value*, true or false in any case. Raises `InvalidValue`, which calls it *name*."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and (text := value.strip().lower()) in ("true", "false"):
        return text == "true"
    raise InvalidValue(name, value, "use true or false")


def counted(count: int, one: str) -> str:
    """Return "1 ledger", "2 ledgers", "1,000 entries"."""
    if count == 1:
        return f"1 {one}"
    several = f"{one[:-1]}ies" if one[-1] == "y" and one[-2] not in "aeou" else f"{one}s"
    return f"{count:,} {several}"


def nearest(given: str, names: Iterable[str]) -> str | None:
    """Return the one of *names* that a person may have meant by *given*, which is none of them;
    None if no name is like it. Of many, only the `NEAR_MAX` are compared that sort beside it."""
    import difflib

    known = sorted(names)
    place = bisect_left(known, given)
    beside = known[max(0, place - NEAR_MAX // 2) : place + NEAR_MAX // 2]
    near = difflib.get_close_matches(given, beside, n=1, cutoff=NEAR_SHARE)
    return near[0] if near and near[0] != given else None


def shown_duration(seconds: float) -> str:
    """Return *seconds* as `duration_s` reads them, in the largest unit that has no rest."""
    for unit in ("d", "h", "m"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:g}s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:g}ms"


def shown_size(size: int) -> str:
    """Return *size* as `size_bytes` reads it, in the largest unit that has no rest."""
    for unit in ("t", "g", "m", "k"):
        if size >= _BYTES[unit] and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit.upper()}"
    return str(size)


_DURATIONS: Final = {
    "s": DURATION_HELP,
    "ms": DURATION_HELP.replace("seconds", "milliseconds"),
}
_SIZES: Final = {"": SIZE_HELP, "m": SIZE_HELP.replace("bytes", "MiB")}


def _plain(value: object) -> float | None:
    """Return a number as one; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _from_to(least: float, most: float, unit: str = "") -> str:
    if least == 0 and most == VALUE_MAX:
        return ""
    if most == VALUE_MAX:
        return f", {least:g}{unit} or more" if least >= 1 or unit else ", more than 0"
    return f", from {least:g}{unit} to {most:.16g}{unit}"
