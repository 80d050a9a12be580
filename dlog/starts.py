"""Pure: what people give as a place in a log, in calls, on the command line and to Spark.

Raises `InvalidValue` with what may be given; who asks says for which log or option.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from dlog.position import DLSN, TXID_MAX, Position, Start, Stop, Timestamp, Txid
from ledger.errors import InvalidValue
from ledger.values import duration_s

START_HELP: Final = (
    "start, end, an offset, a position as 120@6f3a, a DLSN as 3:17:0, txid:NUMBER or time:TIME"
)
TIME_HELP: Final = (
    "2026-11-21T12:00:00 (UTC unless it says otherwise), milliseconds since 1970, or 2h for two "
    "hours ago"
)
WORDS: Final = {"start": "start", "earliest": "start", "end": "end", "latest": "end"}
"""Kafka's words mean the same."""
TIME_MS_MAX: Final = 2**62

_USE: Final = f"use {START_HELP}"
Clock = Callable[[], int]
"""Milliseconds since 1970 now, which ages count from."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET: Final = re.compile(r"[0-9]{1,19}")
_TXID: Final = re.compile(r"-?[0-9]{1,19}")
_OFFSET_MAX: Final = 2**63 - 1


def parse_start(value: object, name: str, clock: Clock) -> Start:
    """Return the position that *value* is or, as text, names. Raises `InvalidValue`."""
    match value:
        case str():
            return _named(value.strip(), name, clock)
        case DLSN():
            if all(_is_number(part) and part >= 0 for part in value):
                return value
        case Txid():
            if _is_number(value.value) and -TXID_MAX <= value.value <= TXID_MAX:
                return value
        case Timestamp():
            if _is_number(value.value) and abs(value.value) <= TIME_MS_MAX:
                return value
        case int() if not isinstance(value, bool):
            if 0 <= value <= _OFFSET_MAX:
                return value
            raise InvalidValue(name, value, f"offsets begin at 0; {_USE}")
        case _:
            pass
    raise InvalidValue(name, value, _USE)


def parse_stop(value: object, name: str, clock: Clock) -> Stop:
    """Return where to stop: the end as it is now, an offset or a DLSN. Raises `InvalidValue`."""
    found = parse_start(value, name, clock)
    if isinstance(found, int | DLSN):
        return found
    if found == "end":
        return "end"
    raise InvalidValue(name, value, "use end, an offset, or a DLSN as 3:17:0")


def parse_time_ms(value: object, name: str, clock: Clock) -> int:
    """Return milliseconds since 1970. Raises `InvalidValue`."""
    if _is_number(value) and isinstance(value, int) and 0 <= value <= TIME_MS_MAX:
        return value
    if isinstance(value, str):
        found = _time_ms(value.strip(), clock)
        if found is not None and found <= TIME_MS_MAX:
            return found
    raise InvalidValue(name, value, f"use {TIME_HELP}")


def _named(text: str, name: str, clock: Clock) -> Start:
    word = WORDS.get(text.lower())
    if word is not None:
        return "start" if word == "start" else "end"
    kind, colon, rest = text.partition(":")
    if kind == "time" and colon:
        return Timestamp(parse_time_ms(rest, name, clock))
    if kind == "txid" and _TXID.fullmatch(rest) and abs(int(rest)) <= TXID_MAX:
        return Txid(int(rest))
    if _OFFSET.fullmatch(text) and int(text) <= _OFFSET_MAX:
        return int(text)
    with suppress(ValueError):
        return Position.parse(text)
    try:
        return DLSN.parse(text)
    except ValueError:
        raise InvalidValue(name, text, _USE) from None


def _time_ms(text: str, clock: Clock) -> int | None:
    if _OFFSET.fullmatch(text):
        return int(text)
    if text[:1].isdecimal() and text.isascii() and text[-1:].isalpha() and "T" not in text:
        try:
            return clock() - round(duration_s(text, "time") * 1000)
        except InvalidValue:
            return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Rounded up: from half a millisecond on means from the next one on, as records have whole ones.
    found = -((_EPOCH - moment) // timedelta(milliseconds=1))
    return found if found >= 0 else None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
