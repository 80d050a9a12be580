"""How long work is shown: one line on stderr that changes, and only to a person."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bookie.tools.findings import Progress

_INTERVAL_S: Final = 0.2
_CLEAR: Final = "\r\x1b[K"


@contextmanager
def shown_progress() -> "Iterator[Progress]":
    """Yield what to call with how far work is; the line is gone when the block ends."""
    shows = sys.stderr.isatty()
    last_s = 0.0

    def report(what: str, done: int, total: int) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if shows and now_s - last_s >= _INTERVAL_S:
            last_s = now_s
            share = f" {100 * done // total} %" if total else ""
            sys.stderr.write(f"{_CLEAR}{what}{share}")
            sys.stderr.flush()

    try:
        yield report
    finally:
        if last_s:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
