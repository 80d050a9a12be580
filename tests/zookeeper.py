"""What tests need of a real ZooKeeper: a namespace of their own, and bad days."""

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dlog.local.zookeeper import ManagedZooKeeper
from tests.waiting import PATIENCE_S

_roots: Final = itertools.count(1)


def fresh_uri(server: ManagedZooKeeper) -> str:
    """Return the URI of a namespace that nobody has used on *server*."""
    return server.uri(f"/test-{os.getpid()}-{next(_roots)}")


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stop process *pid* (SIGSTOP) for the time of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        # The signal is answered by each thread in its own time.
        deadline = time.monotonic() + PATIENCE_S
        while not all(_is_stopped(stat) for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
            assert time.monotonic() < deadline, f"process {pid} did not stop"
            time.sleep(0.001)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _is_stopped(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return True  # the thread has ended
