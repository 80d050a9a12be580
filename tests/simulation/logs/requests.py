"""What somebody asked for, of which log: what was not asked for must not happen.

A log is asked for by its name, and meant is the one that has the name when it is first looked at:
later ones of that name are others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dlog.manifest import Manifest
from dlog.names import path_of
from dlog.settings import LogSettings, parse_settings

FirstLook = Callable[[str], bytes | None]
"""What a process was given when it first read a node; None: it has not."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one process does to a log, one thing after the other."""

    log: str
    first_look: FirstLook

    def means(self, incarnation: str) -> bool:
        path = path_of(self.log)
        value = self.first_look(path)
        return bool(value) and Manifest.decode(value or b"", path=path).incarnation == incarnation


@dataclass(frozen=True, slots=True)
class Reset:
    request: Request
    consumer: str
    offset: int


@dataclass(frozen=True, slots=True)
class Update:
    request: Request
    changes: Mapping[str, object]


@dataclass(slots=True)
class Requests:
    resets: list[Reset] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    forgotten: dict[tuple[str, str], None] = field(default_factory=dict)
    """Log and consumer."""

    def resets_to(self, incarnation: str, consumer: str, offset: int) -> bool:
        return any(
            (each.consumer, each.offset) == (consumer, offset) and each.request.means(incarnation)
            for each in self.resets
        )

    def changes(self, incarnation: str, before: LogSettings, after: LogSettings) -> bool:
        return any(
            parse_settings(each.changes, before) == after and each.request.means(incarnation)
            for each in self.updates
        )
