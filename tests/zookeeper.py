"""What tests need of a real ZooKeeper: a namespace of their own, and bad days."""

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dlog.local.zookeeper import ManagedZooKeeper
from tests.waiting import wait_until

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
        tasks = Path(f"/proc/{pid}/task")
        wait_until(
            lambda: all(_is_stopped(stat) for stat in tasks.glob("*/stat")),
            f"process {pid} has stopped",
        )
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _is_stopped(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return True  # the thread has ended
