"""Which logs a source reads, and where reading begins and ends, as users say it.

Logs are some by name, or all whose names match a pattern. One place is said for all logs, or for
each by its name, in one of three ways: by offset, by time or by txid. A log that a JSON object does
not name begins at its first record and ends at its last one.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from dlog.errors import InvalidName
from dlog.names import check_name
from dlog.position import TXID_MAX, Timestamp, Txid
from dlog.spark.errors import InvalidOption, as_written
from dlog.starts import WORDS, Clock, parse_time_ms
from ledger.errors import InvalidValue

LOGS_MAX: Final = 1000
"""Logs of one source: each is watched by the driver, as by any reader of many."""
Place = Literal["start", "end"] | int | Txid | Timestamp
"""What `dlog.position.Start` is, without the physical place."""
_Side = Literal["starting", "ending"]
_WAYS: Final = ("offsets", "timestamp", "txid")


@dataclass(frozen=True, slots=True)
class Selection:
    """Either *names* or a *pattern*."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression that a whole name has to match."""
    _named: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_named", frozenset(self.names))

    def chosen(self, log: str) -> bool:
        """Return whether *log* is one of those that are read; each trigger asks for each log."""
        if self.pattern is None:
            return log in self._named
        return _compiled(self.pattern).fullmatch(log) is not None

    def among(self, names: Iterable[str]) -> list[str]:
        """Return those of *names* that match the pattern. Raises InvalidOption for too many."""
        assert self.pattern is not None, "logs that were named are not looked for"
        found = [name for name in names if self.chosen(name)]
        if len(found) > LOGS_MAX:
            reason = f"{len(found)} logs match, {LOGS_MAX} are allowed; use several queries"
            raise InvalidOption("logspattern", self.pattern, reason)
        return found


def parse_selection(given: Mapping[str, str]) -> Selection:
    """Read which logs are meant; raises InvalidOption."""
    # `load("flights")` arrives as the option `path`.
    ways = [name for name in ("logs", "logspattern", "path") if name in given]
    if len(ways) != 1:
        reason = "name the logs once: logs='a,b', or logsPattern='eu/.*', or load('a')"
        raise InvalidOption(ways[-1] if ways else "logs", given[ways[-1]] if ways else "", reason)
    (way,) = ways
    if way == "logspattern":
        return Selection(pattern=_pattern(given[way]))
    names = tuple(sorted({name.strip() for name in given[way].split(",") if name.strip()}))
    if not names:
        reason = "name at least one log: logs='a,b' or load('a')"
        raise InvalidOption(way, given[way], reason)
    if len(names) > LOGS_MAX:
        reason = f"it names {len(names)} logs, {LOGS_MAX} are allowed; use several queries"
        raise InvalidOption(way, given[way], reason)
    for name in names:
        try:
            check_name(name)
        except InvalidName as error:
            raise InvalidOption(way, given[way], str(error)) from error
    return Selection(names)


def _pattern(text: str) -> str:
    try:
        _compiled(text)
    except re.error as error:
        raise InvalidOption("logspattern", text, f"no regular expression: {error}") from error
    if not text:
        raise InvalidOption("logspattern", text, "it is empty, and no log has an empty name")
    return text


@lru_cache(maxsize=16)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


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
