"""Log events of all packages: an event with fields, through the standard library's `logging`.

A library must not print: events go to standard loggers named after their modules, so
an application that set up logging gets them, and one that did not sees warnings at most.
Programs of ours call `configure` once.

The wall clock is here too, for stamps only: no protocol decision depends on it (rule 89).
"""

import logging
import sys
import time
from typing import Final, final


@final
class EventLogger:
    """Renders ``event key=value ...``. A field ``exc_info=True`` adds the traceback."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger: Final = logging.getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        """As `error`, with the traceback of the exception that is handled."""
        self._log(logging.ERROR, event, {**fields, "exc_info": True})

    def _log(self, level: int, event: str, fields: dict[str, object]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        has_traceback = bool(fields.pop("exc_info", False))
        line = " ".join((event, *(f"{key}={value!r}" for key, value in fields.items())))
        self._logger.log(level, "%s", line, exc_info=has_traceback, stacklevel=3)


def get_logger(name: str) -> EventLogger:
    """Return the logger of module *name*; call it with an event name and fields."""
    return EventLogger(name)


def configure(level: int = logging.INFO) -> None:
    """Write events from *level* on to standard error, one line each."""
    logging.basicConfig(
        level=level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s %(message)s",
        force=True,
    )
    logging.getLogger("kazoo").setLevel(max(level, logging.WARNING))


def now_ms() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
