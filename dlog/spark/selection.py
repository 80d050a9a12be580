"""Which logs a source reads: some by name, or all whose names match a pattern."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from dlog.errors import InvalidName
from dlog.names import check_name
from dlog.spark.errors import InvalidOption

LOGS_MAX: Final = 1000
"""Logs of one source: each is watched by the driver, as by any reader of many."""


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
