"""Stamps of hand-overs: from when to when which method of this process ran, and for what.

    python -m benchmarks.stamps FILE OPTIONS-OF-A-BOOKIE

is a bookie that keeps its stamps in FILE when it ends. The clock is the same in all processes of
one machine (Linux).
"""

import atexit
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bookie.command import main as bookie
from bookie.disk.port import RealFile
from bookie.server.add_connection import AddConnection
from ledger.transport.connection import Connection

Stamp = tuple[str, str, float, float]
"""Method, what it was called for, began, ended."""

stamps: Final[list[Stamp]] = []


def stamp(owner: type, method: str, about: Callable[..., object] = lambda *_: "") -> None:
    """Stamp *method* of *owner* from now on; *about* gets its arguments."""
    inner = getattr(owner, method)

    def stamped(*arguments: Any) -> Any:
        began = time.perf_counter()
        result = inner(*arguments)
        stamps.append((method, str(about(*arguments)), began, time.perf_counter()))
        return result

    setattr(owner, method, stamped)


def main() -> None:
    kept = Path(sys.argv.pop(1))
    stamp(AddConnection, "_take", lambda _, frame: frame.number)
    stamp(RealFile, "sync")
    stamp(Connection, "send", lambda *arguments: arguments[2])
    atexit.register(lambda: kept.write_text(json.dumps(stamps)))
    bookie()


if __name__ == "__main__":
    main()
