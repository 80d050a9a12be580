"""Tells a supervisor (systemd's `sd_notify`) that this process is ready, alive, or about to stop.

The protocol is one datagram to the socket that ``NOTIFY_SOCKET`` names; without it nothing is
told. Nothing here fails: a process serves whether somebody looks after it or not.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"
SOCKET: Final = "NOTIFY_SOCKET"
_PER_WATCHDOG: Final = 3


def tell(state: str) -> None:
    """Tell the supervisor *state*, if there is one."""
    path = os.environ.get(SOCKET, "")
    if not path.startswith(("/", "@")) or not hasattr(socket, "AF_UNIX"):
        return
    address = "\0" + path[1:] if path.startswith("@") else path  # of Linux: a name without a file
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.setblocking(False)
        to.sendto(state.encode(), address)


@asynccontextmanager
async def kept_alive() -> AsyncIterator[None]:
    """Tell the supervisor that the event loop turns, as often as it wants, while this lasts."""
    usec = os.environ.get("WATCHDOG_USEC", "")
    ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    if not ours or not usec.isascii() or not usec.isdigit() or int(usec) == 0:
        yield
        return
    beating = asyncio.create_task(_beat(int(usec) / 1e6 / _PER_WATCHDOG), name="watchdog")
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def _beat(every_s: float) -> None:
    while True:
        tell(ALIVE)
        await asyncio.sleep(every_s)
