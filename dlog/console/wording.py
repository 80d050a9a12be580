"""How numbers, times and bytes are written for people, in few digits. Pure."""

import codecs
import re
import unicodedata
from datetime import UTC, datetime
from typing import Final

from dlog.position import TIMESTAMP_MS_MAX
from ledger.values import counted, shown_duration, shown_size

UNKNOWN: Final = "–"
_SIZES: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_COUNTS: Final = (("G", 10**9), ("M", 10**6), ("k", 10**3))
NO_LIMIT: Final = "no limit"
NOT_ENCRYPTED: Final = "not encrypted"
LIMITS: Final = frozenset(
    {
        "roll_bytes",
        "roll_age_s",
        "roll_records",
        "roll_idle_s",
        "retention_bytes",
        "retention_age_s",
    }
)
"""Settings of which 0 says that there is no limit."""
TEXT_MAX: Final = 2_000
"""Characters of a payload on a page of many records."""
LOOKED_AT_MAX: Final = 64 * 1024
"""Bytes of a payload that say whether it is text."""


def size(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    for unit, of in _SIZES:
        if value >= of:
            return f"{value / of:.3g} {unit}"
    return f"{value:.0f} B"


def short(value: float | None) -> str:
    """Return a count in three digits."""
    if value is None:
        return UNKNOWN
    for unit, of in _COUNTS:
        if value >= of:
            return f"{value / of:.3g} {unit}"
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def seconds(value: float | None) -> str:
    """Return how long something takes or took."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{1000 * value:.1f} ms" if value < 0.01 else f"{1000 * value:.0f} ms"
    if value < 120:
        return f"{value:.0f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    if value < 172_800:
        return f"{value / 3600:.0f} h"
    return f"{value / 86_400:.0f} d"


def setting(name: str, value: int | float | str) -> str:
    """Return the value of a log's setting, with its unit, as `dlog.settings.parse_settings` takes
    it; but a limit of 0 is `NO_LIMIT`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if name in LIMITS and not value:
        return NO_LIMIT
    if "_bytes" in name:
        text = shown_size(int(value))
        return f"{value} B" if text.isdecimal() else f"{text[:-1]} {text[-1]}iB"
    if name.endswith("_s"):
        number, unit = re.fullmatch(r"(.*?)([a-z]+)", shown_duration(value)).groups()  # type: ignore[union-attr]
        return f"{number} {unit}"
    return str(value)


def moment(time_ms: int) -> str:
    """Return a time of day and its date, UTC."""
    if not 0 < time_ms <= TIMESTAMP_MS_MAX:
        return UNKNOWN
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def is_text(value: bytes) -> bool:
    """Return whether *value* is UTF-8 without control characters, as far as a page may show it."""
    decoder = codecs.getincrementaldecoder("utf-8")()  # a cut may go through a letter
    try:
        text = decoder.decode(value[:LOOKED_AT_MAX], final=len(value) <= LOOKED_AT_MAX)
    except UnicodeDecodeError:
        return False
    return not any(unicodedata.category(each) == "Cc" and each not in "\t\n\r" for each in text)


def brief(value: bytes, at_most: int) -> str:
    """Return *value* as text, or in hexadecimal digits if it is none; cut after *at_most*
    characters."""
    if is_text(value):
        return plain(value, at_most)
    digits = value[: at_most // 2].hex()
    return f"0x{digits} …" if len(value) > at_most // 2 else f"0x{digits}"


def plain(value: bytes | None, at_most: int = TEXT_MAX) -> str:
    """Return *value* as text, what cannot be shown replaced; cut after *at_most* characters."""
    if value is None:
        return ""
    text = value[: 4 * at_most].decode("utf-8", "replace")
    shown = "".join(each if each.isprintable() or each in "\n\t" else "�" for each in text)
    return shown if len(shown) <= at_most else shown[:at_most] + " …"


def dump(value: bytes, at_most: int = TEXT_MAX) -> str:
    """Return the first *at_most* bytes as `hexdump -C` shows them."""
    lines = []
    for at in range(0, min(len(value), at_most), 16):
        row = value[at : at + 16]
        digits = " ".join(f"{each:02x}" for each in row)
        letters = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{at:08x}  {digits:<47}  {letters}")
    if len(value) > at_most:
        lines.append(f"… {counted(len(value) - at_most, 'more byte')}")
    return "\n".join(lines)
