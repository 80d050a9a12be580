"""What people write on a command line, as values: positions, times, durations, sizes.

Each parser takes the option's name, to be named in the usage error that it raises.
"""

import math
import os
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import typer

from ledger.clock import now_ms

if TYPE_CHECKING:
    from dlog.position import Start
    from dlog.recordbatch import Codec

POSITION_HELP: Final = "start, end, an offset, a DLSN as 3:17:0, txid:NUMBER or time:TIME"
TIME_HELP: Final = (
    "2026-11-21T12:00:00 (UTC unless it says otherwise), milliseconds since 1970, or 2h for two "
    "hours ago"
)
DURATION_HELP: Final = "seconds, or 250ms, 90s, 15m, 2h, 7d, 1w"
SIZE_HELP: Final = "bytes, or 512K, 10M, 2G, 1T (powers of 1024)"

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_start(text: str, option: str = "--start") -> "Start":
    """Return the position that *text* names."""
    from dlog.position import DLSN, Timestamp, Txid

    if text == "start":
        return "start"
    if text == "end":
        return "end"
    if text.startswith("time:"):
        return Timestamp(parse_time(text.removeprefix("time:"), option))
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
        f"{text!r} is no position; use start, end, an offset, segment:entry:slot, txid:NUMBER or "
        "time:TIME",
        param_hint=option,
    )


def parse_time(text: str, option: str) -> int:
    """Return *text* as milliseconds since 1970."""
    if text.isascii() and text.isdecimal():
        return int(text)
    if (age := _DURATION.fullmatch(text)) is not None:
        return now_ms() - round(float(age[1]) * _SECONDS[age[2]] * 1000)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time; use {TIME_HELP}", param_hint=option
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)


def parse_duration(text: str, option: str) -> float:
    """Return *text* as seconds."""
    if (found := _DURATION.fullmatch(text)) is not None:
        return float(found[1]) * _SECONDS[found[2]]
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise typer.BadParameter(f"{text!r} is no duration; use {DURATION_HELP}", param_hint=option)
    return seconds


def parse_size(text: str, option: str) -> int:
    """Return *text* as bytes."""
    if (found := _SIZE.fullmatch(text)) is None:
        raise typer.BadParameter(f"{text!r} is no size; use {SIZE_HELP}", param_hint=option)
    return round(float(found[1]) * _UNITS[found[2].lower()])


def parse_headers(pairs: list[str], option: str = "--header") -> dict[str, bytes]:
    """Return what *pairs* as ``name=value`` say, as headers of a record."""
    from dlog.headers import encode_headers

    found: dict[str, bytes] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint=option)
        found[name] = os.fsencode(text)
    try:
        encode_headers(found)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    return found


def parse_codec(text: str, option: str) -> "tuple[Codec, int]":
    """Return the codec that *text* names, and its level; see `dlog.settings.parse_codec`."""
    from dlog.errors import InvalidSettings
    from dlog.settings import parse_codec as parse

    try:
        return parse(text)
    except InvalidSettings as error:
        raise typer.BadParameter(f"{text!r}: {error.reason}", param_hint=option) from error


def parse_settings(pairs: list[str], option: str) -> dict[str, object]:
    """Return what *pairs* as ``name=value`` say, for `dlog.settings.parse_settings`.

    It says itself which names and values there are; here they only become numbers."""
    found: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint=option)
        found[name] = _setting(name, text, option)
    return found


def _setting(name: str, text: str, option: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    if name.endswith("_s"):
        return parse_duration(text, option)
    if name.endswith(("_bytes", "_bytes_max")):
        return parse_size(text, option)
    try:
        return int(text)
    except ValueError:
        return text
