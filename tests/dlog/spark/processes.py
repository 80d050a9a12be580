"""Processes of this machine, found by what they are."""

from collections.abc import Callable
from pathlib import Path


def matching(test: Callable[[int, bytes], bool]) -> list[int]:
    """Return the processes for which *test*, given id and command line, says true."""
    found: list[int] = []
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            if test(int(path.name), (path / "cmdline").read_bytes()):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def parent_of(pid: int) -> int:
    """Return the parent of *pid*. Raises `OSError` if it has ended."""
    state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(state[1])


def children(parent: int, marked: bytes) -> list[int]:
    """Return the children of *parent* whose command line has *marked*."""
    return matching(lambda pid, command: marked in command and parent_of(pid) == parent)


def below(root: int, marked: bytes) -> list[int]:
    """Return the descendants of *root* whose command line has *marked*."""

    def is_below(pid: int) -> bool:
        while pid > 1:
            pid = parent_of(pid)
            if pid == root:
                return True
        return False

    return matching(lambda pid, command: marked in command and is_below(pid))


def workers_below(root: int) -> list[int]:
    """Return the Python workers of Spark below the process *root*: children of their daemons."""
    daemons = below(root, b"pyspark.daemon")
    return [worker for each in daemons for worker in children(each, b"pyspark.daemon")]
