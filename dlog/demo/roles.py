"""How a role speaks with the demo that started it: events as JSON lines out, words as lines in.

Whatever else writes to the standard output of a role (Spark's libraries do) goes to its
standard error, which the demo keeps in a file.
"""

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
from typing import Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1


class Role:
    """This process as a role of the demo."""

    def __init__(self) -> None:
        """Take over the standard output, and die with the demo, whatever it dies of."""
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the demo ended before its role began")
        signal.signal(signal.SIGTERM, _leave)
        self._out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
        os.dup2(2, 1)

    def say(self, event: str, **fields: object) -> None:
        """Report *event*; `at` is comparable between the processes of one machine."""
        line = json.dumps({"event": event, "at": time.monotonic(), **fields})
        self._out.write(line + "\n")

    def hear(self) -> str:
        """Wait for the next word of the demo."""
        return sys.stdin.readline().strip()

    async def hear_async(self) -> str:
        """Wait for the next word of the demo, beside other work."""
        return await asyncio.to_thread(self.hear)


def _leave(_number: int, _frame: object) -> NoReturn:
    sys.exit(0)
