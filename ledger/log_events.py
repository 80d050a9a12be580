"""Log events of all packages: structlog's names and fields, through the standard library.

A library must not print: events go to standard `logging` loggers named after their modules, so
an application that set up logging gets them, and one that did not sees warnings at most.
Programs of ours call `configure` once.
"""

import logging
import sys
from typing import cast

import structlog


def _line(_logger: object, _method: str, fields: structlog.typing.EventDict) -> str:
    """Render as ``event key=value ...``, with a traceback, if there is one, below."""
    event, trace = fields.pop("event", ""), fields.pop("exception", None)
    line = " ".join((str(event), *(f"{key}={value!r}" for key, value in fields.items())))
    return line if trace is None else f"{line}\n{trace}"


_PROCESSORS: tuple[structlog.typing.Processor, ...] = (
    structlog.stdlib.filter_by_level,
    structlog.processors.format_exc_info,
    _line,
)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of module *name*; call it with an event name and fields."""
    logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=_PROCESSORS,
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return cast("structlog.stdlib.BoundLogger", logger)


def configure(level: int = logging.INFO) -> None:
    """Write events from *level* on to standard error, one line each."""
    logging.basicConfig(
        level=level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s %(message)s",
        force=True,
    )
    logging.getLogger("kazoo").setLevel(max(level, logging.WARNING))
