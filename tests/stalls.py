"""Event loops that stand still now and then, as those of a loaded machine: `-p tests.stalls`.

    python -m pytest --quick --wide -p tests.stalls -n 4 --dist worksteal

Each test has one stall, at a turn of a loop that the seed in `DLOG_TEST_STALL_SEED` draws, of
`DLOG_TEST_STALL_S` seconds. What fails then takes a machine that stands still for a fault. A stall
costs no CPU, so more processes may run than there are cores.
"""

import asyncio
import os
import random
import time
from collections.abc import Generator
from typing import Final

import pytest

STALL_S: Final = float(os.environ.get("DLOG_TEST_STALL_S", "1.5"))
TURNS_MEAN: Final = 20
"""Turns of a loop before it stands still, on the average."""


class _Stalls:
    def __init__(self) -> None:
        self.left = 0
        self._random = random.Random(os.environ.get("DLOG_TEST_STALL_SEED", "1"))

    def at_turn(self) -> None:
        if self.left and self._random.random() < 1 / TURNS_MEAN:
            self.left -= 1
            time.sleep(STALL_S)


_stalls: Final = _Stalls()


def pytest_configure() -> None:
    turn = asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]

    def run_once(loop: asyncio.BaseEventLoop) -> None:
        _stalls.at_turn()
        turn(loop)

    asyncio.BaseEventLoop._run_once = run_once  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None]:
    _stalls.left = 1
    return (yield)
