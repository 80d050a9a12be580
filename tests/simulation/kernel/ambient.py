"""What production code takes from its surroundings, simulated: clocks and random tokens."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from random import Random
from typing import Any, Final

import ledger.log_events
from leader import lifeline
from leader.campaign import _Campaign
from leader.refusals import LifelineAddress
from ledger.errors import LogError
from ledger.machine_loop import MachineLoop
from tests.simulation.kernel.scheduler import Scheduler
from tests.simulation.kernel.sockets import SocketModule, network_here, refusals_here

Break = Callable[[MachineLoop[Any, Any], BaseException], None]

EPOCH_S: Final = 1_700_000_000


def wall_clock_ms(scheduler: Scheduler) -> int:
    """Return the right time; the clocks of processes may be wrong."""
    return EPOCH_S * 1000 + int(scheduler.now * 1000)


class _Time:
    """Stands for the module `time` where `ledger.log_events` uses it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def time_ns(self) -> int:
        skew_s: float = getattr(asyncio._get_running_loop(), "skew_s", 0.0)
        return EPOCH_S * 1_000_000_000 + round((self._scheduler.now + skew_s) * 1e9)


async def _has_died(address: LifelineAddress, *, security: object = None, **more: Any) -> bool:
    """As `leader.lifeline.has_died`, with what this simulated process remembers."""
    return await lifeline.has_died(address, refusals_here(), **more)


def _shows_what_breaks(honest: Break) -> Break:
    """As `MachineLoop._break`; a machine that breaks its own invariants breaks the simulation, too,
    instead of failing its caller alone."""

    def break_(self: MachineLoop[Any, Any], error: BaseException) -> None:
        if not isinstance(error, LogError):
            asyncio.get_running_loop().call_exception_handler({"exception": error})
        honest(self, error)

    return break_


@contextmanager
def surroundings(scheduler: Scheduler) -> Iterator[None]:
    """Let production code of this process find simulated time and tokens within the block."""
    random: Random = scheduler.random
    undo: list[tuple[object, str, object]] = []

    def put(owner: object, name: str, value: object) -> None:
        undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    put(ledger.log_events, "time", _Time(scheduler))
    put(MachineLoop, "_break", _shows_what_breaks(MachineLoop._break))
    put(socket, "gethostname", lambda: "simulated")
    put(os, "getpid", lambda: 1)
    put(secrets, "token_bytes", lambda count=16: random.randbytes(count))
    put(secrets, "token_hex", lambda count=16: random.randbytes(count).hex())
    put(secrets, "randbits", random.getrandbits)
    put(lifeline, "socket", SocketModule)
    put(lifeline, "network", network_here)
    put(import_module("leader.campaign"), "has_died", _has_died)
    put(import_module("dlog.kafka.membership"), "has_died", _has_died)
    defaults = _Campaign.__init__.__kwdefaults__
    assert defaults is not None, "a campaign takes a clock"
    monotonic = defaults["clock"]
    defaults["clock"] = lambda: asyncio.get_running_loop().time()
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        defaults["clock"] = monotonic
        while undo:
            owner, name, value = undo.pop()
            setattr(owner, name, value)
