"""Where reading begins and ends, as users say it: for all logs, or for each by its name.

One place is said in one of three ways: by offset, by time or by txid. A log that a JSON object
does not name begins at its first record and ends at its last one.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from dlog.position import TXID_MAX, Timestamp, Txid
from dlog.spark.errors import InvalidOption
from dlog.spark.option_names import as_written
from dlog.starts import WORDS, Clock, parse_time_ms
from ledger.errors import InvalidValue

Place = Literal["start", "end"] | int | Txid | Timestamp
"""What `dlog.position.Start` is, without the physical place."""
_Side = Literal["starting", "ending"]
_WAYS: Final = ("offsets", "timestamp", "txid")


@dataclass(frozen=True, slots=True)
class Bounds:
    """One end of what is read."""

    option: str
    """The option that says so, for messages."""
    default: Place
    by_log: Mapping[str, Place] = field(default_factory=dict)

    def of(self, log: str) -> Place:
        return self.by_log.get(log, self.default)

    @property
    def logs(self) -> tuple[str, ...]:
        """The logs that it names, in order."""
        return tuple(sorted(self.by_log))


def parse_bounds(given: Mapping[str, str], side: _Side, clock: Clock) -> Bounds:
    """Read the options of one *side* from *given*; raises InvalidOption."""
    names = [as_written(side + way) for way in _WAYS if side + way in given]
    if len(names) > 1:
        reason = f"{side} is said by one option, and {' and '.join(names)} are given"
        raise InvalidOption(names[1], given[names[1].lower()], reason)
    default: Place = "start" if side == "starting" else "end"
    if not names:
        return Bounds(as_written(f"{side}offsets"), default)
    (name,) = names
    text = given[name.lower()].strip()
    if not text.startswith("{"):
        return Bounds(name, _place(name, text, text, clock))
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise InvalidOption(name, text, f"it is no JSON object: {error}") from error
    places = {log: _place(name, text, value, clock, log) for log, value in parsed.items()}
    return Bounds(name, default, places)


def _place(option: str, text: str, value: object, clock: Clock, log: str | None = None) -> Place:
    what = "" if log is None else f"{log!r}: {value!r}: "
    if option.endswith("Offsets"):
        place = _offset(option, value, is_of_one=log is not None)
        if place is None:
            words = "earliest or latest" if option.startswith("starting") else "latest"
            each = f'an offset for each log: {{"name": 17}}, where {words} may stand too'
            raise InvalidOption(option, text, f"{what}give {words}, or {each}")
        return place
    if option.endswith("Txid"):
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = int(value)
        if _is_number(value) and isinstance(value, int) and abs(value) <= TXID_MAX:
            return Txid(value)
        raise InvalidOption(option, text, f'{what}give a txid, or one for each log: {{"name": 17}}')
    try:
        return Timestamp(parse_time_ms(value, option, clock))
    except InvalidValue as error:
        reason = f'{what}{error.reason}, or one for each log: {{"name": ...}}'
        raise InvalidOption(option, text, reason) from error


def _offset(option: str, value: object, *, is_of_one: bool) -> Place | None:
    """Return the offset, or the place that a word names; None if *value* is neither."""
    if isinstance(value, str):
        word = WORDS.get(value.lower())
        if word is not None and (word == "end" or option.startswith("starting")):
            return "end" if word == "end" else "start"
        if _NUMBER.fullmatch(value):
            value = int(value)
    if is_of_one and _is_number(value) and isinstance(value, int) and 0 <= value <= TXID_MAX:
        return value
    return None


_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
