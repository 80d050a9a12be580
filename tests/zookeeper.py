"""What tests need of a real ZooKeeper: a namespace of their own, and bad days."""

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dlog.local.zookeeper import ManagedZooKeeper

_roots: Final = itertools.count(1)


def fresh_uri(server: ManagedZooKeeper) -> str:
    """Return the URI of a namespace that nobody has used on *server*."""
    return server.uri(f"/test-{os.getpid()}-{next(_roots)}")


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stop process *pid* (SIGSTOP) for the time of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
